// Package runstore contains the common code of stores for the journals of workflow runs. With such a store, another
// process can inspect and resume an interrupted run. Package workflow/journaltest contains the tests for every
// implementation.
package runstore

import (
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow"
)

// Run is a run in the store.
type Run struct {
	ID       string           `json:"id"`
	Workflow string           `json:"workflow"`
	Hash     string           `json:"hash"` // workflow.Workflow.Hash of the workflow
	Started  time.Time        `json:"started"`
	Finished time.Time        `json:"finished,omitzero"` // zero while it runs and after an interruption
	Outcome  workflow.Outcome `json:"outcome,omitempty"` // empty while Finished is zero
	Owner    string           `json:"-"`                 // owner id of the current or latest process; see Lives
	Note     string           `json:"-"`                 // note passed to For
	Cancel   bool             `json:"-"`                 // a process has requested the cancellation

	Step    string         `json:"step,omitempty"`     // path of the latest started step
	Error   string         `json:"error,omitempty"`    // why the latest attempt or the run failed, on one line
	Usage   workflow.Usage `json:"usage,omitzero"`     // total of the finished attempts
	CostUSD *float64       `json:"cost_usd,omitempty"` // known cost of these attempts
}

// Query selects a page of runs.
type Query struct {
	Limit    int                // maximum number of runs, 1 to MaxTotal
	Before   string             // Page.Next of the previous page; empty for the first page
	Workflow string             // id of the workflow; empty for all
	Outcomes []workflow.Outcome // an empty outcome selects unfinished runs; nil selects all
	Text     string             // part of the id, workflow, or error; ignores the case of ASCII letters
}

// Page is a part of a list of runs.
type Page struct {
	Runs  []Run
	Total int    // number of runs on all pages, at most MaxTotal
	Next  string // Query.Before of the next page; empty for the last page
}

// MaxTotal is the maximum of Page.Total.
const MaxTotal = 10_000

// Filter returns the parameters of statements: workflow, text, and outcomes, each between commas.
func (q Query) Filter() []any {
	outcomes := ""
	for _, o := range q.Outcomes {
		outcomes = cmp.Or(outcomes, ",") + string(o) + ","
	}
	return []any{q.Workflow, q.Text, outcomes}
}

// Cursor returns the start and the id of the run before the page. The first page follows a time in the far future. If
// the query is invalid, the error wraps backend.ErrInvalid.
func (q Query) Cursor() (started time.Time, id string, err error) {
	if q.Limit < 1 || q.Limit > MaxTotal {
		return started, "", fmt.Errorf("limit %d of runs, must be 1 to %d: %w", q.Limit, MaxTotal, backend.ErrInvalid)
	}
	if q.Before == "" {
		return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "", nil
	}
	at, id, _ := strings.Cut(q.Before, "-")
	micros, err := strconv.ParseInt(at, 36, 64)
	if err != nil {
		err = fmt.Errorf("invalid position %q in the list of runs: %w", sanitize.Clip(q.Before), backend.ErrInvalid)
	}
	return time.UnixMicro(micros).UTC(), id, err
}

// Page returns the page with the first runs of a list. The list has an additional run if there is a next page.
func (q Query) Page(list []Run, total int) Page {
	p := Page{Runs: list, Total: total}
	if len(list) > q.Limit {
		p.Runs = list[:q.Limit]
		p.Next = p.Runs[q.Limit-1].Cursor()
	}
	return p
}

// Cursor returns Query.Before of the page after the run.
func (r Run) Cursor() string { return strconv.FormatInt(r.Started.UnixMicro(), 36) + "-" + r.ID }

// Progress returns the parameters of statements for the update of a Run by an entry: step, error, the numbers of the
// usage, and cost. An empty step keeps the previous step.
func Progress(e workflow.Entry) []any {
	step, why, u := "", "", workflow.Usage{}
	if e.Kind == workflow.EventStepStarted {
		step = e.Path
	}
	if e.Error != nil {
		why = e.Error.Message
		if e.Kind == workflow.EventRunFinished {
			why = e.Error.Error() // with the step
		}
		why = sanitize.Cut(sanitize.Line(why), 1000)
	}
	if e.Usage != nil {
		u = *e.Usage
	}
	return []any{step, why, u.In, u.Out, u.CacheRead, u.Turns, u.Calls, u.Estimated, e.CostUSD}
}

// MaxTranscripts is the maximum size in bytes of the kept conversations of a run. The oldest parts are deleted first.
const MaxTranscripts = 64 << 20

// Store stores the journals of runs. It must be safe for concurrent use, and several processes may use it. Times may
// lose precision below a microsecond.
type Store interface {
	// Append of the Journal must return an error wrapping backend.ErrExists if the entry's number already exists or
	// leaves a gap: a run has only one writer.
	workflow.Journal
	// For must return the journal for runs of an owner from Join of the session store at the same location. note is for
	// the process resuming these runs.
	For(owner, note string) workflow.Journal
	// Entries must return the entries of a run without the conversations of finished attempts. If the run is unknown, the
	// error must wrap backend.ErrNotFound. If the entries cannot be read, the error must wrap ErrDamaged.
	Entries(ctx context.Context, runID string) ([]workflow.Entry, error)
	// EntriesAfter must return the entries of a run after a number, as Entries does. If there are none, it must return
	// an empty list without an error, even for an unknown run.
	EntriesAfter(ctx context.Context, runID string, seq int64) ([]workflow.Entry, error)
	// Transcript must return the entries of kind EventStepProgress of a step, with their parts of the conversation. If
	// the store keeps conversations, it must include those of finished attempts.
	Transcript(ctx context.Context, runID, path string) ([]workflow.Entry, error)
	// PruneTranscripts must delete the kept conversations of attempts finished before a time. It must return the number of
	// deleted parts.
	PruneTranscripts(ctx context.Context, before time.Time) (int64, error)
	// Finish must end a run for good, even if the entries are damaged: it appends an entry of kind EventRunFinished. If
	// the run has finished, Finish must do nothing.
	Finish(ctx context.Context, runID string, outcome workflow.Outcome, why *workflow.Error) error
	// Lives must report whether an owner is alive, like the session store at the same location.
	Lives(ctx context.Context, owner string) (bool, error)
	// Take must change the owner of an unfinished run and clear a request to cancel it. If the run has another owner
	// than from, the error must wrap backend.ErrExists. If the run is unknown or finished, the error must wrap
	// backend.ErrNotFound.
	Take(ctx context.Context, runID, from, to string) error
	// AskCancel must request the cancellation of a run from the owner. The owner sees the request in Run.Cancel.
	AskCancel(ctx context.Context, runID string) error
	// Runs must return a page of runs, newest first.
	Runs(ctx context.Context, q Query) (Page, error)
	// Run must return a run. If the run is unknown, the error must wrap backend.ErrNotFound.
	Run(ctx context.Context, id string) (Run, error)
	// Prune must delete the runs finished before a time, their entries, and older answered approval requests. It must
	// return the number of deleted runs.
	Prune(ctx context.Context, before time.Time) (int64, error)
	// Delete must delete a finished run and its entries. If the run has not finished, Delete must do nothing.
	Delete(ctx context.Context, runID string) error
	// Ask must store a call waiting for approval. If the run is in the store, the call must be deleted with the run.
	Ask(ctx context.Context, a Approval) error
	// Answer must store the answer to a call and delete the arguments. If the call already has an answer, Answer must
	// change nothing and return an error wrapping backend.ErrExists. If the call is unknown, the error must wrap
	// backend.ErrNotFound.
	Answer(ctx context.Context, a Approval) error
	// Approvals must return the call with an id. If id is empty, it must return the calls without an answer, oldest
	// first.
	Approvals(ctx context.Context, id string) ([]Approval, error)
	// Close must close the store.
	Close() error
}

// Watcher is a Store whose database sends notifications about changes to a run or an approval request. Watch must call
// changed when it starts to listen, and soon after a process cancels, takes, or ends the run, or answers the request.
// Extra calls to changed are harmless. Watch must return if ctx ends, or with an error if it cannot listen.
type Watcher interface {
	Watch(ctx context.Context, id string, changed func()) error
}

// News returns a channel with an element for each call to changed, and at intervals of about every. The interval
// varies, so the polling processes have no fixed order. News restarts a failed watch. It works until ctx ends.
func News(ctx context.Context, every time.Duration,
	watches ...func(ctx context.Context, changed func()) error) <-chan struct{} {
	news := make(chan struct{}, 1)
	look := func() {
		select {
		case news <- struct{}{}:
		default: // a poll is already pending
		}
	}
	for _, watch := range watches {
		go func() {
			for ctx.Err() == nil {
				_ = watch(ctx, look)
				bound.Pause(ctx, time.Second)
				look() // also while the watch cannot listen
			}
		}()
	}
	go func() {
		for bound.Pause(ctx, every/2+rand.N(every)) {
			look()
		}
	}()
	return news
}

// lookWhenTold is the factor for the polling interval with a Watcher. Polling detects dead owners.
const lookWhenTold = 10

// Changes returns a channel with an element after each change to a run or an approval request, and at intervals.
func Changes(ctx context.Context, s Store, id string, every time.Duration) <-chan struct{} {
	w, tells := s.(Watcher)
	if !tells {
		return News(ctx, every)
	}
	return News(ctx, lookWhenTold*every, func(ctx context.Context, changed func()) error {
		return w.Watch(ctx, id, changed)
	})
}

// Await calls done with a run after each change and at intervals, until done returns true. If ctx ends first, Await
// returns false.
func Await(ctx context.Context, s Store, runID string, every time.Duration, done func(Run, error) bool) bool {
	news := Changes(ctx, s, runID, every)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-news:
		}
		if r, err := s.Run(ctx, runID); ctx.Err() == nil && done(r, err) {
			return true
		}
	}
}

// AwaitCancel calls cancel if a process requests the end of a run. It returns then, or if ctx ends.
func AwaitCancel(ctx context.Context, s Store, runID string, cancel func()) {
	if Await(ctx, s, runID, time.Second, func(r Run, err error) bool { return err == nil && r.Cancel }) {
		cancel()
	}
}

// ErrDamaged means the entries of one run cannot be read. Other runs are not affected. Finish ends this run.
var ErrDamaged = errors.New("the journal of the run is damaged")

// Encode returns an entry as JSON and, separately, the part of a conversation.
func Encode(e workflow.Entry) (data, part string, err error) {
	part, e.Conversation = string(e.Conversation), nil
	raw, err := json.Marshal(e)
	if err != nil {
		return "", "", fmt.Errorf("entry %d of run %s: %w", e.Seq, e.RunID, err)
	}
	return string(raw), part, nil
}

// Decode decodes an entry from Encode. part is nil if the entry has no part of a conversation.
func Decode(data string, part *string) (e workflow.Entry, err error) {
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return e, fmt.Errorf("an entry: %v: %w", err, ErrDamaged)
	}
	if part != nil {
		if e.Conversation = json.RawMessage(*part); !json.Valid(e.Conversation) {
			return e, fmt.Errorf("entry %d: its part of a conversation is not JSON: %w", e.Seq, ErrDamaged)
		}
	}
	return e, nil
}

// Check returns the entries that s has read for a run, or err. If the run is unknown, the error wraps
// backend.ErrNotFound. If there are no entries, or if one has the id of another run, the error wraps ErrDamaged.
func Check(ctx context.Context, s Store, runID string, list []workflow.Entry, err error) ([]workflow.Entry, error) {
	if err == nil && len(list) == 0 {
		if _, err := s.Run(ctx, runID); err != nil {
			return nil, err
		}
		err = fmt.Errorf("no entries: %w", ErrDamaged)
	}
	for i, e := range list {
		if err == nil && e.RunID != runID {
			err = fmt.Errorf("entry %d is one of run %q: %w", i+1, e.RunID, ErrDamaged)
		}
	}
	if errors.Is(err, ErrDamaged) {
		err = fmt.Errorf("run %s: %w", runID, err)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// One returns the first run of a list, or err. If the list is empty, the error wraps backend.ErrNotFound.
func One(id string, list []Run, err error) (Run, error) {
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("run %s: %w", id, backend.ErrNotFound)
	}
	if err != nil {
		return Run{}, err
	}
	return list[0], nil
}

// NotTaken returns the error that Take returns for a run whose owner it did not change.
func NotTaken(r Run) error {
	if !r.Finished.IsZero() {
		return fmt.Errorf("run %s has finished: %w", r.ID, backend.ErrNotFound)
	}
	return fmt.Errorf("run %s has another owner: %w", r.ID, backend.ErrExists)
}

// Approval is a host tool call that waits for an answer, or the answer. If Tool is empty, it means that an approver is
// present.
type Approval struct {
	ID       string          `json:"id"`
	Run      string          `json:"run,omitempty"` // or the session of an MCP client, which is not a run in the store
	Workflow string          `json:"workflow,omitempty"`
	Step     string          `json:"step,omitempty"` // path
	Agent    string          `json:"agent,omitempty"`
	Sandbox  string          `json:"sandbox,omitempty"`
	Exec     string          `json:"exec,omitempty"`
	Server   string          `json:"server"`
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"arguments,omitempty"` // nil after the answer
	Digest   string          `json:"digest"`              // hash of the tool and the arguments
	Why      string          `json:"why"`                 // rule behind the approval
	Asked    time.Time       `json:"asked"`
	Until    time.Time       `json:"until"`
	Owner    string          `json:"owner"` // waiting process; see Store.Lives
	Reply
}

// Reply is the answer to an approval request.
type Reply struct {
	Answer string `json:"answer,omitempty"` // empty while the call waits
	Note   string `json:"note,omitempty"`   // message for the caller
	By     string `json:"by,omitempty"`     // name of the answering person or process
}

// Values of Reply.Answer.
const (
	Allowed     = "allowed"
	AllowedTool = "always_allowed" // also allows all later calls of this tool in this run
	Denied      = "denied"
	Withdrawn   = "withdrawn" // the command ended, the time limit expired, or the process exited
)

// Value implements [driver.Valuer]. After the answer, the call is stored without the arguments.
func (a Approval) Value() (driver.Value, error) {
	if a.Answer != "" {
		a.Args = nil
	}
	data, err := sanitize.JSON(a)
	return string(data), err
}

// Scan implements [database/sql.Scanner].
func (a *Approval) Scan(data any) error { return json.Unmarshal(fmt.Append(nil, data), a) }

// NotAnswered returns the error that Answer returns for a call it did not change. If an earlier attempt may have
// succeeded, retried is true.
func NotAnswered(ctx context.Context, s Store, a Approval, retried bool) error {
	list, err := s.Approvals(ctx, a.ID)
	answered := func(format string, args ...any) error {
		return &sanitize.Error{Text: fmt.Sprintf("approval request "+format, args...), Err: backend.ErrExists}
	}
	switch {
	case err != nil || retried && len(list) > 0 && list[0].Reply == a.Reply:
		return err
	case len(list) == 0:
		return fmt.Errorf("approval request %s: %w", a.ID, backend.ErrNotFound)
	case list[0].Answer == "":
		return answered("%s has timed out", a.ID)
	}
	return answered("%s was already %s by %s", a.ID, list[0].Answer, list[0].By)
}
