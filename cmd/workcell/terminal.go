package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/workcell-dev/workcell/session"
)

// plainScreen takes back what full screen programs and shells switch on and, left behind, do not switch off: the other
// screen, reports of the mouse, marked pastes, a hidden cursor, colours.
const plainScreen = "\x1b[?1047l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"

// hostTerminal is the terminal that this command was started at. Its methods may be called concurrently.
type hostTerminal struct {
	in  *os.File
	out io.Writer

	mu     sync.Mutex  // guards the fields below
	found  *term.State // as it was; nil before raw
	screen func()      // restores the output's mode; nil for nothing to do
	over   bool        // it stays as it was found from now on
}

// newHostTerminal fails when there is none.
func newHostTerminal(stdin io.Reader, stdout io.Writer) (*hostTerminal, error) {
	in, ok := stdin.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil, errors.New("standard input is not a terminal")
	}
	return &hostTerminal{in: in, out: stdout}, nil
}

// raw makes the terminal pass on every key and show every byte, again also when somebody else changed that.
func (t *hostTerminal) raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	found, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return fmt.Errorf("setting up the terminal: %w", err)
	}
	if t.found == nil {
		t.found, t.screen = found, showSequences(t.out)
	}
	return nil
}

// restore sets the terminal back as it was found, for good.
func (t *hostTerminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over = true; t.found == nil {
		return
	}
	_ = term.Restore(int(t.in.Fd()), t.found) // it may be gone, with its window
	if t.screen != nil {
		t.screen()
	}
	t.found = nil
}

// leave tidies the screen up behind programs that go on elsewhere.
func (t *hostTerminal) leave() {
	if f, ok := t.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		_, _ = f.WriteString(plainScreen) // it may be gone, with its window
	}
}

// size is zero when the terminal does not know.
func (t *hostTerminal) size() session.TerminalSize {
	for _, f := range []any{t.out, t.in} {
		file, ok := f.(*os.File)
		if !ok {
			continue
		}
		if cols, rows, err := term.GetSize(int(file.Fd())); err == nil {
			return session.TerminalSize{Rows: uint16(min(max(rows, 0), 1<<16-1)), Cols: uint16(min(max(cols, 0), 1<<16-1))}
		}
	}
	return session.TerminalSize{}
}

// watchSize returns each new size until ctx ends.
func (t *hostTerminal) watchSize(ctx context.Context) <-chan session.TerminalSize {
	sizes := make(chan session.TerminalSize)
	go func() {
		last := t.size()
		t.onChange(ctx, func() {
			now := t.size()
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

// restoreTerminal sets this process's terminal back as it was found, if it is not.
func (a *command) restoreTerminal() {
	if t := a.terminal.Swap(nil); t != nil {
		t.restore()
	}
}
