package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/workcell-dev/workcell/sandbox"
)

// plainScreen resets modes left by full-screen programs and shells after a disconnect: the
// alternate screen, mouse reports, bracketed paste, a hidden cursor, and colors.
const plainScreen = "\x1b[?1047l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"

// terminal returns the file of a stream if the stream is a terminal.
func terminal(stream any) (f *os.File, ok bool) {
	f, ok = stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// TerminalWidth returns the number of columns of a terminal. It is zero if unknown.
func TerminalWidth(stream any) (columns int, ok bool) {
	f, ok := terminal(stream)
	if ok {
		columns, _, _ = term.GetSize(int(f.Fd()))
	}
	return columns, ok
}

// HostTerminal is the terminal of this command. The methods are safe for concurrent use.
type HostTerminal struct {
	In  *os.File
	Out io.Writer

	mu     sync.Mutex  // guards the fields below
	found  *term.State // original state; nil before Raw
	screen func()      // restores the output's mode; nil for nothing to do
	over   bool        // the terminal must not change again
}

// NewHostTerminal returns the terminal of this command. It fails if standard input is not a terminal.
func NewHostTerminal(stdin io.Reader, stdout io.Writer) (*HostTerminal, error) {
	in, ok := terminal(stdin)
	if !ok {
		return nil, errors.New("standard input is not a terminal")
	}
	return &HostTerminal{In: in, Out: stdout}, nil
}

// Raw switches the terminal to raw mode. Call it again if another process may have changed the mode.
func (t *HostTerminal) Raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	found, err := term.MakeRaw(int(t.In.Fd()))
	if err != nil {
		return fmt.Errorf("cannot set up the terminal: %w", err)
	}
	if t.found == nil {
		t.found, t.screen = found, showSequences(t.Out)
	}
	return nil
}

// restore permanently restores the original state of the terminal.
func (t *HostTerminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over = true; t.found == nil {
		return
	}
	_ = term.Restore(int(t.In.Fd()), t.found) // fails if the terminal's window was closed
	if t.screen != nil {
		t.screen()
	}
	t.found = nil
}

// Leave resets the screen after a disconnect from programs left running in the sandbox.
func (t *HostTerminal) Leave() {
	if f, ok := terminal(t.Out); ok {
		_, _ = f.WriteString(plainScreen) // fails if the terminal's window was closed
	}
}

// Size returns the size of the terminal, or zero if the size is unknown.
func (t *HostTerminal) Size() sandbox.TerminalSize {
	for _, f := range []any{t.Out, t.In} {
		file, ok := f.(*os.File)
		if !ok {
			continue
		}
		if cols, rows, err := term.GetSize(int(file.Fd())); err == nil {
			return sandbox.TerminalSize{Rows: uint16(min(max(rows, 0), 1<<16-1)), Cols: uint16(min(max(cols, 0), 1<<16-1))}
		}
	}
	return sandbox.TerminalSize{}
}

// WatchSize returns a channel of new sizes until ctx is done.
func (t *HostTerminal) WatchSize(ctx context.Context) <-chan sandbox.TerminalSize {
	sizes := make(chan sandbox.TerminalSize)
	go func() {
		last := t.Size()
		t.onChange(ctx, func() {
			now := t.Size()
			if now == last {
				return
			}
			last = now
			select {
			case sizes <- now:
			case <-ctx.Done():
			}
		})
	}()
	return sizes
}

// RestoreTerminal restores the original state of this process's terminal, if it was changed.
func (a *Command) RestoreTerminal() {
	if t := a.Terminal.Swap(nil); t != nil {
		t.restore()
	}
}
