package proc

import (
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// ends are the initial descriptors of a command, and the guest agent's non-blocking descriptors of the other ends.
type ends struct {
	files    [3]int // descriptors of the child process
	terminal bool   // files are the controlling terminal
	in       int    // the guest agent's end of standard input; may be negative
	out      [2]int // the guest agent's ends of standard output and standard error; may be negative

	made, own []int // descriptors to close: made after the fork, own if the fork failed
}

// connect creates the pipes or the terminal of a command. null is the standard input of commands without input.
func connect(req *wire.RunRequest, null int) (*ends, error) {
	e := &ends{files: [3]int{null, -1, -1}, in: -1, out: [2]int{-1, -1}}
	if req.Terminal != nil {
		return e, e.openTerminal(*req.Terminal)
	}
	var err error
	if len(req.Stdin) > 0 || req.StdinOpen || req.StdinStream {
		e.files[0], e.in, err = e.pipe(0)
	}
	for i := 0; i < len(e.out) && err == nil; i++ {
		e.files[i+1], e.out[i], err = e.pipe(1)
	}
	return e, launchError(err, "pipe")
}

func (e *ends) pipe(childEnd int) (child, own int, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	child, own = fd[childEnd], fd[1-childEnd]
	e.made, e.own = append(e.made, child), append(e.own, own)
	return child, own, unix.SetNonblock(own, true)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // no data was written
	}
}
