package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Approver returns an approver for host tools, asking the user at the terminal. It returns nil without a
// terminal.
func (p *progress) Approver() hosttools.Approver {
	for _, stream := range []any{p.in, p.w} {
		if _, ok := terminal(stream); !ok {
			return nil
		}
	}
	return hosttools.ApproverFunc(newAsker(p.in, p.w, p.Hold).approve)
}

// asker asks a person questions, one at a time.
type asker struct {
	in   io.Reader
	out  io.Writer
	hold func(bool) // suppresses other lines

	turn  chan struct{} // held while a question is open
	once  sync.Once
	lines chan string // typed lines; buffers one line; closed at the end of the input
}

func newAsker(in io.Reader, out io.Writer, hold func(bool)) *asker {
	return &asker{in: in, out: out, hold: hold, turn: make(chan struct{}, 1), lines: make(chan string, 1)}
}

// read reads lines until the process ends, because a read from a terminal cannot be canceled. It keeps at most one
// unexpected line, which forget drops before the next question.
func (a *asker) read() {
	defer close(a.lines)
	for s := bufio.NewScanner(a.in); s.Scan(); {
		select {
		case a.lines <- s.Text():
		default:
		}
	}
}

// typedAhead is the time to read input typed before a question.
const typedAhead = 100 * time.Millisecond

// forget drops input typed before a question, because it does not answer the question.
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

// question returns the text for a call. The arguments are JSON with escaped control characters. It removes other
// characters with a misleading effect on a terminal.
func question(r hosttools.ApprovalRequest) string {
	who := "Code"
	if r.Caller.Agent != "" {
		who = "Code of agent " + r.Caller.Agent
	}
	asks := sanitize.Line(fmt.Sprintf("%s asks to call %s.%s with", who, r.Server, r.Tool))
	return asks + "\n  " + sanitize.Line(string(r.Args)) +
		"\nAllow? y: yes, N: no, a: always allow this tool in this run > "
}

var errInputEnded = errors.New("terminal input ended")
