// Package drivers contains the known coding agents, with their tested images and versions. It runs Claude Code, Codex,
// Gemini CLI, and OpenCode. Each has a file with the command line of the CLI and the format of the output. It also runs
// any other program.
package drivers

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/sandbox"
)

// Driver runs a CLI.
type Driver struct {
	Version string // CLI version for which the driver was written

	name    string
	dialect model.Dialect            // required dialect of the model; if empty, prepare selects the model
	args    []argument               // supported Task.Args
	codes   map[int]executor.Outcome // by exit code
	prepare func(task) (executor.Invocation, error)
	parser  func() executor.Parser
}

// argument is a name for Task.Args, with the supported values: "low, high".
type argument struct{ name, values string }

// checkArgs returns an error for the first of a task's arguments that a driver does not support.
func checkArgs(driver string, args map[string]string, known ...argument) error {
	var has []string
	for _, k := range known {
		has = append(has, fmt.Sprintf("%s (%s)", k.name, k.values))
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		is := func(k argument) bool {
			return k.name == name && slices.Contains(strings.Split(k.values, ", "), args[name])
		}
		switch {
		case len(known) == 0:
			return fmt.Errorf("%w: %s has no argument %s", backend.ErrInvalid, driver, name)
		case !slices.ContainsFunc(known, is):
			return fmt.Errorf("%w: %s has no argument %s: %q; it has %s", backend.ErrInvalid, driver, name, args[name],
				strings.Join(has, " and "))
		}
	}
	return nil
}

// task is a task after the common checks of all drivers.
type task struct {
	executor.Task
	executor.Inside
	model executor.Endpoint
}

// Named returns the driver of "claude", "codex", "gemini", or "opencode". It returns nil for any other name.
func Named(name string) *Driver {
	all := map[string]func() *Driver{"claude": claude, "codex": codex, "gemini": gemini, "opencode": openCode}
	if driver, ok := all[name]; ok {
		return driver()
	}
	return nil
}

// Name returns the name of the CLI.
func (d *Driver) Name() string { return d.name }

// Prepare implements executor.Driver.
func (d *Driver) Prepare(t executor.Task, in executor.Inside) (inv executor.Invocation, err error) {
	endpoint, ok := in.Models[d.dialect]
	if d.dialect != "" && !ok {
		return inv, fmt.Errorf("%w: %s requires a model with the %s API", backend.ErrUnsupported, d.name, d.dialect)
	}
	if err := checkArgs(d.name, t.Args, d.args...); err != nil {
		return inv, err
	}
	return d.prepare(task{t, in, endpoint})
}

// Outcome implements executor.Driver.
func (d *Driver) Outcome(seen executor.Seen, exit sandbox.ExecStatus) executor.Outcome {
	return executor.Judge(seen, exit, d.codes)
}

// Parser implements executor.Driver.
func (d *Driver) Parser() executor.Parser { return d.parser() }

// jsonLines parses JSON lines. A line without events becomes a raw event.
type jsonLines[T any] func(T) []executor.Event

// Line implements executor.Parser.
func (read jsonLines[T]) Line(b []byte) []executor.Event {
	var line T
	if json.Unmarshal(b, &line) == nil {
		if events := read(line); events != nil {
			return events
		}
	}
	return []executor.Event{executor.Raw(b)}
}

// toolTime is the maximum time of a host tool call, which may wait for an approval.
const toolTime = 20 * time.Minute

// option returns a flag with a value, or nil for an empty value.
func option(flag, value string) []string {
	if value == "" {
		return nil
	}
	return []string{flag, value}
}

// session returns the flags to resume a session, or to start a session with a known id.
func (t task) session() []string {
	if t.ResumeID != "" {
		return []string{"--resume", t.ResumeID}
	}
	return []string{"--session-id", t.NewID}
}

func text(kind executor.Kind, s string) []executor.Event {
	return []executor.Event{{Kind: kind, Text: s}}
}

func toolStart(id, server, name string, input json.RawMessage) executor.Event {
	return executor.Event{Kind: executor.KindToolStart, Tool: &executor.ToolUse{
		ID: id, Name: name, Server: server, Input: executor.CutInput(input),
	}}
}

// hostTool splits the name of a tool. The names of host tools begin with prefix.
func hostTool(name, prefix string) (server, tool string) {
	if rest, ok := strings.CutPrefix(name, prefix); ok {
		return executor.Server, rest
	}
	return "", name
}

func toolEnd(id, output string, failed bool) executor.Event {
	return executor.Event{Kind: executor.KindToolEnd, Tool: &executor.ToolUse{
		ID: id, Output: executor.CutText(output), Failed: failed,
	}}
}

func ended(e executor.End) executor.Event { return executor.Event{Kind: executor.KindEnd, End: &e} }
