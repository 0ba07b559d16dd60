package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// runProgress shows a run's steps.
type runProgress struct {
	p *progress

	mu      sync.Mutex // guards running
	running []string   // steps under way, oldest first
}

// event is workflow.Options.OnEvent.
func (r *runProgress) event(ev workflow.Event) {
	switch ev.Kind {
	case workflow.EventRunStarted:
		r.p.Line("run %s of %s", ev.RunID, ev.Workflow)
	case workflow.EventRunResumed:
		r.p.Line("run %s of %s goes on", ev.RunID, ev.Workflow)
	case workflow.EventStepReplayed:
		r.p.Line("  %-26s done before", ev.Path)
	case workflow.EventStepStarted:
		if ev.Repeats {
			r.p.Line("  %-26s again: it was under way when the run was interrupted", ev.Path)
		}
		r.started(ev)
	case workflow.EventStepFinished:
		r.finished(ev)
	case workflow.EventStepSkipped:
		r.p.Line("  %-26s skipped", ev.Path)
	case workflow.EventStepRetry:
		r.p.Line("  %-26s again in %s", ev.Path, ev.Delay)
	case workflow.EventCleanup:
		if ev.Error != nil {
			r.p.Line("sandboxes may be left behind: %s; `workcell sessions ls` shows them", ev.Error.Message)
		}
	case workflow.EventRunFinished:
		r.p.Status("")
		r.p.Line("%s after %s", ev.Outcome, short(ev.Duration))
	}
}

// started announces steps that take a while; the others are over before it could be read.
func (r *runProgress) started(ev workflow.Event) {
	if !slow(ev.Type) {
		return
	}
	what := string(ev.Type)
	if ev.Agent != "" {
		what += " " + ev.Agent
	}
	if !r.p.live {
		r.p.Line("  %-26s %s", ev.Path, what)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, ev.Path)
	r.show()
}

func (r *runProgress) finished(ev workflow.Event) {
	word := "ok"
	if ev.Status != workflow.StatusSucceeded {
		word = string(ev.Status)
	}
	if slow(ev.Type) {
		word += " after " + short(ev.Duration)
	}
	if ev.Next != "" {
		word += ", on to " + ev.Next
	}
	if ev.Error != nil {
		word += ": " + clip(sanitize.Line(ev.Error.Message), 300)
	}
	r.p.Line("  %-26s %s", ev.Path, word)
	if ev.Status == workflow.StatusFailed && ev.Type == workflow.TypeExec {
		for _, line := range lastWords(ev.Output) {
			r.p.Line("    | %s", line)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, path := range r.running {
		if path == ev.Path {
			r.running = append(r.running[:i], r.running[i+1:]...)
			break
		}
	}
	r.show()
}

// tool shows an agent's tool calls: what it does now on the live line, what it did in a line that stays.
func (r *runProgress) tool(agent string, e tools.ToolEvent) {
	if !e.Done {
		return
	}
	word := "ok"
	if e.Failure != "" {
		word = e.Failure
	}
	r.p.Line("    %s: %s %s after %s", agent, e.Tool, word, short(e.Duration))
}

// show puts the steps under way on the live line; mu is held.
func (r *runProgress) show() {
	r.p.Status(strings.Join(r.running, ", "))
}

// slow reports whether steps of a type do more than decide.
func slow(t workflow.Type) bool {
	switch t {
	case workflow.TypeAgent, workflow.TypeExec, workflow.TypeParallel, workflow.TypeForEach:
		return true
	}
	return false
}

// short rounds a duration for people.
func short(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return fmt.Sprint(d.Round(100 * time.Millisecond))
}

// What is shown of what a failed command wrote.
const (
	lastWordsLines = 10
	lastWordsWidth = 200 // runes of a line
)

// lastWords returns the last lines that a command of a workflow wrote, by the output of its step: of standard error, else of
// standard output.
func lastWords(output any) []string {
	fields, _ := output.(map[string]any)
	text := ""
	for _, stream := range []string{"stderr", "stdout"} {
		if s, _ := fields[stream].(string); strings.TrimSpace(s) != "" {
			text = strings.TrimRight(s, " \t\r\n")
			break
		}
	}
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-lastWordsLines):]
	for i, line := range lines {
		lines[i] = clip(strings.TrimRight(line, "\r"), lastWordsWidth)
	}
	return lines
}
