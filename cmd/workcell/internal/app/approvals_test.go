package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// office is a state directory whose processes ask for approvals and answer.
type office struct {
	*testing.T
	*App
	journal runstore.Store
	records state.Records
	owner   string
	leave   func() error // ends the asking process
	said    chan string
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{T: t, App: New(Options{StateDir: t.TempDir(), Env: environ.Of(nil)}), said: make(chan string, 100)}
	place, err := o.State()
	o.must(err)
	o.records, err = place.OpenRecords(t.Context())
	o.must(err)
	o.owner, o.leave, err = o.records.Join(t.Context())
	o.must(err)
	o.journal = o.open()
	t.Cleanup(func() { o.must(errors.Join(o.leave(), o.records.Close())) })
	return o
}

// open opens the journal as another process would.
func (o *office) open() runstore.Store {
	o.Helper()
	j, err := o.OpenJournal(context.WithoutCancel(o.Context()))
	o.must(err)
	o.Cleanup(func() { o.must(j.Close()) })
	return j
}

func (o *office) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

func (o *office) at(here hosttools.Approver, wait bool) *desk {
	return &desk{
		store: o.open(), owner: o.owner, wait: wait, here: here, who: "the user at the terminal",
		say: func(format string, args ...any) { o.said <- fmt.Sprintf(format, args...) },
	}
}

type outcome struct {
	hosttools.Decision
	err error
}

// ask starts a call with a time limit, and returns the channel of the outcome.
func (o *office) ask(d *desk, args string, limit time.Duration) chan outcome {
	out := make(chan outcome, 1)
	go func() {
		ctx, cancel := context.WithTimeout(o.Context(), limit)
		defer cancel()
		got, err := d.Approve(ctx, hosttools.ApprovalRequest{
			ID: record.NewID(), Server: "orders", Tool: "refund", Args: []byte(args), ArgsSHA256: "sum", Why: "ask",
			Caller: hosttools.Caller{Run: "run_1", Agent: "desk", SandboxID: "sbx_1", ExecID: "exe_1"},
		})
		out <- outcome{got, err}
	}()
	return out
}

// await waits until a number of calls wait for approval.
func (o *office) await(n int) []runstore.Approval {
	o.Helper()
	for {
		list, err := o.Approvals(o.Context(), o.journal)
		o.must(err)
		if len(list) == n {
			return list
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestAnswersOfOtherProcesses verifies the answers to a waiting call, and the errors of later answers.
func TestAnswersOfOtherProcesses(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for _, d := range []hosttools.Decision{
		{Allow: true}, {Allow: true, For: hosttools.ForTool}, {Note: "at most 50"}, {},
	} {
		out := o.ask(o.at(nil, true), `{"id":"1"}`, time.Hour)
		q := o.await(1)[0]
		if string(q.Args) != `{"id":"1"}` || q.Agent != "desk" || q.Exec != "exe_1" || q.Digest != "sum" ||
			time.Until(q.Until) < time.Minute {
			t.Errorf("%+v", q)
		}
		done, err := o.Answer(t.Context(), o.journal, q.ID[:10], d, "ana")
		if got := <-out; got.Decision != d || got.err != nil || err != nil || done.Args != nil || done.By != "ana" {
			t.Errorf("%+v: %+v, %+v, %v", d, got, done, err)
		}
		_, err = o.Answer(t.Context(), o.journal, q.ID, hosttools.Decision{Allow: true}, "ben")
		if code, _ := Classify(err); code != ExitConflict ||
			!strings.HasSuffix(err.Error(), "already "+done.Answer+" by ana") {
			t.Errorf("a second answer: %v", err)
		}
		if said := <-o.said + <-o.said; !strings.Contains(said, "run: workcell approvals ls") ||
			!strings.HasSuffix(said, done.Answer+" by ana") {
			t.Errorf("said: %s", said)
		}
	}
	_, err := o.Answer(t.Context(), o.journal, "nothing-like-it", hosttools.Decision{Allow: true}, "ben")
	if code, todo := Classify(err); code != ExitNotFound || todo == "" {
		t.Errorf("an unknown call: %v, %q", err, todo)
	}
}

// TestOneAnswer verifies that exactly one of a terminal and several processes answers a call, and all others learn
// whose answer counts.
func TestOneAnswer(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for range 20 {
		typed := make(chan struct{})
		terminal := func(ctx context.Context, _ hosttools.ApprovalRequest) (hosttools.Decision, error) {
			select {
			case <-typed:
				return hosttools.Decision{Note: "at the terminal"}, nil
			case <-ctx.Done():
				return hosttools.Decision{}, ctx.Err()
			}
		}
		out := o.ask(o.at(hosttools.ApproverFunc(terminal), false), "{}", time.Hour)
		id := o.await(1)[0].ID
		errs := make([]error, 4)
		var wg sync.WaitGroup
		for i := range errs {
			j := o.open()
			wg.Go(func() {
				d := hosttools.Decision{Allow: true, For: hosttools.ForTool}
				_, errs[i] = o.Answer(t.Context(), j, id, d, fmt.Sprintf("user %d", i))
			})
		}
		wg.Go(func() { close(typed) })
		got := <-out
		wg.Wait()
		list, err := o.journal.Approvals(t.Context(), id)
		q := list[0]
		if err != nil || got.err != nil || got.Allow != strings.HasPrefix(q.By, "user ") ||
			got.Allow == (got.Note != "") {
			t.Fatalf("%+v, %+v, %v", got, q, err)
		}
		for i, err := range errs {
			if won := fmt.Sprintf("user %d", i) == q.By; won != (err == nil) ||
				!won && !strings.Contains(err.Error(), "by "+q.By) {
				t.Errorf("user %d: %v, and the answer is by %s", i, err, q.By)
			}
		}
	}
}

// TestUnansweredCalls verifies that calls without an answer are refused and withdrawn.
func TestUnansweredCalls(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	// No one can answer.
	if got := <-o.ask(o.at(nil, false), "{}", time.Hour); got.Allow || !errors.Is(got.err, hosttools.ErrNoApprover) {
		t.Errorf("without an approver: %+v", got)
	}
	got := <-o.ask(o.at(nil, true), `"`+strings.Repeat("x", 4000)+`"`, time.Hour)
	if got.Allow || got.err != nil || !strings.Contains(got.Note, "too long") {
		t.Errorf("long arguments: %+v", got)
	}
	o.await(0)
	refused := func(id, why string) {
		t.Helper()
		_, err := o.Answer(t.Context(), o.journal, id, hosttools.Decision{Allow: true}, "ana")
		if err == nil || !strings.HasSuffix(err.Error(), why) {
			t.Errorf("an answer to %s: %v", id, err)
		}
	}
	stored := func(id string, left time.Duration) {
		t.Helper()
		q := runstore.Approval{ID: id, Tool: "refund", Args: []byte("{}"), Owner: o.owner, Until: time.Now().Add(left)}
		o.must(o.journal.Ask(t.Context(), q))
	}

	// The time is over.
	got = <-o.ask(o.at(nil, true), "{}", 50*time.Millisecond)
	if got.Allow || !errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("after the time limit: %+v", got)
	}
	o.await(0)
	// The asking process is suspended, so it cannot withdraw.
	stored("suspended", -time.Second)
	o.await(0)
	refused("suspended", "has timed out")

	// The command ends.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	d := o.at(nil, true)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		_, err := d.Approve(ctx, hosttools.ApprovalRequest{ID: "ended", Tool: "refund", Args: []byte("{}")})
		ended <- err
	}()
	o.await(1)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	o.await(0)
	refused("ended", "was already withdrawn by its process")

	// The process dies.
	stored("orphan", time.Hour)
	o.await(1)
	o.must(o.leave())
	refused("orphan", "was already withdrawn by its process")
	if list, err := o.journal.Approvals(t.Context(), "orphan"); err != nil || list[0].Args != nil {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestPresentApprover verifies that calls wait as long as an approver is present in any process.
func TestPresentApprover(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	_, leave, err := o.Attend(t.Context(), o.open(), o.records)
	o.must(err)
	out := o.ask(o.at(nil, false), "{}", time.Hour)
	_, err = o.Answer(t.Context(), o.journal, o.await(1)[0].ID, hosttools.Decision{Allow: true}, "the page")
	if got := <-out; !got.Allow || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	out = o.ask(o.at(nil, false), "{}", time.Hour)
	o.await(1)
	o.must(leave())
	if got := <-out; !errors.Is(got.err, hosttools.ErrNoApprover) {
		t.Errorf("after the approvers left: %+v", got)
	}
	dead, end, err := o.records.Join(t.Context())
	o.must(errors.Join(err, o.journal.Ask(t.Context(), runstore.Approval{ID: dead, Owner: dead}), end()))
	if got := <-o.ask(o.at(nil, false), "{}", time.Hour); !errors.Is(got.err, hosttools.ErrNoApprover) {
		t.Errorf("after the approvers are gone: %+v", got)
	}
	if list, err := o.journal.Approvals(t.Context(), ""); len(list) != 0 || err != nil {
		t.Errorf("approvers: %v, %v", list, err)
	}
}
