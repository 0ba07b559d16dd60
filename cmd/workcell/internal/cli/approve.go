package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Approver returns who is asked about calls of host tools: the one at the terminal. Nil when there is none.
func (p *progress) Approver() hosttools.ApproverFunc {
	for _, stream := range []any{p.in, p.w} {
		if f, ok := stream.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
			return nil
		}
	}
	return newAsker(p.in, p.w, p.Hold).approve
}

// asker puts questions to a person, one at a time.
type asker struct {
	in   io.Reader
	out  io.Writer
	hold func(bool) // keeps other lines away

	turn  chan struct{} // held while a question is open
	once  sync.Once
	lines chan string // what the person types; has room for a line that comes before it is waited for; closed at the end of the input
}

func newAsker(in io.Reader, out io.Writer, hold func(bool)) *asker {
	return &asker{in: in, out: out, hold: hold, turn: make(chan struct{}, 1), lines: make(chan string, 1)}
}

// read reads lines as long as the process lives: a read of a terminal cannot be cancelled. Of those that nobody waits
// for one is kept, which forget drops before the next question.
func (a *asker) read() {
	defer close(a.lines)
	for s := bufio.NewScanner(a.in); s.Scan(); {
		select {
		case a.lines <- s.Text():
		default:
		}
	}
}

// typedAhead is how long it takes to read what was typed before a question.
const typedAhead = 100 * time.Millisecond

// forget drops what was typed before a question: it answers none.
func (a *asker) forget() {
	a.once.Do(func() { go a.read() })
	for over := time.After(typedAhead); ; {
		select {
		case _, ok := <-a.lines:
			if !ok {
				return
			}
		case <-over:
			return
		}
	}
}

// line returns the next line.
func (a *asker) line(ctx context.Context) (string, error) {
	select {
	case line, ok := <-a.lines:
		if !ok {
			return "", errInputEnded
		}
		return line, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (a *asker) approve(ctx context.Context, r hosttools.ApprovalRequest) (hosttools.Decision, error) {
	if refused, ok := r.TooLong(); ok {
		return refused, nil
	}
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return hosttools.Decision{}, ctx.Err()
	}
	a.hold(true)
	defer a.hold(false)
	a.forget()
	fmt.Fprint(a.out, question(r))
	answer, err := a.line(ctx)
	if err != nil {
		fmt.Fprintln(a.out)
		return hosttools.Decision{}, err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return hosttools.Decision{Allow: true}, nil
	case "a":
		return hosttools.Decision{Allow: true, For: hosttools.ForTool}, nil
	}
	return hosttools.Decision{}, nil
}

// question shows a call. Arguments are JSON, whose control characters are escaped; what could still play tricks on a
// terminal is taken out.
func question(r hosttools.ApprovalRequest) string {
	who := "Code"
	if r.Caller.Agent != "" {
		who = "Code of agent " + r.Caller.Agent
	}
	return sanitize.Line(fmt.Sprintf("%s asks to call %s.%s with", who, r.Server, r.Tool)) + "\n  " + sanitize.Line(string(r.Args)) +
		"\nAllow? y: yes, N: no, a: always allow this tool in this run > "
}

var errInputEnded = errors.New("terminal input ended")
