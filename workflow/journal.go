package workflow

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/sandbox"
)

// Outcome is how a run ended.
type Outcome string

// Outcomes.
const (
	Succeeded Outcome = "succeeded"
	Failed    Outcome = "failed"
	Cancelled Outcome = "cancelled"
	TimedOut  Outcome = "timed_out"
)

// Status is where a step is. Expressions read it as steps.<id>.status.
type Status string

// Statuses.
const (
	StatusPending   Status = "pending" // has not run yet
	StatusRunning   Status = "running"
	StatusSucceeded Status = "succeeded"
	StatusFailed    Status = "failed"
	StatusSkipped   Status = "skipped" // its if was false
)

// Entry is one line of a run's journal: an event of one of the kinds run_started, run_resumed, step_started,
// step_progress, step_finished, also for a step that was skipped, and run_finished. Together the entries hold
// everything that is needed to resume a run that was interrupted: what each step returned, which way was taken, and
// which step was under way.
type Entry struct {
	RunID string    `json:"run_id"`
	Seq   int64     `json:"seq"` // from 1, without gaps
	Time  time.Time `json:"time"`
	Kind  EventKind `json:"kind"`

	Workflow string         `json:"workflow,omitempty"` // run_started: id of the workflow
	Hash     string         `json:"hash,omitempty"`     // run_started: Workflow.Hash
	Input    map[string]any `json:"input,omitempty"`    // run_started: the checked input, defaults filled in

	// TraceParent is the span of the process's part of the run, in W3C form; run_started and run_resumed. The span of the
	// process that resumes the run links to it.
	TraceParent string `json:"traceparent,omitempty"`

	Path    string         `json:"path,omitempty"` // the step with what it is part of: "each[3]/test", "checks.lint/run"
	Step    string         `json:"step,omitempty"`
	Type    Type           `json:"type,omitempty"`
	Agent   string         `json:"agent,omitempty"`   // of steps of type agent
	Visit   int            `json:"visit,omitempty"`   // how often the step was reached in its scope, from 1
	Attempt int            `json:"attempt,omitempty"` // from 1; 0 for a skipped step
	Status  Status         `json:"status,omitempty"`
	Repeats bool           `json:"repeats,omitempty"`    // step_started: this attempt was under way when the run was interrupted
	Turns   int            `json:"turns,omitempty"`      // step_started that repeats: the turns of the agent behind which it continues
	Output  any            `json:"output,omitempty"`     // plain data
	Has     bool           `json:"has_output,omitempty"` // there is an output, which may be null
	Vars    map[string]any `json:"vars,omitempty"`       // what the step assigned
	CostUSD *float64       `json:"cost_usd,omitempty"`   // step_finished: what its agent's model cost, where that is known
	Error   *Error         `json:"error,omitempty"`
	Retry   bool           `json:"retry,omitempty"` // another attempt follows
	Next    string         `json:"next,omitempty"`  // the step that follows; empty with !Retry: its sequence ends

	// Conversation is a part of the conversation of a step's agent with its model; step_progress. It is needed until the
	// attempt has finished; a journal may leave it out then.
	Conversation json.RawMessage `json:"conversation,omitempty"`

	Checkpoint *Checkpoint `json:"checkpoint,omitempty"` // step_finished: what was kept of the sandboxes then
	Behind     int64       `json:"behind,omitempty"`     // run_resumed: the number of the last entry before it that counts; zero: all do

	// Evidence has an entry for each isolation and settings under which the attempt ran commands; step_finished.
	Evidence []sandbox.Evidence `json:"evidence,omitempty"`

	Outcome Outcome `json:"outcome,omitempty"` // run_finished
}

// MarshalJSON writes whole numbers that are doubles with a point, so that they are read back as such.
func (e Entry) MarshalJSON() ([]byte, error) {
	type plain Entry
	e.Output = pointed(e.Output)
	e.Input, _ = pointed(e.Input).(map[string]any)
	e.Vars, _ = pointed(e.Vars).(map[string]any)
	return json.Marshal(plain(e))
}

// UnmarshalJSON reads numbers as they were when the entry was written: 7 is an integer, 7.0 a double. A run that is
// resumed must compute what it would have computed.
func (e *Entry) UnmarshalJSON(data []byte) error {
	type plain Entry
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode((*plain)(e)); err != nil {
		return err
	}
	var err error
	if e.Output, err = numbers(e.Output); err != nil {
		return err
	}
	for _, m := range []*map[string]any{&e.Input, &e.Vars} {
		v, err := numbers(*m)
		if err != nil {
			return err
		}
		*m, _ = v.(map[string]any) // as it was
	}
	return nil
}

// pointed copies plain data for JSON, with a point in every double.
func pointed(v any) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1e21 { // what is larger is written with an exponent
			return json.Number(strconv.FormatFloat(v, 'f', 1, 64))
		}
	case map[string]any:
		if v == nil {
			return v
		}
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = pointed(e)
		}
		return out
	case []any:
		if v == nil {
			return v
		}
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = pointed(e)
		}
		return out
	}
	return v
}

// numbers turns the numbers of decoded JSON into those of expressions.
func numbers(v any) (any, error) {
	switch v := v.(type) {
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return v.Float64()
		}
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		return v.Float64()
	case map[string]any:
		for k, e := range v {
			n, err := numbers(e)
			if err != nil {
				return nil, err
			}
			v[k] = n
		}
	case []any:
		for i, e := range v {
			n, err := numbers(e)
			if err != nil {
				return nil, err
			}
			v[i] = n
		}
	}
	return v, nil
}

// Journal records runs. Entries of one run come one after the other in the order of Seq; different runs may append at
// the same time. The implementation must have stored an entry when Append returns, because the run continues then. If
// Append fails, the run is interrupted, or fails if it has no entry yet. Append must not keep references into the
// entry's data when it has returned, unless it only reads.
type Journal interface {
	Append(ctx context.Context, e Entry) error
}
