package drivers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
)

// Custom runs any program. The command line is a template. The program's output is the answer, events as JSON lines, or
// the output format of a CLI with a driver. Task.Args must be empty.
type Custom struct {
	// Argv is the command line with placeholders. Without {prompt}, the program gets the prompt on standard input. Without
	// {system}, the system prompt is put before the prompt. Without {schema}, the schema is put after the prompt.
	Argv []string
	// JSON means the program prints executor.Event values as JSON lines. Otherwise, the output is the answer.
	JSON bool
	// Like is the driver of a CLI with the same output format, or nil.
	Like executor.Driver
}

// Name returns "custom".
func (Custom) Name() string { return "custom" }

// Prepare implements executor.Driver.
func (d Custom) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	for name := range t.Args {
		return executor.Invocation{}, fmt.Errorf("%w: custom has no argument %s; add it to argv", backend.ErrInvalid, name)
	}
	if t.MaxTurns > 0 && !d.JSON && !rules.HasArg(d.Argv, rules.ArgMaxTurns) {
		return executor.Invocation{}, fmt.Errorf("%w: max_turns requires {max_turns} in argv or json events",
			backend.ErrUnsupported)
	}
	prompt := t.Prompt
	if !rules.HasArg(d.Argv, rules.ArgSchema) {
		prompt = executor.WithSchema(prompt, t.Schema)
	}
	if !rules.HasArg(d.Argv, rules.ArgSystem) {
		prompt = executor.WithSystem(t.System, prompt)
	}
	values := map[string]string{
		rules.ArgPrompt: prompt, rules.ArgSystem: t.System, rules.ArgModel: t.Model, rules.ArgSchema: string(t.Schema),
		rules.ArgResume: t.ResumeID, rules.ArgWorkdir: in.Workdir, rules.ArgHome: in.Settings,
	}
	if t.MaxTurns > 0 {
		values[rules.ArgMaxTurns] = strconv.Itoa(t.MaxTurns)
	}
	line, err := rules.FillArgs(d.Argv, values)
	if err != nil {
		return executor.Invocation{}, fmt.Errorf("%w: custom: %v", backend.ErrInvalid, err)
	}
	env := executor.Environment(t, in)
	env["WORKCELL_RESUME"], env["WORKCELL_MCP"] = t.ResumeID, strings.Join(in.MCP, " ")
	inv := executor.Invocation{Argv: line, Env: env, Keep: []string{".sessions"}, Late: true, CountTurns: d.JSON}
	inv.Text = !d.JSON && d.Like == nil
	if !rules.HasArg(d.Argv, rules.ArgPrompt) {
		inv.Stdin = []byte(prompt)
	}
	return inv, nil
}

// Outcome implements executor.Driver. A program with exit code 0 has answered.
func (d Custom) Outcome(seen executor.Seen, exit sandbox.ExecStatus) executor.Outcome {
	if d.Like != nil {
		return d.Like.Outcome(seen, exit)
	}
	o := executor.Judge(seen, exit, nil)
	if o == executor.Unparsable && (!d.JSON || seen.Events > 0) {
		return executor.Completed
	}
	return o
}

// Parser implements executor.Driver.
func (d Custom) Parser() executor.Parser {
	switch {
	case d.Like != nil:
		return d.Like.Parser()
	case d.JSON:
		return events{}
	}
	return &answer{}
}

// answer parses output without events.
type answer struct{ began bool }

// Line implements executor.Parser.
func (p *answer) Line(b []byte) []executor.Event {
	e := executor.Event{Kind: executor.KindText, Text: string(b), Delta: p.began}
	if p.began {
		e.Text = "\n" + e.Text
	}
	p.began = true
	return []executor.Event{e}
}

// events parses JSON events.
type events struct{}

// Line implements executor.Parser. An incomplete event becomes a raw event.
func (events) Line(b []byte) []executor.Event {
	var e executor.Event
	if json.Unmarshal(b, &e) != nil || !whole(e) {
		return []executor.Event{executor.Raw(b)}
	}
	if e.Tool != nil {
		e.Tool.Input, e.Tool.Output = executor.CutInput(e.Tool.Input), executor.CutText(e.Tool.Output)
	}
	return []executor.Event{e}
}

// whole reports whether an event has the required fields of its kind.
func whole(e executor.Event) bool {
	switch e.Kind {
	case executor.KindText, executor.KindThinking, executor.KindNotice:
		return e.Text != ""
	case executor.KindSession:
		return e.Session != ""
	case executor.KindToolStart, executor.KindToolEnd:
		return e.Tool != nil && e.Tool.ID != ""
	case executor.KindUsage:
		u := e.Usage
		return u != nil && min(u.Input, u.Output, u.CacheRead, u.CacheWrite) >= 0
	case executor.KindEnd:
		return e.End != nil && said(e.End.Outcome)
	}
	return false
}

// said reports whether a program may report this outcome. Run determines the other outcomes.
func said(o executor.Outcome) bool {
	return slices.Contains([]executor.Outcome{
		executor.Completed, executor.MaxTurns, executor.Refused, executor.ModelError, executor.AuthError, executor.Crashed,
	}, o)
}
