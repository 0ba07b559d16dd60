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

// process names a process for good: a pid alone passes from one process to another.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since the machine started
	Boot  string `json:"boot"`  // which start of the machine
}

// identify names a living process.
func identify(pid int, boot string) (process, error) {
	start, _, err := procStat(pid)
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: start, Boot: boot}, nil
}

// procStat reads a process's start time and whether it still runs: a zombie does not.
func procStat(pid int) (start uint64, alive bool, err error) {
	f, err := host.ProcStat(pid)
	if err != nil {
		return 0, false, err
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0] != "Z" && f[0] != "X", err
}

// nameSelf names this process among all that ever used the same state directory: by its pid namespace, pid and start.
func nameSelf() (string, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/self/ns/pid", &st)
	start, _, err2 := procStat(os.Getpid())
	if err := errors.Join(err, err2); err != nil {
		return "", fmt.Errorf("local: this process is not visible in /proc: %w: %w", scrub(err), backend.ErrUnsupported)
	}
	return fmt.Sprintf("%d-%d-%d", st.Ino, os.Getpid(), start), nil
}

// isDead reports whether a process that nameSelf named has ended. Those of other pid namespaces cannot be seen.
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

// bootID names this start of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// alive reports whether the process still runs.
func (p process) alive(boot string) bool {
	if p.PID <= 1 || p.Boot != boot {
		return false
	}
	start, alive, err := procStat(p.PID)
	return err == nil && alive && start == p.Start
}

// killPatience is how long a killed process may take to end. The kernel first ends all others of its pid namespace.
const killPatience = 30 * time.Second

// kill ends the process, and with it all of its pid namespace, and waits until that is done. A process that is gone is
// no error.
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
	if !p.alive(boot) { // the descriptor may name another one
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("local: killing the sandbox's process: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, killPatience, fmt.Errorf("local: the sandbox's processes do not exit: %w", backend.ErrUnavailable))
	defer cancel()
	return awaitExit(ctx, fd)
}

// awaitExit waits until the process of a pidfd has ended.
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

// reap waits in the background for the end of a child of this process, so that it leaves no zombie. The goroutine ends
// with the child; it holds no thread.
func reap(pid, pidfd int) {
	_ = unix.SetNonblock(pidfd, true) // else it costs a thread
	f := os.NewFile(uintptr(pidfd), "pidfd")
	go func() {
		defer f.Close()
		conn, err := f.SyscallConn()
		if err != nil {
			return
		}
		_ = conn.Read(func(uintptr) bool { // fails only when the file is closed
			got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
			return got == pid || err != nil && !errors.Is(err, unix.EINTR)
		})
	}()
}

// settleScore sets by how much the kernel prefers a launcher, and so the guest, to other processes when memory runs
// out: as little as we may, but never with the protection that this process may have. Commands get a higher score from
// the guest. They can lower it to a bound that only a privileged process moves, with what it sets; so the guest lies on
// the bound, and no command gets below it.
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
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil // it has ended, and says why
	}
	return err
}
