package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/runtrace"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/workflow"
)

// Bounds of a page. A longer timeline shows only the rows of the selected step.
const (
	maxRows     = 500
	rowsPerStep = 200
	maxShown    = 32 << 10 // bytes of one stream or value in the pane
)

// width is the width of the bars' area, and minBar of the shortest bar, in the units of the pictures.
const (
	width  = 1000
	minBar = 6
)

// timeline contains the rows of a run: attempts of steps from the journal, and below them the spans of the trace.
type timeline struct {
	Rows   []row
	Ticks  []string // times at the start, at the quarters, and at the end
	Pane   *pane    // nil if no row is selected
	Folded bool     // only the selected step has spans
	Follow bool     // the selection follows the run
}

// row is an attempt of a step or a span.
type row struct {
	ID          string
	Depth       int
	Kind        string // step, agent, model, tool, or other
	Label, Note string
	State       string
	Took        time.Duration
	Start       time.Time
	X, W        int // of the bar
	Live        bool
	Selected    bool
	More        int    // number of hidden rows
	Next        string // from parameter for the next of these rows

	step *app.StepView
	span *runtrace.Row
	part *app.TranscriptPart // of the conversation of a running agent
	done any                 // result of the tool call in part
}

// Source returns the source of the row's facts.
func (r row) Source() string {
	if r.span == nil {
		return "journal"
	}
	return "trace"
}

// newTimeline returns the timeline. at is the ID of the selected row. If it is empty, the first row to look at is
// selected: the failed step, or the running step.
func newTimeline(
	h head, traces []*runtrace.Trace, talks map[string][]app.TranscriptPart, all bool, at, from string,
) timeline {
	t := timeline{Follow: at == ""}
	spans := spansByStep(traces, all)
	steps := h.Steps()
	slices.SortStableFunc(steps, func(a, b app.StepView) int { return begin(a).Compare(begin(b)) })
	total := len(steps)
	for _, list := range spans {
		total += len(list)
	}
	t.Folded = total > maxRows
	for _, st := range steps {
		step := stepRow(st, h)
		rows := talkRows(talks[step.ID], step, h.Now)
		if list := spans[step.ID]; list != nil {
			rows = spanRows(list, step.Depth)
		}
		if t.Folded {
			first, _ := strconv.Atoi(from) // anything else means the first row
			if step.ID != at && !slices.ContainsFunc(rows, func(r row) bool { return r.ID == at }) {
				first = len(rows)
			}
			first = min(max(first, 0), len(rows))
			last := min(first+rowsPerStep, len(rows))
			if step.More = len(rows) - (last - first); last < len(rows) {
				step.Next = strconv.Itoa(last)
			}
			rows = rows[first:last]
		}
		t.Rows = append(append(t.Rows, step), rows...)
	}
	t.place(h)
	t.choose(h, at)
	return t
}

func begin(s app.StepView) time.Time {
	if s.Started.IsZero() {
		return s.Entry.Time
	}
	return s.Started
}

// spansByStep returns the spans below each attempt, with depths relative to it.
func spansByStep(traces []*runtrace.Trace, all bool) map[string][]runtrace.Row {
	type step struct {
		id    string
		depth int
	}
	out := map[string][]runtrace.Row{}
	for _, t := range traces {
		var above []step
		for _, r := range t.Rows(all) {
			for len(above) > 0 && above[len(above)-1].depth >= r.Depth {
				above = above[:len(above)-1]
			}
			if a := r.Attributes; r.Name == telemetry.SpanWorkflowStep {
				id := a[string(telemetry.KeyStepPath)] + "@" + a[string(telemetry.KeyVisit)] + "." + a[string(telemetry.KeyAttempt)]
				above = append(above, step{id, r.Depth})
			} else if len(above) > 0 {
				at := above[len(above)-1]
				r.Depth -= at.depth
				out[at.id] = append(out[at.id], r)
			}
		}
	}
	return out
}

func stepID(e workflow.Entry) string { return fmt.Sprintf("%s@%d.%d", e.Path, e.Visit, e.Attempt) }

func stepRow(st app.StepView, h head) row {
	e := st.Entry
	r := row{
		ID: stepID(e), Depth: strings.Count(e.Path, "/"), Kind: "step", Label: e.Path,
		State: st.State, Start: begin(st), Took: st.Took(h.Now), Live: st.State == app.RunRunning, step: &st,
	}
	r.Note = cmp.Or(e.Agent, string(e.Type))
	if e.Visit > 1 || e.Attempt > 1 {
		r.Note += fmt.Sprintf(" · iteration %d, attempt %d", e.Visit, e.Attempt)
	}
	if e.Usage != nil {
		r.Note += " · " + usageText(e.Usage) + " tokens"
	}
	return r
}

func spanRows(list []runtrace.Row, depth int) (rows []row) {
	kinds := map[runtrace.Kind]string{
		runtrace.Agent: "agent", runtrace.LLM: "model", runtrace.Tool: "tool", runtrace.Other: "other",
	}
	for _, sp := range list {
		label := strings.TrimPrefix(strings.TrimPrefix(sp.Label, semconv.ExecuteTool+" "), semconv.InvokeAgent+" ")
		r := row{ID: sp.ID, Depth: depth + sp.Depth, Kind: kinds[sp.Kind], Label: label, Start: sp.Start, span: &sp}
		r.Took = sp.End.Sub(sp.Start)
		if sp.Failed {
			r.State = string(workflow.StatusFailed)
		}
		rows = append(rows, r)
	}
	return rows
}

// talkRows returns the answers and tool calls of a running attempt. A trace has them only after they have ended.
func talkRows(parts []app.TranscriptPart, step row, now time.Time) (rows []row) {
	calls := map[string]int{} // rows by reference
	for i, p := range parts {
		r := row{ID: fmt.Sprintf("%s/%d", step.ID, i), Depth: step.Depth + 1, Start: p.Time, part: &p}
		at, called := calls[p.Ref]
		switch {
		case p.Role == "model" && p.Tool != "":
			r.Kind, r.Label, r.Took, r.Live = "tool", p.Tool, now.Sub(p.Time), true
			calls[p.Ref] = len(rows)
		case p.Role == "model" && p.Text != "" && !p.Reasoning:
			r.Kind, r.Label = "model", sanitize.OneLine(p.Text, 80)
		case p.Role == "tool" && called:
			rows[at].Took, rows[at].Live, rows[at].done = p.Time.Sub(rows[at].Start), false, p.Output
			continue
		default:
			continue
		}
		rows = append(rows, r)
	}
	return rows
}

// place computes the bars.
func (t *timeline) place(h head) {
	start, end := h.Started, h.Finished
	if h.Live() {
		end = h.Now
	}
	for _, r := range t.Rows {
		if r.Start.Before(start) {
			start = r.Start
		}
		if at := r.Start.Add(r.Took); at.After(end) {
			end = at
		}
	}
	whole := max(end.Sub(start), time.Millisecond)
	for i := range t.Rows {
		r := &t.Rows[i]
		r.X, r.W = min(bar(r.Start.Sub(start), whole), width-minBar), max(bar(r.Took, whole), minBar)
	}
	t.Ticks = []string{"0", took(whole / 4), took(whole / 2), took(whole * 3 / 4)}
}

// bar returns the width of a part. A product of integers would overflow after 106 days.
func bar(part, whole time.Duration) int { return int(width * (part.Seconds() / whole.Seconds())) }

// choose selects a row and fills the pane.
func (t *timeline) choose(h head, at string) {
	failed := h.State != app.RunRunning && h.State != string(workflow.Succeeded)
	for i, r := range slices.Backward(t.Rows) {
		if r.ID == at || at == "" && r.step != nil &&
			(r.Live || failed && r.State == string(workflow.StatusFailed) && !r.step.Entry.Retry) {
			t.Rows[i].Selected = true
			t.Pane = newPane(t.Rows[i])
			return
		}
	}
}

// pane shows one row in detail.
type pane struct {
	row
	Step    *app.StepView
	Streams []stream
	Values  []value
	Facts   [][2]string
}

// value is text or JSON.
type value struct {
	Name, Shown string
	Cut         int    // number of hidden bytes
	Whole       string // URL of the whole value; empty if there is none
}

func newValue(name, text, whole string) value { return cutValue(name, text, whole, maxShown) }

func cutValue(name, text, whole string, most int) value {
	v := value{Name: name, Shown: text, Whole: whole}
	if v.Cut = max(len(text)-most, 0); v.Cut > 0 {
		v.Shown = text[:most]
	}
	return v
}

// stream is the end of a command's output.
type stream struct {
	Name  string
	Lines []line
	Cut   int // number of hidden bytes
	Whole string
}

func newPane(r row) *pane {
	p := &pane{row: r, Step: r.step}
	switch {
	case r.span != nil:
		for _, key := range slices.Sorted(maps.Keys(r.span.Attributes)) {
			p.Facts = append(p.Facts, [2]string{key, r.span.Attributes[key]})
		}
		for _, e := range r.span.Events {
			p.Facts = append(p.Facts, [2]string{"event", e})
		}
	case r.part != nil && r.part.Tool == "":
		p.Values = []value{newValue("Answer", r.part.Text, "")}
	case r.part != nil:
		if p.Values = []value{newValue("Arguments", jsonText(r.part.Input), "")}; !r.Live {
			p.Values = append(p.Values, newValue("Result", jsonText(r.done), ""))
		}
	case r.step.Entry.Has:
		p.addOutput(r.step.Entry)
	}
	return p
}

func (p *pane) addOutput(e workflow.Entry) {
	fields, _ := e.Output.(map[string]any)
	if e.Type != workflow.TypeExec || fields == nil {
		p.Values = []value{newValue("Output", jsonText(e.Output), rawURL(e, "output"))}
		return
	}
	if code := fields["exit_code"]; code != nil {
		p.Facts = append(p.Facts, [2]string{"exit code", fmt.Sprint(code)})
	}
	for _, name := range []string{"stderr", "stdout"} {
		if text, _ := fields[name].(string); text != "" {
			from := max(len(text)-maxShown, 0)
			p.Streams = append(p.Streams, stream{name, outputLines(text[from:]), from, rawURL(e, name)})
		}
	}
}
