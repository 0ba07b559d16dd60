package cli

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// onChange calls fn periodically until ctx is done, because a console sends no signal for a new size.
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

// showSequences enables control sequences on a console. It returns a function to restore the mode.
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
		return nil // an old console without support for control sequences
	}
	return func() { _ = windows.SetConsoleMode(h, mode) } // fails if the console was closed
}

// TakeStdout returns f itself. main has already replaced os.Stdout, and Windows supports nothing better.
func TakeStdout(f, _ *os.File) (*os.File, error) { return f, nil }
