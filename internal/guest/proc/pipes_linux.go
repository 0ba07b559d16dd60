package proc

import (
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// ends are the descriptors that a command is started with, and the guest's at the other end, which do not block.
type ends struct {
	files    [3]int // the child's
	terminal bool   // they are its controlling terminal
	in       int    // the guest's end of the standard input; negative when there is none
	out      [2]int // that of the standard output, and that of the standard error; negative when there is none

	made, own []int // to be closed: the child's when it has them, the guest's when there is no child
}

// connect makes the pipes, or the terminal, of a command. null is the standard input of one that gets none.
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
		_ = unix.Close(fd) // nothing was written
	}
}
