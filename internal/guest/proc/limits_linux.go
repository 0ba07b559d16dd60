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

// rlimit is a resource limit that one command gets, soft and hard.
type rlimit struct {
	resource int
	value    uint64
}

// limitsOf returns the limits of a command that are lower than the guest's own, which it has anyway. A frozen one gets
// none of its files longer.
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

// forkLimited makes a child that has limits of its own before its first instruction: it is traced, so that it stops
// when its program is there, and let go with the limits set. Where tracing is forbidden the limits follow right behind
// the fork, and a command can have run for a moment without them.
func (s *Spawner) forkLimited(p *Process, path string, argv []string, attr *syscall.ProcAttr, limits []rlimit) error {
	if len(limits) == 0 {
		return s.fork(p, path, argv, attr)
	}
	s.tracing <- struct{}{} // the guest's threads are bounded, see makeThreads
	defer func() { <-s.tracing }()
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	attr.Sys.Ptrace = true
	err := s.fork(p, path, argv, attr)
	traced := err == nil
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) { // or the program itself is refused, again then
		attr.Sys.Ptrace = false
		err = s.fork(p, path, argv, attr)
	}
	if err != nil {
		return err
	}
	err = setLimits(p.PID, limits, s.protection.key)
	if traced {
		err = errors.Join(err, letGo(p.PID))
	}
	if err != nil {
		_ = unix.Kill(p.PID, unix.SIGKILL) // it is ours and not reaped yet, or has ended
		return fmt.Errorf("setting limits: %w", err)
	}
	return nil
}

// setLimits limits a process. One that has ended needs none.
func setLimits(pid int, limits []rlimit, key limitKey) error {
	for _, l := range limits {
		err := key.limit(pid, l.resource, l.value)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// stopBound is how long a traced child may take to stop. It does so on its way out of exec, unless it is killed.
const stopBound = 10 * time.Second

// letGo ends the tracing of a child that stops or has stopped. The reaper passes over the stop.
func letGo(pid int) error {
	for begin := time.Now(); ; time.Sleep(20 * time.Microsecond) {
		err := unix.PtraceDetach(pid)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.ESRCH) { // which is also: not stopped yet
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
