package workflow

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
)

// EventKind is the type of an Event.
type EventKind string

// Event kinds.
const (
	EventRunStarted   EventKind = "run_started"
	EventStepStarted  EventKind = "step_started"  // before each attempt
	EventStepFinished EventKind = "step_finished" // after each attempt
	EventStepSkipped  EventKind = "step_skipped"
	EventRunResumed   EventKind = "run_resumed"   // replaces run_started if the run was interrupted
	EventStepReplayed EventKind = "step_replayed" // the step ended before the interruption and is not run again
	EventStepRetry    EventKind = "step_retry"    // the step is retried after Delay
	EventStepProgress EventKind = "step_progress" // a part of an agent's conversation, or the loss of its recorded parts
	EventCleanup      EventKind = "cleanup"       // the run's sandboxes were closed; Error describes remaining sandboxes
	EventRunFinished  EventKind = "run_finished"
)

// Event describes the progress of a run for users. Events of one run are never concurrent; events of different runs may
// be.
type Event struct {
	Kind     EventKind     `json:"kind"`
	Time     time.Time     `json:"time"`
	RunID    string        `json:"run_id"`
	Workflow string        `json:"workflow"`
	Path     string        `json:"path,omitempty"` // path of the step, including the enclosing steps
	Step     string        `json:"step,omitempty"`
	Type     Type          `json:"type,omitempty"`
	Agent    string        `json:"agent,omitempty"` // for steps of type agent
	Visit    int           `json:"visit,omitempty"`
	Attempt  int           `json:"attempt,omitempty"`
	Repeats  bool          `json:"repeats,omitempty"` // step_started: repeats an attempt; step_progress: agent restarts
	Turns    int           `json:"turns,omitempty"`   // step_started with Repeats: number of recorded turns
	Lost     string        `json:"lost,omitempty"`    // why an agent cannot continue (step_progress, step_started)
	Status   Status        `json:"status,omitempty"`
	Outcome  Outcome       `json:"outcome,omitempty"`
	Duration time.Duration `json:"-"`              // duration of the attempt or the run; duration_ms in JSON
	Delay    time.Duration `json:"-"`              // step_retry; delay_ms in JSON
	Next     string        `json:"next,omitempty"` // step_finished: the next step, if it is not the next in order
	Error    *Error        `json:"error,omitempty"`
	Output   any           `json:"-"` // step_finished, step_replayed: output of the attempt as plain data; nil if none

	Evidence []sandbox.Evidence `json:"evidence,omitempty"` // step_finished, step_replayed: as in Entry
}

// Result is the outcome of a run and its output.
type Result struct {
	RunID    string        `json:"run_id"`
	Workflow string        `json:"workflow"`
	Outcome  Outcome       `json:"outcome"`
	Output   any           `json:"output"` // plain data; nil unless the run succeeded
	Error    *Error        `json:"error,omitempty"`
	Started  time.Time     `json:"started"`
	Duration time.Duration `json:"-"`     // duration_ms in JSON
	Steps    int           `json:"steps"` // number of attempts of steps, including nested steps
	// Evidence has an entry for each combination of isolation and settings under which the run's steps ran commands.
	Evidence []sandbox.Evidence `json:"evidence,omitempty"`
	// Outputs are the files listed in the workflow's `outputs`, by their path below the work directory. After a failed
	// run, Outputs contains the existing files. Outputs and Patch come from the sandbox the run's steps share. If the
	// steps share no sandbox, Outputs and Patch come from the run's only sandbox.
	Outputs patch.Tree `json:"-"`
	// Missing are the missing optional outputs.
	Missing []string `json:"missing,omitempty"`
	// Patch contains the run's changes to the directory copied into the workspace. It is nil if no directory was
	// copied, if the directory was copied to several sandboxes and the steps share none of them, or if the run was
	// resumed and Options.Results was not set.
	Patch *patch.Patch `json:"-"`
	// Workspace is the copied directory.
	Workspace string `json:"-"`
	// Unfinished is the reason why the run's results could not be collected. It is nil if the run has ended. An
	// unfinished run has no end in the journal and keeps the sandboxes, so Resume can try again. The owner of the
	// manager should call Detach, which keeps the sandboxes. Outcome, Output, and Error describe the end of the steps.
	Unfinished *Error `json:"unfinished,omitempty"`
	// Cleanup is the reason why sandboxes of the run may remain. It is nil if all sandboxes were closed or are
	// intentionally retained.
	Cleanup error `json:"-"`
}

// MarshalJSON encodes durations in milliseconds.
func (e Event) MarshalJSON() ([]byte, error) {
	type plain Event
	return json.Marshal(struct {
		plain
		DurationMS int64 `json:"duration_ms,omitempty"`
		DelayMS    int64 `json:"delay_ms,omitempty"`
	}{plain(e), e.Duration.Milliseconds(), e.Delay.Milliseconds()})
}

// failure returns the reason why the run failed or is unfinished. If the run succeeded, it returns nil.
func (r *Result) failure() *Error { return cmp.Or(r.Error, r.Unfinished) }

// MarshalJSON encodes durations in milliseconds, the names of the outputs, and the size of the patch.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	shown := struct {
		plain
		Outputs    []string    `json:"outputs,omitempty"`
		Patch      *patch.Stat `json:"patch,omitempty"`
		DurationMS int64       `json:"duration_ms"`
	}{plain(r), slices.Sorted(maps.Keys(r.Outputs)), nil, r.Duration.Milliseconds()}
	if r.Patch != nil {
		shown.Patch = new(r.Patch.Stat())
	}
	return json.Marshal(shown)
}
