package cli

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// onChange calls fn now and then until ctx ends: a console sends no signal when its size changes.
func (t *HostTerminal) onChange(ctx context.Context, fn func()) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		fn()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// showSequences makes a console act on control sequences, and returns what takes that back.
func showSequences(out io.Writer) func() {
	f, ok := out.(*os.File)
	if !ok {
		return nil
	}
	h := windows.Handle(f.Fd())
	var mode uint32
	if windows.GetConsoleMode(h, &mode) != nil {
		return nil // not a console
	}
	if windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING|windows.DISABLE_NEWLINE_AUTO_RETURN) != nil {
		return nil // an old one, which shows them
	}
	return func() { _ = windows.SetConsoleMode(h, mode) } // it may be gone
}

// TakeStdout returns f itself: main has made os.Stdout another file already, which is as much as this system allows.
func TakeStdout(f, _ *os.File) (*os.File, error) { return f, nil }
