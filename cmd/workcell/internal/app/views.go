package app

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// RunStates are the values of RunView.State, except runUnknown.
var RunStates = []string{
	RunQueued, RunRunning, RunInterrupted,
	string(workflow.Succeeded), string(workflow.Failed), string(workflow.Cancelled), string(workflow.TimedOut),
}

// RunView is a run for the command and the page.
type RunView struct {
	ID       string          `json:"id"`
	Workflow string          `json:"workflow"`
	State    string          `json:"state"` // queued, running, interrupted, or the outcome
	Started  time.Time       `json:"started"`
	Finished time.Time       `json:"finished,omitzero"`
	Step     string          `json:"step,omitempty"`     // path of the latest started step, before the end of the run
	Error    string          `json:"error,omitempty"`    // why the latest attempt or the run failed
	Usage    *workflow.Usage `json:"usage,omitempty"`    // total of the finished attempts
	CostUSD  *float64        `json:"cost_usd,omitempty"` // known cost of the finished attempts
}

// Took returns the duration of a run so far. It is zero unless the run is running or has finished.
func (r RunView) Took(now time.Time) time.Duration { return took(r.State, r.Started, r.Finished, now) }

func took(state string, started, finished, now time.Time) time.Duration {
	switch {
	case started.IsZero():
		return 0
	case !finished.IsZero():
		return finished.Sub(started)
	case state == RunRunning:
		return now.Sub(started)
	}
	return 0
}

// viewRun returns the view of a run. If its state is unknown, viewRun also returns an error.
func viewRun(ctx context.Context, j runstore.Store, r runstore.Run) (RunView, error) {
	state, err := RunState(ctx, j, r)
	if err != nil {
		state = runUnknown
	}
	v := RunView{ID: r.ID, Workflow: r.Workflow, State: state, Started: r.Started, Finished: r.Finished}
	v.Error, v.CostUSD = r.Error, r.CostUSD
	if r.Finished.IsZero() {
		v.Step = r.Step
	}
	if r.Usage != (workflow.Usage{}) {
		v.Usage = &r.Usage
	}
	return v, err
}

// RunQuery selects a page of runs, as runstore.Query does, and by State. An empty State selects all.
type RunQuery struct {
	State, Workflow, Text, Before string
	Limit                         int
}

// RunPage is a part of a list of runs.
type RunPage struct {
	Runs  []RunView
	Total int    // number of runs on all pages, at most runstore.MaxTotal; -1 for a state depending on processes
	Next  string // RunQuery.Before of the next page; empty for the last page
}

// ListRuns returns a page of runs, newest first.
func (a *App) ListRuns(ctx context.Context, j runstore.Store, q RunQuery) (RunPage, error) {
	page := RunPage{Runs: []RunView{}}
	find := runstore.Query{Limit: q.Limit, Before: q.Before, Workflow: q.Workflow, Text: q.Text}
	living := slices.Contains([]string{RunQueued, RunRunning, RunInterrupted}, q.State)
	switch {
	case living: // few runs have not finished
		find.Outcomes, find.Limit = []workflow.Outcome{""}, MaxRuns
	case q.State != "":
		find.Outcomes = []workflow.Outcome{workflow.Outcome(q.State)}
	}
	found, err := j.Runs(ctx, find)
	page.Total, page.Next = found.Total, found.Next
	if living {
		page.Total = -1
	}
	for i, r := range found.Runs {
		v, err := viewRun(ctx, j, r)
		if err != nil {
			a.Notice("cannot determine the state of run %s: %v", r.ID, err)
		}
		if !living || v.State == q.State {
			page.Runs = append(page.Runs, v)
		}
		if len(page.Runs) == q.Limit && i+1 < len(found.Runs) {
			page.Next = r.Cursor()
			break
		}
	}
	return page, err
}

// RunDetail is a run with the journal.
type RunDetail struct {
	RunView
	File    string           `json:"file,omitempty"` // workflow file
	Backend string           `json:"backend,omitempty"`
	Entries []workflow.Entry `json:"entries"` // journal

	Detached bool `json:"-"` // it was in the queue
	Waiting  bool `json:"-"` // a worker will continue it
}

// ShowRun returns a run by id or id prefix.
func (a *App) ShowRun(ctx context.Context, j runstore.Store, id string) (d RunDetail, err error) {
	r, err := FindRun(ctx, j, id)
	if err != nil {
		return d, err
	}
	if d.RunView, err = viewRun(ctx, j, r); err != nil {
		return d, err
	}
	if d.Entries, err = j.Entries(ctx, r.ID); err != nil {
		return d, err
	}
	d.CostUSD = costOf(d.Entries) // runs of older versions have it only there
	if n, err := readNote(r); err == nil {
		d.File, d.Backend, d.Detached = n.Workflow, n.Backend, n.Detached
	}
	if d.Detached && (d.State == RunInterrupted || d.State == RunQueued) {
		if d.Waiting, err = a.isQueued(ctx, r.ID); err != nil { // the rest of the run is known
			a.Logger().Warn("cannot read the queue", "error", err)
		}
	}
	return d, nil
}

// costOf returns the model cost of a run's coding agents, or nil if no cost is known.
func costOf(entries []workflow.Entry) (sum *float64) {
	for _, e := range entries {
		if e.CostUSD != nil {
			sum = cmp.Or(sum, new(float64))
			*sum += *e.CostUSD
		}
	}
	return sum
}

// StepView is an attempt of a step.
type StepView struct {
	Entry    workflow.Entry // the end of the attempt, or the start of an unfinished attempt
	State    string         // status of the step, RunInterrupted, or the run's state before the end of the attempt
	Started  time.Time      // zero for a skipped step
	Finished time.Time      // zero if it has not finished
}

// Took returns the duration of an attempt so far. It is zero if the attempt was interrupted or skipped.
func (s StepView) Took(now time.Time) time.Duration { return took(s.State, s.Started, s.Finished, now) }

// Steps returns the run's finished attempts in the order of the ends, and then the unfinished attempts.
func (d RunDetail) Steps() (list []StepView) {
	began := map[string]workflow.Entry{}
	for _, e := range d.Entries {
		switch e.Kind {
		case workflow.EventStepStarted:
			if cut, ok := began[e.Path]; ok && e.Repeats { // the attempt's process was killed
				list = append(list, StepView{Entry: cut, State: RunInterrupted, Started: cut.Time})
			}
			began[e.Path] = e
		case workflow.EventStepFinished:
			started := began[e.Path].Time
			list = append(list, StepView{Entry: e, State: string(e.Status), Started: started, Finished: e.Time})
			delete(began, e.Path)
		}
	}
	for _, e := range slices.SortedFunc(maps.Values(began), func(a, b workflow.Entry) int {
		return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.Path, b.Path))
	}) {
		list = append(list, StepView{Entry: e, State: d.State, Started: e.Time})
	}
	return list
}

// TranscriptOf selects a conversation by the path of the step. Visit and Attempt are zero to select all.
type TranscriptOf struct {
	Step           string
	Visit, Attempt int
}

// TranscriptPart is a part of an agent's conversation with a model.
type TranscriptPart struct {
	Visit   int       `json:"visit"`
	Attempt int       `json:"attempt"`
	Time    time.Time `json:"time"`
	transcript.Part
}

// Transcript returns the recorded conversations of a step, each with the answer of the attempt.
func (a *App) Transcript(ctx context.Context, j runstore.Store, id string, of TranscriptOf) ([]TranscriptPart, error) {
	r, err := FindRun(ctx, j, id)
	if err != nil {
		return nil, err
	}
	parts, err := j.Transcript(ctx, r.ID, of.Step)
	if err != nil {
		return nil, err
	}
	entries, err := j.Entries(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Kind == workflow.EventStepFinished && e.Path == of.Step && e.Has {
			parts = append(parts, e)
		}
	}
	slices.SortStableFunc(parts, func(a, b workflow.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	var list []TranscriptPart
	readers := map[[2]int]*transcript.Reader{}
	for _, e := range parts {
		at := [2]int{e.Visit, e.Attempt}
		if of.Visit != 0 && of.Visit != e.Visit || of.Attempt != 0 && of.Attempt != e.Attempt {
			continue
		}
		if e.Kind == workflow.EventStepFinished {
			if readers[at] != nil { // otherwise no other part is left
				list = append(list, TranscriptPart{e.Visit, e.Attempt, e.Time, transcript.Answer(e.Output)})
			}
			continue
		}
		if readers[at] == nil {
			readers[at] = &transcript.Reader{}
		}
		for _, p := range readers[at].Read(e.Conversation) {
			list = append(list, TranscriptPart{e.Visit, e.Attempt, e.Time, p})
		}
	}
	if list == nil {
		return nil, Fail(ExitNotFound, fmt.Errorf("no conversation of step %s in run %s", of.Step, r.ID),
			"only conversations with tool calls are recorded; to keep them longer, set retention.transcripts; "+
				"to list the steps, run `workcell runs show "+r.ID+"`")
	}
	return list, nil
}

// Age returns a duration in the largest unit, for example "5m" or "3d".
func Age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return d.Truncate(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/(time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/(time.Hour))
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}
