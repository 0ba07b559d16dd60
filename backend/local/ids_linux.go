package local

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

// Root assigns every sandbox a separate block of user and group IDs. Nothing else uses this range: /etc/subuid of all
// distributions begins at 65536 or 100000. systemd's container IDs end at 1879048191, and systemd's other IDs begin at
// 2147352576.
const (
	firstBlock = 0x7000_0000 // 1879048192
	lastBlock  = 0x7ffc_0000
	blockSize  = 1 << 16
	blocks     = (lastBlock-firstBlock)/blockSize + 1
	// blockIDs is the number of IDs mapped one to one. A larger ID of the sandbox's user is mapped to the next ID in the
	// block.
	blockIDs = blockSize - 2
)

// ids describes how users of a sandbox are mapped to users of the host.
type ids struct {
	Base uint32    `json:"base"` // first ID of the block; 0 if the caller's ID is mapped to the sandbox's user
	User launch.ID `json:"user"` // the sandbox's user inside the sandbox
}

// owner returns the owner of files in the sandbox's file systems.
func (i ids) owner() launch.ID {
	if i.Base == 0 {
		return i.User // the only mapped user
	}
	return launch.ID{}
}

// hostUser returns the host's IDs of the sandbox's user.
func (i ids) hostUser() (uid, gid int) {
	if i.Base == 0 {
		return os.Geteuid(), os.Getegid()
	}
	return int(i.Base + min(i.User.UID, blockIDs)), int(i.Base + min(i.User.GID, blockIDs))
}

func (i ids) mappings() (uids, gids []syscall.SysProcIDMap) {
	one := func(id uint32, own int) []syscall.SysProcIDMap {
		if i.Base == 0 {
			return []syscall.SysProcIDMap{{ContainerID: int(id), HostID: own, Size: 1}}
		}
		m := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(i.Base), Size: blockIDs}}
		if id >= blockIDs {
			m = append(m, syscall.SysProcIDMap{ContainerID: int(id), HostID: int(i.Base) + blockIDs, Size: 1})
		}
		return m
	}
	return one(i.User.UID, os.Geteuid()), one(i.User.GID, os.Getegid())
}

// mayMapBlocks reports whether this process may map any block. It must be root in a user namespace with all these IDs.
// The root user of an unprivileged container cannot map blocks.
func mayMapBlocks() bool {
	return os.Geteuid() == 0 && hasBlocks("/proc/self/uid_map") && hasBlocks("/proc/self/gid_map")
}

func hasBlocks(file string) bool {
	b, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[0], 10, 32)
		size, err2 := strconv.ParseUint(f[2], 10, 33)
		if err1 == nil && err2 == nil && first <= firstBlock && first+size >= lastBlock+blockSize {
			return true
		}
	}
	return false
}

// claimBlock claims an unused block of IDs.
func (d dirs) claimBlock(claimant string) (uint32, error) {
	for range 64 {
		n := rand.IntN(blocks) //nolint:gosec // any free one will do
		link := d.block(uint32(firstBlock + n*blockSize))
		err := os.Symlink(claimant, link)
		if err == nil {
			return uint32(firstBlock + n*blockSize), nil
		}
		if !errors.Is(err, os.ErrExist) {
			return 0, failed("claiming user IDs", err)
		}
		d.dropStale(link)
	}
	return 0, fmt.Errorf("local: all blocks of user IDs are in use: %w", backend.ErrCapacity)
}

func (d dirs) block(base uint32) string {
	return filepath.Join(d.ids(), strconv.FormatUint(uint64(base), 10))
}

// dropStale removes a claim without an owner. This is safe because a sandbox exists before the claim, and the claim is
// released before the sandbox is removed.
func (d dirs) dropStale(link string) {
	claimant, err := os.Readlink(link)
	if err != nil || !kit.IsSessionID(claimant) || host.Exists(d.sandbox(claimant)) || host.Exists(d.workspace(claimant)) {
		return
	}
	_ = os.Remove(link) // another process may have removed it
}

func (d dirs) releaseBlock(base uint32) error {
	if base == 0 {
		return nil
	}
	return failed("releasing user IDs", kit.Ignore(os.Remove(d.block(base)), os.ErrNotExist))
}
