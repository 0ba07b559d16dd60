package sizedfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	largeSize  = 64 << 20 // from this size on, blocks have 4 KiB instead of 1 KiB
	inodeBytes = 256
)

// geometry returns the block size and the file size for s. The file needs space for contents, inodes, the journal, and
// the blocks of the groups. It also needs the reserved space of ext4, 2 % and at most 4096 blocks.
func (s Spec) geometry() (block, total int64) {
	block = 1024
	if s.Bytes >= largeSize {
		block = 4096
	}
	total = s.Bytes + s.inodes()*inodeBytes + journal*block
	total += (s.Bytes/(8*block*block) + 1) * 4 * block
	total += min(total/49, 4096*block) + 64<<10
	total = max(total, 2100*block) // ext4 creates no journal in a smaller file system
	return block, (total + block - 1) / block * block
}

// inodes returns slightly more than s.Files, because ext4 uses some inodes itself and divides inodes among groups.
func (s Spec) inodes() int64 { return s.Files + s.Files/100 + 32 }

// journal is the minimum journal size, in blocks. The journal restores the file system after a crash of the host.
const journal = 1024

// features are the only features of a file system. The defaults of the host's mke2fs.conf may need a newer kernel.
const features = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file," +
	"huge_file,dir_nlink,extra_isize,metadata_csum"

// format runs mkfs.ext4.
func format(ctx context.Context, f *os.File, path string, s Spec) error {
	program, err := formatter()
	if err != nil {
		return err
	}
	block, total := s.geometry()
	if err := f.Truncate(total); err != nil {
		return err
	}
	extended := fmt.Sprintf("lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=%d:%d", s.UID, s.GID)
	cmd := exec.CommandContext(ctx, program, "-q", "-F", "-t", "ext4", "-b", fmt.Sprint(block), "-m", "0",
		"-N", fmt.Sprint(s.inodes()), "-I", fmt.Sprint(inodeBytes), "-J", fmt.Sprintf("size=%d", journal*block>>20),
		"-O", features, "-E", extended, path)
	cmd.Env = []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		said, _, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(string(out), path, "the file")), "\n")
		return fmt.Errorf("%s: %w: %.200s", filepath.Base(program), err, said)
	}
	return empty(path)
}

// formatter returns the path of mkfs.ext4, which is often not in a user's PATH.
func formatter() (string, error) {
	for _, name := range []string{"mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"} {
		if p, err := exec.LookPath(name); err == nil && filepath.IsAbs(p) {
			return p, nil
		}
	}
	return "", errors.New("mkfs.ext4 not found")
}

// empty removes the lost+found directory of a new file system.
func empty(file string) error {
	root, err := Mount(file)
	if err != nil {
		return err
	}
	err = unix.Unlinkat(root, "lost+found", unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return errors.Join(err, unix.Close(root))
}

// Mount mounts the file system in a file without a visible mount point, and returns a descriptor of the root directory.
// The kernel unmounts it when this descriptor and all descriptors of files below it are closed. If the file system is
// already mounted elsewhere, both mounts show the same files. A mount elsewhere is not affected when this mount ends.
// Only one caller at a time may attach this file.
func Mount(file string) (root int, err error) {
	d, err := Attach(file)
	if err != nil {
		return -1, err
	}
	defer d.Close()
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mounting: %w", err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "source", d.Name())
	for option := range strings.SplitSeq(Options, ",") {
		err = cmp.Or(err, unix.FsconfigSetFlag(fs, option))
	}
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return -1, fmt.Errorf("mounting: %w", err)
	}
	const attributes = unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOATIME
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return -1, fmt.Errorf("mounting: %w", err)
	}
	defer unix.Close(mount) // only needed to open the root
	root, err = unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("mounting: %w", err)
	}
	return root, nil
}

// Probe checks whether file systems can be created in files below dir and mounted. It creates a file system in an
// unnamed file.
func Probe(ctx context.Context, dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may mount file systems")
	}
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return fill(ctx, f, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), Spec{Bytes: 1 << 20, Files: 16})
}

// Format creates a file with an empty file system. The file must not exist. If Format fails, it removes the file. If
// the disk has too little space for the whole file system and the reserve (see Room), Format returns ENOSPC.
func Format(ctx context.Context, file string, s Spec) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = fill(ctx, f, file, s)
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// fill creates a file system in an empty file. path must open the file.
func fill(ctx context.Context, f *os.File, path string, s Spec) error {
	_, total := s.geometry()
	if err := Room(int(f.Fd()), total); err != nil {
		return err
	}
	if err := format(ctx, f, path, s); err != nil {
		return err
	}
	return reserve(f) // after format, because mkfs leaves holes
}
