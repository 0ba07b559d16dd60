package proc

import "golang.org/x/sys/unix"

// PipeSet collects the ends of the pipes of a command that is being started. The guest's ends do not block.
type PipeSet struct {
	child, own []int
}

// Input makes a pipe for the child to read from.
func (p *PipeSet) Input() (child, own int, err error) { return p.pipe(0) }

// Output makes a pipe for the child to write to.
func (p *PipeSet) Output() (child, own int, err error) { return p.pipe(1) }

func (p *PipeSet) pipe(childEnd int) (child, own int, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	child, own = fd[childEnd], fd[1-childEnd]
	p.child, p.own = append(p.child, child), append(p.own, own)
	return child, own, unix.SetNonblock(own, true)
}

func (p *PipeSet) CloseChildEnds() { closeAll(p.child) } // the child has its own

func (p *PipeSet) CloseOwnEnds() { closeAll(p.own) } // nothing was written

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
