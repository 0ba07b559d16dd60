package workflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/interpreter"
)

// Errors of Resume.
var (
	// ErrFinished means the run has ended and cannot be resumed.
	ErrFinished = errors.New("the run has finished")
	// ErrChanged means the workflow differs from the workflow with which the run started.
	ErrChanged = errors.New("the workflow has changed since the run began")
	// ErrBadJournal means the entries are not the journal of one run.
	ErrBadJournal = errors.New("the journal is not usable")
)

// Resume resumes an interrupted run. entries is the run's journal, in order. Resume does not repeat finished steps; it
// takes their outputs from the journal. It reruns the interrupted steps and reports this in their events. An
// interrupted agent continues the conversation: it does not repeat recorded model answers or recorded tool calls. An
// agent whose conversation was too large to record starts from the beginning, like all other steps. Resume kills
// leftover processes in the run's sandboxes, except commands whose results are recorded. The run keeps its id. It finds
// the sandboxes if the manager still has them or can adopt them. The run's timeout starts again.
//
// If the run cannot be resumed, the result is nil and the error wraps ErrFinished, ErrChanged, or ErrBadJournal. Two
// processes must not resume one run concurrently: a journal with a check of Entry.Seq refuses the second process's
// entries.
func (e *Engine) Resume(ctx context.Context, wf *Workflow, entries []Entry) (*Result, error) {
	if err := resumable(wf, entries); err != nil {
		return nil, err
	}
	r, err := e.resumed(ctx, wf, History(entries))
	if err != nil {
		return nil, err
	}
	checkpoint, err := pendingRollback(entries)
	if err != nil {
		return nil, err
	}
	if r.base.OnAdopt != nil && r.manager != nil { // this process may have had the run before
		for _, s := range r.manager.InScope(r.scope().Scope()) {
			if err := r.base.OnAdopt(ctx, s); err != nil && !errors.Is(err, backend.ErrLost) {
				return nil, err
			}
		}
	}
	r.goBack(checkpoint)
	r.seq = int64(len(entries))
	return e.drive(ctx, r)
}

// Begin returns the first entry of a new run's journal. Another process can then execute the run with Engine.Resume. If
// the input is invalid, the error wraps ErrInvalidInput.
func (wf *Workflow) Begin(input map[string]any) (Entry, error) {
	checked, err := wf.checkInput(input)
	if err != nil {
		return Entry{}, err
	}
	return Entry{
		RunID: session.NewRunID(), Seq: 1, Time: time.Now().UTC(), Kind: EventRunStarted, Workflow: wf.ID, Hash: wf.Hash,
		Input: checked,
	}, nil
}

// checkInput validates the input of a run and adds the defaults.
func (wf *Workflow) checkInput(input map[string]any) (map[string]any, error) {
	checked, err := wf.input.check(input)
	if err != nil {
		return nil, failf(CodeInput, ErrInvalidInput, "invalid input: %v", err)
	}
	return checked, nil
}

// resumed returns the run for the valid journal entries.
func (e *Engine) resumed(ctx context.Context, wf *Workflow, entries []Entry) (*run, error) {
	first := entries[0]
	chain, _ := ctx.Value(chainKey{}).([]string)
	input := first.Input
	if input == nil { // the entry omits an empty input
		input = map[string]any{}
	}
	r := newRun(e, wf, input, append(chain[:len(chain):len(chain)], wf.ID))
	r.identify(first.RunID, first.Time)
	err := r.setBase(ctx)
	if err == nil {
		r.past, err = readPast(entries)
	}
	if err != nil {
		return nil, err
	}
	if r.manager != nil {
		if r.gone, err = r.manager.Gone(ctx, r.scope().Scope()); err != nil {
			return nil, err
		}
	}
	if r.past.interrupted != nil {
		r.base.OnAdopt = r.past.endCommands
	}
	r.steps.Store(int64(r.past.attempts))
	return r, nil
}

// resumable returns an error if wf cannot resume the journal.
func resumable(wf *Workflow, entries []Entry) error {
	if len(entries) == 0 || entries[0].Kind != EventRunStarted {
		return fmt.Errorf("it does not begin with the start of a run: %w", ErrBadJournal)
	}
	first := entries[0]
	for i, e := range entries {
		if e.RunID != first.RunID || e.Seq != int64(i+1) {
			return fmt.Errorf("entry %d is number %d of run %s: %w", i+1, e.Seq, e.RunID, ErrBadJournal)
		}
	}
	switch last := entries[len(entries)-1]; {
	case last.Kind == EventRunFinished:
		return fmt.Errorf("outcome %s: %w", last.Outcome, ErrFinished)
	case first.Workflow != wf.ID || first.Hash != wf.Hash:
		return fmt.Errorf("run %s began with another version of %s: %w", first.RunID, first.Workflow, ErrChanged)
	}
	return nil
}

// past is the recorded part of an interrupted run. Steps take their records by path, in the order in which they
// happened. When no record is left, the run continues normally.
type past struct {
	run         string  // id of the run
	attempts    int     // attempts of all steps
	trace       string  // traceparent of the latest process's span
	interrupted []visit // executions with an unfinished attempt

	mu    sync.Mutex         // guards the fields below, because branches run concurrently
	ended map[string][]Entry // last entry of each ended execution, by path
	open  map[string]*visit  // unfinished execution, by path
	used  map[string]bool    // paths of ended executions that may have changed files
}

// visit is an unfinished execution of a step.
type visit struct {
	failed  int     // failed attempts before a retry
	running bool    // an attempt had started
	starts  []int64 // numbers of the start entries, one per process
	from    int64   // start entry to which the conversation belongs

	conversation transcript.Conversation // conversation of the agent in this attempt
	stripped     bool                    // a part is missing, because the attempt has finished
}

// of returns v if it was interrupted in the specified attempt. Otherwise it returns an empty visit.
func (v visit) of(attempt int) visit {
	if v.running && attempt == v.failed+1 {
		return v
	}
	return visit{}
}

// kept returns the conversation to continue, or nil.
func (v visit) kept() *transcript.Conversation {
	if v.conversation.Turns() == 0 || v.conversation.Lost() != "" {
		return nil
	}
	return &v.conversation
}

// readPast reads the journal of a run. If the entries cannot belong to one run, the error wraps ErrBadJournal.
func readPast(entries []Entry) (*past, error) {
	p := &past{run: entries[0].RunID, ended: map[string][]Entry{}, open: map[string]*visit{}, used: map[string]bool{}}
	for _, e := range entries {
		if err := p.read(e); err != nil {
			return nil, fmt.Errorf("entry %d, of step %s: %w: %w", e.Seq, clip(e.Path), err, ErrBadJournal)
		}
	}
	for path, v := range p.open {
		if v.stripped {
			return nil, fmt.Errorf("the conversation of step %s is missing: %w", clip(path), ErrBadJournal)
		}
		if v.running {
			p.interrupted = append(p.interrupted, *v)
		}
	}
	return p, nil
}

// read processes the next entry.
func (p *past) read(e Entry) error {
	v := p.open[e.Path]
	switch e.Kind {
	case EventRunStarted, EventRunResumed:
		p.trace = e.TraceParent
	case EventStepStarted:
		if !e.Repeats {
			p.attempts++
		}
		if v == nil {
			v = &visit{}
			p.open[e.Path] = v
		}
		switch kept := v.kept(); {
		case e.Turns == 0:
			v.conversation, v.stripped = transcript.Conversation{}, false
		case kept == nil && !v.stripped || kept != nil && kept.Turns() != e.Turns:
			return fmt.Errorf("it continues after turn %d of another conversation", e.Turns)
		}
		if v.running, v.starts = true, append(v.starts, e.Seq); e.Turns == 0 {
			v.from = e.Seq
		}
	case EventStepProgress:
		if v == nil || !v.running || e.Type != TypeAgent || e.Attempt != v.failed+1 {
			return errors.New("a conversation without a running attempt")
		}
		return v.converse(e)
	case EventStepFinished:
		if e.Error != nil && e.Error.Final && (e.Error.Message == endedByTimeout || e.Error.Message == endedBySibling) {
			if v != nil {
				*v = visit{failed: v.failed, running: v.running, starts: v.starts}
			}
			return nil
		}
		p.forgetInside(e.Path) // a finished attempt makes the records of its inner steps obsolete
		if !e.Retry {
			delete(p.open, e.Path)
			p.ended[e.Path] = append(p.ended[e.Path], e)
			if e.Status != StatusSkipped && e.Type != TypeSet && e.Type != TypeSwitch {
				p.used[e.Path] = true
			}
		} else if v != nil {
			*v = visit{failed: v.failed + 1}
		} else {
			return errors.New("an attempt ended that did not begin")
		}
	}
	return nil
}

// converse processes a part of the attempt's conversation.
func (v *visit) converse(e Entry) error {
	if len(e.Conversation) == 0 {
		v.stripped = true
	}
	if v.stripped {
		return nil
	}
	return v.conversation.Add(e.Conversation, e.Time)
}

// label returns a context to label commands with their attempt: the run, the number of the attempt's start entry, and
// the turn of its agent.
func (ex *execution) label(ctx context.Context, rec *transcript.Recorder) context.Context {
	run, started := ex.run.result.RunID, ex.started
	return sandbox.WithOrigin(ctx, func() string { return fmt.Sprintf("%s %d %d", run, started, rec.Turn()) })
}

// endCommands kills the commands of interrupted attempts and their background processes, because the attempts are about
// to be repeated. It does not kill interpreters, which hold the results of recorded calls.
func (p *past) endCommands(ctx context.Context, s *session.Session) error {
	keep, err := interpreter.Running(ctx, s.Sandbox)
	if err != nil {
		return err
	}
	known, err := s.Commands(ctx)
	if err != nil {
		return err
	}
	var ids []string
	for _, st := range known {
		repeats := slices.ContainsFunc(p.interrupted, func(v visit) bool { return v.repeats(p.run, st) })
		if repeats && (!st.Done() || st.Leaked) && !slices.Contains(keep, st.ExecID) {
			ids = append(ids, st.ExecID)
		}
	}
	return errors.Join(s.KillCommands(ctx, ids)...)
}

// repeats reports whether the unfinished attempt started a command in the agent's latest turn or in a lost turn, and no
// recorded result contains the command.
func (v visit) repeats(id string, st sandbox.ExecStatus) bool {
	var run string
	var start int64
	var turn int
	_, err := fmt.Sscan(st.Origin, &run, &start, &turn)
	if err != nil || run != id || !slices.Contains(v.starts, start) {
		return false
	}
	c := v.kept()
	return c == nil || start < v.from || turn >= c.Turns() && !slices.Contains(c.Execs(), st.ExecID)
}

// forgetInside deletes the records of steps inside a parallel or for_each, from all executions.
func (p *past) forgetInside(path string) {
	maps.DeleteFunc(p.ended, func(other string, _ []Entry) bool { return isInside(other, path) })
	maps.DeleteFunc(p.open, func(other string, _ *visit) bool { return isInside(other, path) })
	maps.DeleteFunc(p.used, func(other string, _ bool) bool { return isInside(other, path) })
}

// isInside reports whether a path or place belongs to a branch or item of the step with the specified path.
func isInside(other, path string) bool {
	rest, ok := strings.CutPrefix(other, path)
	return ok && rest != "" && strings.Contains(".[#", rest[:1])
}

// startOver forgets the steps inside a failed attempt, because the next attempt repeats them.
func (p *past) startOver(path string) {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.forgetInside(path)
	}
}

// changed reports whether an ended step with this prefix of the path may have changed files.
func (p *past) changed(prefix string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path := range p.used {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// lost reports whether an isolated sandbox was lost before the run was resumed. For other sandboxes, the caller of
// Resume decides whether the run continues.
func (r *run) lost(name string) bool {
	return rules.IsIsolated(name) && slices.Contains(r.gone, r.scope().Key(name))
}

// checkFiles returns an error if the step would continue in an empty sandbox instead of a lost one with the files of
// earlier steps or of the agent's conversation.
func (ex *execution) checkFiles() error {
	if ex.typ != TypeExec && ex.typ != TypeAgent || !ex.run.lost(ex.session) {
		return nil
	}
	if ex.past != nil || ex.session == ex.scope.session && ex.run.past.changed(ex.scope.files) {
		return fmt.Errorf("the files of the isolated sandbox are lost: %w", backend.ErrLost)
	}
	return nil
}

// take returns the end of the next execution of a step, if it ended. A new run has no past.
func (p *past) take(path string) (Entry, bool) {
	if p == nil {
		return Entry{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.ended[path]
	if len(list) == 0 {
		return Entry{}, false
	}
	p.ended[path] = list[1:]
	return list[0], true
}

// continued returns the unfinished execution of a step. It returns each execution only once.
func (p *past) continued(path string) visit {
	if p == nil {
		return visit{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v := cmp.Or(p.open[path], &visit{})
	delete(p.open, path)
	return *v
}

// replay uses the recorded result of an execution.
func (ex *execution) replay(ctx context.Context, e Entry) (int, error) {
	next := len(ex.seq.steps)
	if e.Next != "" {
		var ok bool
		if next, ok = ex.seq.index[e.Next]; !ok {
			e := finalf(codeJournal, ErrBadJournal, "the journal continues with %s, which is not a step here", clip(e.Next))
			e.Step = ex.path
			return 0, e
		}
	}
	ev := ex.event(e)
	ev.Kind = EventStepReplayed
	ex.run.emit(ctx, ev)
	if e.Status == StatusSkipped {
		ex.undoVisit()
		return next, nil
	}
	ex.scope.update(ex.id, map[string]any{"attempts": int64(e.Attempt)})
	res := result{output: e.Output, has: e.Has, last: ex.typ != TypeSwitch && ex.typ != TypeSet, vars: e.Vars}
	if err := ex.keep(e.Status, res, e.Error); err != nil {
		return 0, err
	}
	if e.Error != nil && (e.Error.Final || ex.onError.id == "") {
		return 0, e.Error
	}
	return next, nil
}
