//go:build unix

package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// onChange calls fn when the size of the terminal may have changed, until ctx is done. If this process was stopped and
// continued, the shell has also changed the terminal's mode, so onChange restores raw mode.
func (t *HostTerminal) onChange(ctx context.Context, fn func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(ch)
	fn() // the size may have changed before signals were caught
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-ch:
			if sig == syscall.SIGCONT {
				_ = t.Raw() // on error, the current mode is kept
			}
			fn()
		}
	}
}

// showSequences does nothing, because Unix terminals support control sequences.
func showSequences(io.Writer) func() { return nil }

// TakeStdout returns a private copy of f, which no child process inherits, and redirects f itself to other.
func TakeStdout(f, other *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	own := os.NewFile(uintptr(fd), "standard output")
	if err := unix.Dup2(int(other.Fd()), int(f.Fd())); err != nil {
		own.Close() // nothing was written to it
		return nil, err
	}
	return own, nil
}
