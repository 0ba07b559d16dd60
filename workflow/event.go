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

// EventKind is the kind of an Event.
type EventKind string

// Kinds of events.
const (
	EventRunStarted   EventKind = "run_started"
	EventStepStarted  EventKind = "step_started"  // before each attempt
	EventStepFinished EventKind = "step_finished" // after each attempt
	EventStepSkipped  EventKind = "step_skipped"
	EventRunResumed   EventKind = "run_resumed"   // in place of run_started, in a run that was interrupted
	EventStepReplayed EventKind = "step_replayed" // ended before the run was interrupted and is not run again
	EventStepRetry    EventKind = "step_retry"    // the step is tried again after Delay
	EventStepProgress EventKind = "step_progress" // of an agent's conversation; an event when what was recorded of it is of no use any more
	EventCleanup      EventKind = "cleanup"       // the run's sandboxes were closed; Error names what was left behind
	EventRunFinished  EventKind = "run_finished"
)

// Event describes the progress of a run, for a person to read. Events of one run never overlap; those of different runs
// may.
type Event struct {
	Kind     EventKind     `json:"kind"`
	Time     time.Time     `json:"time"`
	RunID    string        `json:"run_id"`
	Workflow string        `json:"workflow"`
	Path     string        `json:"path,omitempty"` // the step with what it is part of
	Step     string        `json:"step,omitempty"`
	Type     Type          `json:"type,omitempty"`
	Agent    string        `json:"agent,omitempty"` // of steps of type agent
	Visit    int           `json:"visit,omitempty"`
	Attempt  int           `json:"attempt,omitempty"`
	Repeats  bool          `json:"repeats,omitempty"` // step_started: it was under way when the run was interrupted; step_progress: the agent begins again
	Turns    int           `json:"turns,omitempty"`   // step_started that repeats: the turns of the agent behind which it continues
	Lost     string        `json:"lost,omitempty"`    // step_started that repeats, step_progress: why an agent begins, or would begin, again from its start
	Status   Status        `json:"status,omitempty"`
	Outcome  Outcome       `json:"outcome,omitempty"`
	Duration time.Duration `json:"-"`              // of the attempt or the run; duration_ms in JSON
	Delay    time.Duration `json:"-"`              // step_retry; delay_ms in JSON
	Next     string        `json:"next,omitempty"` // step_finished: the step that follows, when it is not the one in order
	Error    *Error        `json:"error,omitempty"`
	Output   any           `json:"-"` // step_finished, step_replayed: what the attempt returned, plain data; nil for nothing

	Evidence []sandbox.Evidence `json:"evidence,omitempty"` // step_finished, step_replayed: as in Entry
}

// Result is how a run ended and what it returned.
type Result struct {
	RunID    string        `json:"run_id"`
	Workflow string        `json:"workflow"`
	Outcome  Outcome       `json:"outcome"`
	Output   any           `json:"output"` // plain data; nil unless the run succeeded
	Error    *Error        `json:"error,omitempty"`
	Started  time.Time     `json:"started"`
	Duration time.Duration `json:"-"`     // duration_ms in JSON
	Steps    int           `json:"steps"` // attempts of steps that were made, nested ones included
	// Evidence has an entry for each isolation and settings under which steps of the run ran commands.
	Evidence []sandbox.Evidence `json:"evidence,omitempty"`
	// Outputs are the files that the workflow's `outputs` name, by their path below the work directory, also of a run that
	// failed, as far as they are there. They and Patch come from the sandbox that the run's steps share; where there is
	// none, from the only one that there is.
	Outputs patch.Tree `json:"-"`
	// Missing are outputs that may be missing, and are.
	Missing []string `json:"missing,omitempty"`
	// Patch is what the run changed in the directory that its workspace came from. Nil when it came from none, or
	// was copied to several sandboxes, none of which the steps share.
	Patch *patch.Patch `json:"-"`
	// Workspace is that directory.
	Workspace string `json:"-"`
	// Unfinished is why what the run made could not be brought home. Such a run has no end in its journal and its
	// sandboxes were left, so that Resume can try again; whoever owns the manager should Detach it, which leaves them.
	// Outcome, Output and Error say how the steps ended. Nil for a run that has ended.
	Unfinished *Error `json:"unfinished,omitempty"`
	// Cleanup is why sandboxes of the run may be left behind; nil when all were closed or are retained on purpose.
	Cleanup error `json:"-"`
}

// MarshalJSON writes durations in milliseconds.
func (e Event) MarshalJSON() ([]byte, error) {
	type plain Event
	return json.Marshal(struct {
		plain
		DurationMS int64 `json:"duration_ms,omitempty"`
		DelayMS    int64 `json:"delay_ms,omitempty"`
	}{plain(e), e.Duration.Milliseconds(), e.Delay.Milliseconds()})
}

// failure is why the run failed, or did not end; nil when all is well.
func (r *Result) failure() *Error { return cmp.Or(r.Error, r.Unfinished) }

// MarshalJSON writes durations in milliseconds, the names of the outputs and the size of the patch.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	shown := struct {
		plain
		Outputs    []string    `json:"outputs,omitempty"`
		Patch      *patch.Stat `json:"patch,omitempty"`
		DurationMS int64       `json:"duration_ms"`
	}{plain(r), slices.Sorted(maps.Keys(r.Outputs)), nil, r.Duration.Milliseconds()}
	if r.Patch != nil {
		stat := r.Patch.Stat()
		shown.Patch = &stat
	}
	return json.Marshal(shown)
}
