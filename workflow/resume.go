package workflow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/interpreter"
)

// Errors of Resume.
var (
	// ErrFinished: the run has ended, there is nothing to resume.
	ErrFinished = errors.New("the run has finished")
	// ErrChanged: the workflow is not the one that the run began with.
	ErrChanged = errors.New("the workflow has changed since the run began")
	// ErrBadJournal: the entries are not those of one run.
	ErrBadJournal = errors.New("the journal is not usable")
)

// Resume resumes a run that was interrupted: entries are its journal, in order. Steps that finished are not run again,
// what they returned is taken from the journal; a step that was under way is run again, and its event says so. An agent
// among these continues its conversation: it is not asked again for an answer that is recorded, and calls no tool again
// whose result is. Others begin at their start, as does an agent whose conversation was too large to be recorded. What
// was left running in the run's sandboxes, and no result speaks of, is ended. The run keeps its id, so that it finds
// its sandboxes as far as the manager still has them, or can adopt them; its timeout starts again.
//
// The result is nil only when the run cannot be resumed: ErrFinished, ErrChanged, ErrBadJournal. Two processes must
// not resume one run at once: a journal that checks Entry.Seq refuses the second one's entries.
func (e *Engine) Resume(ctx context.Context, wf *Workflow, entries []Entry) (*Result, error) {
	if err := resumable(wf, entries); err != nil {
		return nil, err
	}
	r, err := e.resumed(ctx, wf, History(entries))
	if err != nil {
		return nil, err
	}
	checkpoint, err := owed(entries)
	if err != nil {
		return nil, err
	}
	r.goBack(checkpoint)
	r.seq = int64(len(entries))
	return e.drive(ctx, r)
}

// Begin returns the first entry of the journal of a new run, which whoever has the journal carries out by
// Engine.Resume: a run that is begun here and done elsewhere. The error is ErrInvalidInput, with what is wrong.
func (wf *Workflow) Begin(input map[string]any) (Entry, error) {
	checked, err := wf.checkInput(input)
	if err != nil {
		return Entry{}, err
	}
	return Entry{
		RunID: session.NewRunID(), Seq: 1, Time: time.Now().UTC(), Kind: EventRunStarted, Workflow: wf.ID, Hash: wf.Hash, Input: checked,
	}, nil
}

// checkInput returns the input of a run with its defaults.
func (wf *Workflow) checkInput(input map[string]any) (map[string]any, error) {
	checked, err := wf.input.check(input)
	if err != nil {
		return nil, &Error{Code: CodeInput, Message: "invalid input: " + err.Error(), Err: ErrInvalidInput}
	}
	return checked, nil
}

// resumed returns the run whose journal entries are, as far as they count.
func (e *Engine) resumed(ctx context.Context, wf *Workflow, entries []Entry) (*run, error) {
	first := entries[0]
	chain, _ := ctx.Value(chainKey{}).([]string)
	input := first.Input
	if input == nil { // an empty one is left out of the entry
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
	if r.past.interrupted != nil {
		r.base.OnAdopt = r.past.endCommands
	}
	r.steps.Store(int64(r.past.attempts))
	return r, nil
}

// resumable checks that entries are a journal that wf can resume.
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

// past is what an interrupted run did. Steps take their own part of it, by their path, in the order in which it
// happened; where there is none left the run begins to be new.
type past struct {
	run         string  // its id
	attempts    int     // of all steps
	trace       string  // traceparent of the latest process's span
	interrupted []visit // those with an unfinished attempt

	mu    sync.Mutex         // guards what follows: branches run side by side
	ended map[string][]Entry // the last entry of each visit that ended, by path
	open  map[string]*visit  // the visit that was under way, by path
}

// visit is a visit of a step that has not ended.
type visit struct {
	failed   int     // attempts that failed and were to be followed by another
	underWay bool    // an attempt had begun
	starts   []int64 // numbers of the entries with which it began, one for each process that tried
	from     int64   // the first of them that the conversation belongs to

	conversation transcript.Conversation // of the agent, in that attempt
	stripped     bool                    // a part of it is missing, as it is once an attempt has finished
}

// of returns what a numbered attempt repeats: nothing unless it is the one that was under way.
func (v visit) of(attempt int) visit {
	if v.underWay && attempt == v.failed+1 {
		return v
	}
	return visit{}
}

// kept returns the conversation to continue; nil when there is none.
func (v visit) kept() *transcript.Conversation {
	if v.conversation.Turns() == 0 || v.lost() != "" {
		return nil
	}
	return &v.conversation
}

// lost returns why a conversation that had begun cannot be continued; empty when it can.
func (v visit) lost() string { return v.conversation.Lost() }

// readPast returns what entries tell of a run; ErrBadJournal when they cannot be those of one.
func readPast(entries []Entry) (*past, error) {
	p := &past{run: entries[0].RunID, ended: map[string][]Entry{}, open: map[string]*visit{}}
	for _, e := range entries {
		if err := p.read(e); err != nil {
			return nil, fmt.Errorf("entry %d, of step %s: %w: %w", e.Seq, clip(e.Path), err, ErrBadJournal)
		}
	}
	for path, v := range p.open {
		if v.stripped {
			return nil, fmt.Errorf("the conversation of step %s is missing: %w", clip(path), ErrBadJournal)
		}
		if v.underWay {
			p.interrupted = append(p.interrupted, *v)
		}
	}
	return p, nil
}

// read takes in the next entry.
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
		if v.underWay, v.starts = true, append(v.starts, e.Seq); e.Turns == 0 {
			v.from = e.Seq
		}
	case EventStepProgress:
		if v == nil || !v.underWay || e.Type != TypeAgent || e.Attempt != v.failed+1 {
			return errors.New("a conversation without a running attempt")
		}
		return v.converse(e)
	case EventStepFinished:
		p.forgetInside(e.Path) // what an attempt did inside itself went with it
		if !e.Retry {
			delete(p.open, e.Path)
			p.ended[e.Path] = append(p.ended[e.Path], e)
		} else if v != nil {
			*v = visit{failed: v.failed + 1}
		} else {
			return errors.New("an attempt ended that did not begin")
		}
	}
	return nil
}

// converse takes in a part of the attempt's conversation.
func (v *visit) converse(e Entry) error {
	if len(e.Conversation) == 0 {
		v.stripped = true
	}
	if v.stripped {
		return nil
	}
	return v.conversation.Add(e.Conversation, e.Time)
}

// label returns a context whose commands carry their attempt: the run, the journal entry with which the attempt
// began, and the turn of its agent.
func (ex *execution) label(ctx context.Context, rec *transcript.Recorder) context.Context {
	run, started := ex.run.result.RunID, ex.started
	return sandbox.WithOrigin(ctx, func() string { return fmt.Sprintf("%s %d %d", run, started, rec.Turn()) })
}

// endCommands ends the commands of interrupted attempts, which are about to be repeated, and their background
// processes. It spares interpreters, which hold the results of recorded calls.
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

// repeats reports whether the unfinished attempt started a command in its agent's latest turn, or in a lost turn, and
// no recorded result names the command.
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

// forgetInside drops what is known of the steps inside a parallel or for_each, in whichever of its visits.
func (p *past) forgetInside(path string) {
	inside := func(other string) bool {
		rest, ok := strings.CutPrefix(other, path)
		return ok && rest != "" && strings.Contains(".[#", rest[:1])
	}
	for other := range p.ended {
		if inside(other) {
			delete(p.ended, other)
		}
	}
	for other := range p.open {
		if inside(other) {
			delete(p.open, other)
		}
	}
}

// take returns the end of the next visit of a step, if it ended. A run that was not interrupted has no past.
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

// continued returns the visit of a step that was under way, once.
func (p *past) continued(path string) visit {
	if p == nil {
		return visit{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.open[path]
	if v == nil {
		return visit{}
	}
	delete(p.open, path)
	return *v
}

// replay takes what a visit returned from the journal.
func (ex *execution) replay(ctx context.Context, e Entry) (int, error) {
	next := len(ex.seq.steps)
	if e.Next != "" {
		var ok bool
		if next, ok = ex.seq.index[e.Next]; !ok {
			return 0, &Error{Step: ex.path, Code: codeJournal, Message: fmt.Sprintf("the journal continues with %s, which is not a step here", clip(e.Next)), Err: ErrBadJournal, Final: true}
		}
	}
	ev := ex.event(e)
	ev.Kind = EventStepReplayed
	ex.run.emit(ctx, ev)
	if e.Status == StatusSkipped {
		ex.leaveOut()
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
