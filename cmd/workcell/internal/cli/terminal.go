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

// plainScreen takes back what full screen programs and shells switch on and, left behind, do not switch off: the other
// screen, reports of the mouse, marked pastes, a hidden cursor, colours.
const plainScreen = "\x1b[?1047l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"

// HostTerminal is the terminal that this command was started at. Its methods may be called concurrently.
type HostTerminal struct {
	In  *os.File
	Out io.Writer

	mu     sync.Mutex  // guards the fields below
	found  *term.State // as it was; nil before raw
	screen func()      // restores the output's mode; nil for nothing to do
	over   bool        // it stays as it was found from now on
}

// NewHostTerminal fails when there is none.
func NewHostTerminal(stdin io.Reader, stdout io.Writer) (*HostTerminal, error) {
	in, ok := stdin.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil, errors.New("standard input is not a terminal")
	}
	return &HostTerminal{In: in, Out: stdout}, nil
}

// Raw makes the terminal pass on every key and show every byte, again also when somebody else changed that.
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

// restore sets the terminal back as it was found, for good.
func (t *HostTerminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over = true; t.found == nil {
		return
	}
	_ = term.Restore(int(t.In.Fd()), t.found) // it may be gone, with its window
	if t.screen != nil {
		t.screen()
	}
	t.found = nil
}

// Leave tidies the screen up behind programs that go on elsewhere.
func (t *HostTerminal) Leave() {
	if f, ok := t.Out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		_, _ = f.WriteString(plainScreen) // it may be gone, with its window
	}
}

// Size is zero when the terminal does not know.
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

// WatchSize returns each new size until ctx ends.
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

// RestoreTerminal sets this process's terminal back as it was found, if it is not.
func (a *Command) RestoreTerminal() {
	if t := a.Terminal.Swap(nil); t != nil {
		t.restore()
	}
}
