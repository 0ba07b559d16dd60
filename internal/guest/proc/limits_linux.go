package proc

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// rlimit is a soft and hard resource limit of a command.
type rlimit struct {
	resource int
	value    uint64
}

// limitsOf returns the limits of a command lower than the guest agent's limits, which apply anyway. A frozen command
// cannot extend files.
func limitsOf(sp *wire.Spawn, frozen bool) ([]rlimit, error) {
	var out []rlimit
	fileBytes := sp.FileBytes
	if frozen {
		out, fileBytes = append(out, rlimit{unix.RLIMIT_FSIZE, 0}), 0
	}
	for _, l := range []struct {
		resource int
		value    int64
	}{{unix.RLIMIT_NOFILE, sp.OpenFiles}, {unix.RLIMIT_FSIZE, fileBytes}} {
		if l.value <= 0 {
			continue
		}
		var own unix.Rlimit
		if err := unix.Prlimit(0, l.resource, nil, &own); err != nil {
			return nil, err
		}
		if uint64(l.value) < own.Max {
			out = append(out, rlimit{l.resource, uint64(l.value)})
		}
	}
	return out, nil
}

// forkLimited creates a child process with limits from the first instruction on. The child is traced, so it stops after
// exec. forkLimited sets the limits and then detaches. If tracing is not permitted, the limits are set right after the
// fork, and the command may run without them for a moment.
func (s *Spawner) forkLimited(p *Process, path string, argv []string, attr *syscall.ProcAttr, limits []rlimit) error {
	if len(limits) == 0 {
		return s.fork(p, path, argv, attr)
	}
	s.tracing <- struct{}{} // the number of the guest agent's threads is limited, see makeThreads
	defer func() { <-s.tracing }()
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	attr.Sys.Ptrace = true
	err := s.fork(p, path, argv, attr)
	traced := err == nil
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) { // or exec failed, which happens again without tracing
		attr.Sys.Ptrace = false
		err = s.fork(p, path, argv, attr)
	}
	if err != nil {
		return err
	}
	for _, l := range limits {
		if e := s.key.limit(p.PID, l.resource, l.value); !errors.Is(e, unix.ESRCH) { // it may have exited
			err = errors.Join(err, e)
		}
	}
	if traced {
		err = errors.Join(err, letGo(p.PID))
	}
	if err != nil {
		_ = unix.Kill(p.PID, unix.SIGKILL) // the child is not reaped yet, or has exited
		return fmt.Errorf("setting limits: %w", err)
	}
	return nil
}

// stopBound is the maximum time in which a traced child stops. The child stops at the end of exec, unless it is killed.
const stopBound = 10 * time.Second

// letGo detaches from a stopping or stopped child. The reaper ignores the stop.
func letGo(pid int) error {
	for begin := time.Now(); ; time.Sleep(20 * time.Microsecond) {
		err := unix.PtraceDetach(pid)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.ESRCH) { // also returned if the child has not stopped yet
			return err
		}
		if _, alive := readProc(pid); !alive {
			return nil
		}
		if time.Since(begin) > stopBound {
			return errors.New("the command does not stop")
		}
	}
}
