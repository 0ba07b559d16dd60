package host

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
)

// freezePatience is the maximum time for the processes of a group to freeze. A process may be inside a system call to a
// slow disk.
const freezePatience = 5 * time.Second

// Processes identifies the processes of a sandbox by the main process.
type Processes struct {
	PID int
	// Seen reports whether the main process is in the expected control group. If the engine and the caller have different
	// process namespaces, PID can name another process or no process.
	Seen  bool
	group string // directory of the group to freeze; empty if freezing is not possible
	v2    bool
}

// ProcessesOf returns the processes of a sandbox, found by the main process. The function own must accept the last part
// of the control group's name, because any other group may contain foreign processes.
func ProcessesOf(pid int, own func(group string) bool) Processes {
	p := Processes{PID: pid}
	groups, mounts := Cgroups(pid), CgroupMounts()
	for _, group := range groups {
		p.Seen = p.Seen || slices.ContainsFunc(strings.Split(group, "/"), own)
	}
	for controller, file := range map[string]string{"freezer": "freezer.state", "": "cgroup.freeze"} {
		group, ok := groups[controller]
		if !ok || !own(filepath.Base(group)) || mounts[controller] == "" {
			continue
		}
		dir := filepath.Join(mounts[controller], group)
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil && (p.group == "" || p.v2) {
			p.group, p.v2 = dir, controller == ""
		}
	}
	return p
}

// CanFreeze reports whether Freeze can freeze the processes.
func (p Processes) CanFreeze() bool { return p.group != "" }

// Freeze stops all processes of a running sandbox, including the main process. If this process may not freeze them,
// Freeze returns backend.ErrUnsupported. If a process does not stop in time, Freeze returns backend.ErrUnavailable,
// because a copy of the files would mix two states.
func (p Processes) Freeze(ctx context.Context) error {
	if p.PID == 0 {
		return nil
	}
	if !p.CanFreeze() || p.write("FROZEN", "1") != nil {
		if ended(p.PID) {
			return errExited
		}
		return fmt.Errorf("cannot freeze the sandbox's commands, which a snapshot requires; run as root, "+
			"or in a delegated cgroup: systemd-run --user --scope -p Delegate=yes workcell ...: %w", backend.ErrUnsupported)
	}
	for end := time.Now().Add(freezePatience); !p.frozen(); time.Sleep(100 * time.Microsecond) {
		switch {
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), p.Thaw())
		case time.Now().After(end):
			busy := fmt.Errorf("%w: a process of the sandbox did not stop within %v; its disk may be busy, try again",
				backend.ErrUnavailable, freezePatience)
			return errors.Join(busy, p.Thaw())
		}
	}
	return nil
}

var errExited = fmt.Errorf("the sandbox's main process exited: %w", backend.ErrLost)

// Thaw resumes the processes. It does nothing if the processes are running or no longer exist.
func (p Processes) Thaw() error {
	if p.group == "" {
		return nil
	}
	return Ignore(p.write("THAWED", "0"), os.ErrNotExist, unix.ENODEV)
}

func (p Processes) write(v1, v2 string) error {
	if p.v2 {
		return os.WriteFile(filepath.Join(p.group, "cgroup.freeze"), []byte(v2), 0)
	}
	return os.WriteFile(filepath.Join(p.group, "freezer.state"), []byte(v1), 0)
}

func (p Processes) frozen() bool {
	if p.v2 {
		b, err := os.ReadFile(filepath.Join(p.group, "cgroup.events"))
		return err == nil && strings.Contains(string(b), "frozen 1")
	}
	b, err := os.ReadFile(filepath.Join(p.group, "freezer.state"))
	return err == nil && strings.TrimSpace(string(b)) == "FROZEN"
}

// EndOthers kills all processes of the frozen sandbox except the main process and the engine's streams. The streams run
// the same program and were started from outside the sandbox. The killed processes exit when they thaw.
func (p Processes) EndOthers() error {
	var own unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/exe", p.PID), &own); err != nil {
		return fmt.Errorf("%w: %w", errExited, err)
	}
	members := Members(p.group)
	for _, pid := range members {
		if pid == p.PID || ended(pid) || runs(pid, &own) && !slices.Contains(members, parentOf(pid)) {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("ending the sandbox's commands: %w", err)
		}
	}
	return nil
}

// runs reports whether a process runs a program. For processes of commands, the result proves nothing, because the
// command can change the process's memory.
func runs(pid int, program *unix.Stat_t) bool {
	var st unix.Stat_t
	return unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st) == nil && st.Ino == program.Ino && st.Dev == program.Dev
}

// ended reports whether a process has exited or is a zombie. If only the first thread exited, the process is still
// running.
func ended(pid int) bool {
	f, err := ProcStat(pid)
	if err != nil {
		return true
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return f[0] == "Z" && (err != nil || len(threads) <= 1)
}

func parentOf(pid int) int {
	f, err := ProcStat(pid)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(f[1]) // the kernel always writes numbers
	return n
}

// ProcStat returns the fields of /proc/PID/stat after the program name: state, parent, and so on. The name may contain
// spaces and parentheses.
func ProcStat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])), nil
}

// mapsBound is the maximum number of mappings to examine.
const mapsBound = 1 << 20

// SharedFiles returns the inode numbers of the files mapped as shared by the frozen processes of the sandbox. Processes
// can write to such files without a change of the file times. known is false if the mappings cannot be read.
func (p Processes) SharedFiles(ctx context.Context) (inodes map[uint64]bool, known bool) {
	inodes = map[uint64]bool{}
	lines, members := 0, Members(p.group)
	if len(members) == 0 { // the group must contain at least the main process
		return nil, false
	}
	for _, pid := range members {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false
		}
		for _, thread := range threads { // an exited thread shows no mappings, even if it is the first
			n, err := sharedFiles(fmt.Sprintf("/proc/%d/task/%s/maps", pid, thread.Name()), inodes)
			if lines += n; err != nil || lines > mapsBound || ctx.Err() != nil {
				return nil, false
			}
			if n > 0 { // all threads have the same mappings
				break
			}
		}
	}
	return inodes, true
}

// sharedFiles adds the shared files of one thread to inodes. It returns the thread's number of mappings.
func sharedFiles(maps string, inodes map[uint64]bool) (n int, err error) {
	f, err := os.Open(maps)
	if err != nil { // ESRCH: the thread has exited
		return 0, Ignore(err, unix.ESRCH)
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	for ; scan.Scan() && n <= mapsBound; n++ {
		// Example line: 7f2c4a000000-7f2c4a021000 rw-s 00000000 fe:00 1234 /workspace/f
		if f := strings.Fields(scan.Text()); len(f) > 4 && strings.HasSuffix(f[1], "s") {
			inode, err := strconv.ParseUint(f[4], 10, 64)
			if err != nil {
				return n, err
			}
			inodes[inode] = true
		}
	}
	return n, scan.Err()
}

// Members returns the processes of a control group by the group's directory. If the group no longer exists, Members
// returns nil.
func Members(group string) []int {
	b, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for line := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(line); err == nil && pid > 0 { // 0 is a process of another namespace
			pids = append(pids, pid)
		}
	}
	return pids
}
