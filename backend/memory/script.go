package memory

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// Op is the operation of a Call.
type Op string

// Operations of the driver and of the guest agent.
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
	OpPut  Op = "Put"  // writes a file
	OpRead Op = "Read" // reads a file
)

// Call is a recorded call.
type Call struct {
	Op      Op
	Sandbox string  // session ID; empty for List and Ping
	Image   string  // set for Create
	Path    string  // set for Put and Read; relative to the workspace
	Command Command // set for Exec
}

// Command is a command to run.
type Command struct {
	Sandbox string   // session ID
	Argv    []string // arguments as passed; for a shell command, the third is the command line
	Dir     string   // absolute path
	Env     []string // the complete environment, as "NAME=value"
	Stdin   []byte

	files *files
}

// Line returns the command line if the command is a shell with -c. Otherwise it returns the arguments, separated by
// spaces.
func (c Command) Line() string {
	if n := len(c.Argv) - 2; n > 0 && slices.ContainsFunc(c.Argv[:n], isShell) && isLineOption(c.Argv[n]) {
		return c.Argv[n+1]
	}
	return strings.Join(c.Argv, " ")
}

// isShell and isLineOption match a shell's name and the option before a command line, for example -c or -lc.
var (
	isShell      = regexp.MustCompile(`(^|/)(|a|ba|da|z)sh$`).MatchString
	isLineOption = regexp.MustCompile(`^-[a-z]*c$`).MatchString
)

// File returns the contents of a file in the workspace and reports whether the file exists.
func (c Command) File(path string) (contents string, ok bool) {
	n, err := c.files.file(path)
	if err != nil {
		return "", false
	}
	return string(n.data), true
}

// Answer is the result of a command.
type Answer struct {
	Stdout, Stderr string
	ExitCode       int
	// Files are written before the command exits. The map contains contents by path. A path is relative to the workspace,
	// or absolute inside it. If a file cannot be written, the command exits with code 1 and writes the reason to standard
	// error.
	Files map[string]string
	// Takes is how long the command runs after its output. A timeout or a kill may end the command earlier.
	Takes time.Duration
	// Lost makes the sandbox disappear; the command gets no answer.
	Lost bool
}

// On sets the answer for commands whose Line is line. If several answers match a command, the newest applies.
func (b *Backend) On(line string, a Answer) {
	b.Script(func(c Command) (Answer, bool) { return a, c.Line() == line })
}

// OnPrefix sets the answer for commands whose Line begins with prefix.
func (b *Backend) OnPrefix(prefix string, a Answer) {
	b.Script(func(c Command) (Answer, bool) { return a, strings.HasPrefix(c.Line(), prefix) })
}

// Script registers f as a source of answers. If f returns true for a command, f's answer applies. f may be called
// concurrently.
func (b *Backend) Script(f func(Command) (Answer, bool)) {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	b.e.answers = append(b.e.answers, f)
}

// Fault registers f, which the backend calls before every call of the driver. If f returns an error, the call fails
// with this error. If f waits, the call is slow. f must return when the context ends. To remove f, pass nil. Errors of
// real drivers wrap, for example, backend.ErrUnavailable, ErrCapacity, or ErrImage. f is not called for operations
// inside a sandbox.
func (b *Backend) Fault(f func(context.Context, Call) error) {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	b.e.fault = f
}

// Lose removes the sandbox of a session and its files, as if the engine had been reset. It reports whether the sandbox
// existed.
func (b *Backend) Lose(sessionID string) bool {
	b.e.mu.Lock()
	s := b.e.of(sessionID)
	b.e.mu.Unlock()
	if s != nil {
		b.e.remove(s.info.ID, true)
	}
	return s != nil
}

// Calls returns all recorded calls, in order.
func (b *Backend) Calls() []Call {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	return slices.Clone(b.e.calls)
}

// Commands returns the Line of every recorded command, in order.
func (b *Backend) Commands() []string {
	var lines []string
	for _, c := range b.Calls() {
		if c.Op == OpExec {
			lines = append(lines, c.Command.Line())
		}
	}
	return lines
}

// note records a call.
func (e *engine) note(c Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, c)
}

// answer returns the answer of the script.
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
