package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

// process identifies a process uniquely. The kernel reuses process IDs, so an ID is not sufficient.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since the boot of the host
	Boot  string `json:"boot"`  // boot ID of the host
}

// identify returns the identity of a running process.
func identify(pid int, boot string) (process, error) {
	start, _, err := procStat(pid)
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: start, Boot: boot}, nil
}

// procStat returns a process's start time and reports whether it is running. A zombie is not running.
func procStat(pid int) (start uint64, alive bool, err error) {
	f, err := host.ProcStat(pid)
	if err != nil {
		return 0, false, err
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0] != "Z" && f[0] != "X", err
}

// nameSelf returns a unique name for this process among all processes using the state directory at any time. The name
// consists of PID namespace, process ID, and start time.
func nameSelf() (string, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/self/ns/pid", &st)
	start, _, err2 := procStat(os.Getpid())
	if err := errors.Join(err, err2); err != nil {
		return "", fmt.Errorf("local: this process is not visible in /proc: %w: %w", host.Public(err), backend.ErrUnsupported)
	}
	return fmt.Sprintf("%d-%d-%d", st.Ino, os.Getpid(), start), nil
}

// isDead reports whether a process with a name from nameSelf has exited. It returns false for processes in other PID
// namespaces, because they are not visible.
func isDead(name, self string) bool {
	f, own := strings.Split(name, "-"), strings.Split(self, "-")
	if len(f) != 3 || len(own) != 3 || f[0] != own[0] {
		return false
	}
	pid, err := strconv.Atoi(f[1])
	if err != nil {
		return false
	}
	start, alive, err := procStat(pid)
	if err != nil {
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	return !alive || strconv.FormatUint(start, 10) != f[2]
}

// bootID returns the ID of the host's current boot.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// alive reports whether the process is still running.
func (p process) alive(boot string) bool {
	if p.PID <= 1 || p.Boot != boot {
		return false
	}
	start, alive, err := procStat(p.PID)
	return err == nil && alive && start == p.Start
}

// killPatience is the maximum time for a killed process to exit. The kernel first kills all other processes of the PID
// namespace.
const killPatience = 30 * time.Second

// kill kills the process and thereby all processes in the PID namespace, and waits until they have exited. It does
// nothing if the process has already exited.
func (p process) kill(ctx context.Context, boot string) error {
	if !p.alive(boot) {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("local: opening the sandbox's process: %w", err)
	}
	defer unix.Close(fd)
	if !p.alive(boot) { // the descriptor may refer to another process
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("local: killing the sandbox's process: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, killPatience, fmt.Errorf("local: the sandbox's processes do not exit: %w",
		backend.ErrUnavailable))
	defer cancel()
	return awaitExit(ctx, fd)
}

// awaitExit waits until the process of a pidfd has exited.
func awaitExit(ctx context.Context, fd int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 50)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("local: waiting for a process: %w", err)
		case n > 0:
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// reap waits in the background for a child process to exit, to avoid a zombie. The goroutine ends with the child
// process and occupies no thread.
func reap(pid, pidfd int) {
	_ = unix.SetNonblock(pidfd, true) // otherwise waiting needs a thread
	f := os.NewFile(uintptr(pidfd), "pidfd")
	go func() {
		defer f.Close()
		conn, err := f.SyscallConn()
		if err != nil {
			return
		}
		_ = conn.Read(func(uintptr) bool { // fails only if the file is closed
			got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
			return got == pid || err != nil && !errors.Is(err, unix.EINTR)
		})
	}()
}

// settleScore sets the OOM score adjustment of a launcher, which the guest agent inherits. The score is as low as this
// process may set it, but never has this process's protection from being killed. The guest agent gives commands a
// higher score. Commands can lower their score to a bound. Only a privileged process can change the bound, by setting a
// score. The guest agent's score is this bound, so no command can get a lower score.
func settleScore(pid int) error {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	set := func(score int) error {
		return writeFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", strconv.Itoa(score))
	}
	err = set(sort.Search(max(own, 0), func(score int) bool { return set(score) == nil }))
	return host.Ignore(err, os.ErrNotExist, unix.ESRCH) // the process has exited and reported the reason
}
