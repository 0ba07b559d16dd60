package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// Op is what a Call asked for.
type Op string

// Calls of the driver, and of the guest in a sandbox.
const (
	OpCreate Op = "Create"
	OpGet    Op = "Get"
	OpList   Op = "List"
	OpStart  Op = "Start"
	OpStop   Op = "Stop"
	OpRemove Op = "Remove"
	OpDial   Op = "Dial"
	OpPing   Op = "Ping"

	OpExec Op = "Exec"
	OpPut  Op = "Put"  // a file was written
	OpRead Op = "Read" // a file was read
)

// Call is a call that the backend got.
type Call struct {
	Op      Op
	Sandbox string  // session id; empty for List and Ping
	Image   string  // of Create
	Path    string  // of Put and Read, below the workspace
	Command Command // of Exec
}

// Command is a command that was to run.
type Command struct {
	Sandbox string   // session id
	Argv    []string // as it was given; a shell's line is its third
	Dir     string   // absolute
	Env     []string // "NAME=value", all of it
	Stdin   []byte

	files *files
}

// Line returns the line of a shell that was given one with -c, else the arguments with spaces between them.
func (c Command) Line() string {
	if n := len(c.Argv); n >= 3 && strings.HasPrefix(c.Argv[n-2], "-") && strings.HasSuffix(c.Argv[n-2], "c") {
		return c.Argv[n-1]
	}
	return strings.Join(c.Argv, " ")
}

// File returns what a file of the workspace holds, and whether there is one.
func (c Command) File(path string) (contents string, ok bool) {
	n, err := c.files.file(path)
	if err != nil {
		return "", false
	}
	return string(n.data), true
}

// Answer is what becomes of a command.
type Answer struct {
	Stdout, Stderr string
	ExitCode       int
	// Files are written before the command ends: contents by path, relative to the workspace or absolute in it. One that
	// cannot be written ends the command with exit code 1 and the reason on standard error.
	Files map[string]string
	// Takes is how long the command runs after its output; its timeout and whoever kills it may end it before.
	Takes time.Duration
	// Lost has the sandbox vanish in place of an answer.
	Lost bool
}

// On answers commands whose Line is line. Of several answers to a command the newest counts.
func (b *Backend) On(line string, a Answer) {
	b.Script(func(c Command) (Answer, bool) { return a, c.Line() == line })
}

// OnPrefix answers commands whose Line begins with prefix.
func (b *Backend) OnPrefix(prefix string, a Answer) {
	b.Script(func(c Command) (Answer, bool) { return a, strings.HasPrefix(c.Line(), prefix) })
}

// Script has f answer the commands for which it returns true. f may be called concurrently.
func (b *Backend) Script(f func(Command) (Answer, bool)) {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	b.e.answers = append(b.e.answers, f)
}

// Fault has f asked before every call of the driver, by Op: its error is what the call returns, and
// when it waits the call is slow. f must return when its context ends; nil removes it. Errors that drivers return wrap
// backend.ErrUnavailable, ErrCapacity, ErrImage and others. What goes on inside a sandbox is not asked about.
func (b *Backend) Fault(f func(context.Context, Call) error) {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	b.e.fault = f
}

// Lose takes the sandbox of a session away, with its files, as an engine does that was reset. It reports whether there
// was one.
func (b *Backend) Lose(sessionID string) bool {
	b.e.mu.Lock()
	s := b.e.of(sessionID)
	b.e.mu.Unlock()
	if s != nil {
		b.e.remove(s.info.ID, true)
	}
	return s != nil
}

// Calls returns all calls until now, in order.
func (b *Backend) Calls() []Call {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	return slices.Clone(b.e.calls)
}

// Commands returns the Line of every command until now, in order.
func (b *Backend) Commands() []string {
	var lines []string
	for _, c := range b.Calls() {
		if c.Op == OpExec {
			lines = append(lines, c.Command.Line())
		}
	}
	return lines
}

// record notes a call and has its fault happen.
func (e *engine) record(ctx context.Context, c Call) error {
	e.note(c)
	e.mu.Lock()
	fault := e.fault
	e.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(ctx, c)
}

func (e *engine) note(c Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, c)
}

// answer asks the script.
func (e *engine) answer(c Command) Answer {
	e.mu.Lock()
	answers := slices.Clone(e.answers)
	e.mu.Unlock()
	for _, f := range slices.Backward(answers) {
		if a, ok := f(c); ok {
			return a
		}
	}
	missing := fmt.Sprintf("memory: no answer for this command; add b.On(%q, memory.Answer{…})\n", c.Line())
	return Answer{ExitCode: 127, Stderr: missing}
}

var _ backend.SandboxBackend = (*Backend)(nil)
