package workflow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/sandbox"
)

// Outcome is the outcome of a run.
type Outcome string

// Outcomes.
const (
	Succeeded Outcome = "succeeded"
	Failed    Outcome = "failed"
	Cancelled Outcome = "cancelled"
	TimedOut  Outcome = "timed_out"
)

// Status is the status of a step. Expressions read it as steps.<id>.status.
type Status string

// Statuses.
const (
	StatusPending   Status = "pending" // has not run yet
	StatusRunning   Status = "running"
	StatusSucceeded Status = "succeeded"
	StatusFailed    Status = "failed"
	StatusSkipped   Status = "skipped" // the step's if was false
)

// Entry is one entry of a run's journal. It has one of the kinds run_started, run_resumed, step_started, step_progress,
// step_finished (also for a skipped step), and run_finished. Together the entries contain everything Resume needs: the
// outputs of steps, the chosen branches, and the running step.
type Entry struct {
	RunID string    `json:"run_id"`
	Seq   int64     `json:"seq"` // starting at 1, without gaps
	Time  time.Time `json:"time"`
	Kind  EventKind `json:"kind"`

	Workflow string         `json:"workflow,omitempty"` // run_started: id of the workflow
	Hash     string         `json:"hash,omitempty"`     // run_started: Workflow.Hash
	Input    map[string]any `json:"input,omitempty"`    // run_started: validated input with defaults

	// TraceParent is the span of this process's part of the run, in W3C format, for run_started and run_resumed. If
	// another process resumes the run, the span links to it.
	TraceParent string `json:"traceparent,omitempty"`

	Path    string         `json:"path,omitempty"` // path with the enclosing steps: "each[3]/test", "checks.lint/run"
	Step    string         `json:"step,omitempty"`
	Type    Type           `json:"type,omitempty"`
	Agent   string         `json:"agent,omitempty"`   // for steps of type agent
	Visit   int            `json:"visit,omitempty"`   // execution number of the step in the scope, starting at 1
	Attempt int            `json:"attempt,omitempty"` // starting at 1; 0 for a skipped step
	Status  Status         `json:"status,omitempty"`
	Repeats bool           `json:"repeats,omitempty"`    // step_started: repeats an interrupted attempt
	Turns   int            `json:"turns,omitempty"`      // step_started with Repeats: number of recorded turns
	Output  any            `json:"output,omitempty"`     // plain data
	Has     bool           `json:"has_output,omitempty"` // output is set; it may be null
	Vars    map[string]any `json:"vars,omitempty"`       // variables the step assigned
	CostUSD *float64       `json:"cost_usd,omitempty"`   // step_finished: cost of its agent's model, if known
	Usage   *Usage         `json:"usage,omitempty"`      // step_finished: model usage of its agent, if known
	Error   *Error         `json:"error,omitempty"`
	Retry   bool           `json:"retry,omitempty"` // another attempt follows
	Next    string         `json:"next,omitempty"`  // next step; if empty and Retry is false, the sequence ends

	// Conversation is a part of an agent's conversation with the model, for step_progress. It is needed until the attempt
	// has finished; afterwards a journal may omit it.
	Conversation json.RawMessage `json:"conversation,omitempty"`

	Checkpoint *Checkpoint `json:"checkpoint,omitempty"` // step_finished: saved state of the sandboxes
	Behind     int64       `json:"behind,omitempty"`     // run_resumed: number of the last valid entry; zero: all

	// Evidence has an entry for each combination of isolation and settings under which the attempt ran commands, for
	// step_finished.
	Evidence []sandbox.Evidence `json:"evidence,omitempty"`

	Outcome Outcome `json:"outcome,omitempty"` // run_finished
}

// Usage is the model usage of an attempt or the total of a run.
type Usage struct {
	Model     string `json:"model,omitempty"` // empty in totals
	In        int64  `json:"in"`              // input tokens, including cached ones
	Out       int64  `json:"out"`
	CacheRead int64  `json:"cache_read,omitempty"` // input tokens from the provider's cache
	Turns     int    `json:"turns,omitempty"`      // model calls
	Calls     int    `json:"calls,omitempty"`      // tool calls
	Estimated bool   `json:"estimated,omitempty"`  // some numbers do not come from the provider
}

// MarshalJSON encodes integral floats with a decimal point, to keep them floats after decoding.
func (e Entry) MarshalJSON() ([]byte, error) {
	type plain Entry
	e.Output = pointed(e.Output)
	e.Input, _ = pointed(e.Input).(map[string]any)
	e.Vars, _ = pointed(e.Vars).(map[string]any)
	return json.Marshal(plain(e))
}

// UnmarshalJSON preserves the types of numbers: 7 is an integer, and 7.0 is a float. A resumed run must compute the
// same results.
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
		if len(*m) == 0 {
			continue
		}
		v, err := numbers(*m)
		if err != nil {
			return err
		}
		*m, _ = v.(map[string]any) // the type is unchanged
	}
	return nil
}

// pointed copies plain data for JSON and writes every float with a decimal point.
func pointed(v any) any {
	return expr.Map(v, func(leaf any) any {
		f, ok := leaf.(float64)
		if !ok || f != math.Trunc(f) || math.Abs(f) >= 1e21 { // larger floats have an exponent
			return leaf
		}
		return json.Number(strconv.FormatFloat(f, 'f', 1, 64))
	})
}

// numbers converts the numbers of decoded JSON to the types of expressions.
func numbers(v any) (any, error) {
	var failed error
	out := expr.Map(v, func(leaf any) any {
		n, ok := leaf.(json.Number)
		if !ok {
			return leaf
		}
		if i, err := n.Int64(); err == nil {
			return i
		}
		f, err := n.Float64()
		failed = errors.Join(failed, err)
		return f
	})
	return out, failed
}

// Journal records runs. Entries of one run are appended sequentially in the order of Seq. Different runs may append
// concurrently. When Append returns, the entry must be stored, because the run continues. If Append fails, the run is
// interrupted, or fails if it has no entry yet. After Append has returned, the journal may only read the entry's data.
type Journal interface {
	Append(ctx context.Context, e Entry) error
}
