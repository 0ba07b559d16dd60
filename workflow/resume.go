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
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/interpreter"
)

// takeTogether is the maximum number of concurrently opened sandboxes of a resumed run.
const takeTogether = 8

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
// Resume opens the run's existing sandboxes before the first step. If it cannot, the run is interrupted again. If an
// isolated sandbox is lost with the files of earlier steps, the step that continues in it fails with backend.ErrLost.
// Without earlier steps, an agent starts from the beginning.
//
// If the run cannot be resumed, the result is nil and the error wraps ErrFinished, ErrChanged, or ErrBadJournal. Two
// processes must not resume one run concurrently: a journal that checks Entry.Seq refuses the second process's entries.
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
	used  map[string]string  // ids of the steps of ended executions, by path
	files map[string]bool    // recorded sandboxes, by name: whether it exists or is lost
	fails map[string]error   // why an existing sandbox could not be opened, by name, until a step reports it
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
	p := &past{run: entries[0].RunID, ended: map[string][]Entry{}, open: map[string]*visit{}, used: map[string]string{}}
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
		if v.stripped = v.stripped || len(e.Conversation) == 0; !v.stripped {
			return v.conversation.Add(e.Conversation, e.Time)
		}
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
			if e.Status != StatusSkipped {
				p.used[e.Path] = e.Step
			}
		} else if v != nil {
			*v = visit{failed: v.failed + 1}
		} else {
			return errors.New("an attempt ended that did not begin")
		}
	}
	return nil
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
	maps.DeleteFunc(p.used, func(other, _ string) bool { return isInside(other, path) })
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

// takeOver opens the existing sandboxes of a resumed run, so that they are in use until the end of the run. Isolated
// sandboxes are opened when their steps continue, and a caller's sandboxes when they are used. During an outage, the
// run is interrupted. A sandbox that cannot be opened for another reason causes an error only in a step that uses it.
func (r *run) takeOver(ctx context.Context) error {
	if r.past == nil || r.manager == nil {
		return nil
	}
	gone, there, err := r.manager.Gone(ctx, r.scope().Scope())
	r.past.files, r.past.fails = map[string]bool{}, map[string]error{}
	for _, key := range gone {
		r.past.files[key.Name] = false
	}
	for _, key := range there {
		r.past.files[key.Name] = true
	}
	err = errors.Join(append(bound.Each(takeTogether, len(there), func(i int) error {
		name := there[i].Name
		s, err := r.manager.Get(there[i])
		switch open := err == nil && s.Info().State != session.StateLost; {
		case rules.IsIsolated(name):
			return nil
		case !open && r.opts.Within == nil:
			_, err = r.reopen(ctx, name, named(name))
		default:
			err = nil
		}
		if err == nil {
			r.forgetFiles(name)
		} else if waits := outage(err, false) || errors.Is(err, backend.ErrImage); !waits && ctx.Err() == nil &&
			!(errors.Is(err, backend.ErrLost) && r.isGone(ctx, there[i])) {
			r.opts.Logger.WarnContext(ctx, "cannot open a sandbox of a resumed run", "name", name, "error", err)
			r.past.mu.Lock()
			defer r.past.mu.Unlock()
			r.past.fails[name] = err
			return nil
		}
		return err
	}), err)...)
	if err != nil && ctx.Err() == nil && r.opts.Journal != nil {
		r.interrupt(fmt.Errorf("%w: cannot open the sandboxes of the run: %w", ErrInterrupted, err))
	}
	return err
}

// errUnopened means that a sandbox of a resumed run exists but could not be opened.
var errUnopened = errors.New("cannot open an existing sandbox of the run")

// isGone reports whether a sandbox is lost with its files. If that is unknown, it returns false.
func (r *run) isGone(ctx context.Context, key session.Key) bool {
	gone, _, err := r.manager.Gone(ctx, r.scope().Scope())
	return err == nil && slices.Contains(gone, key)
}

// files reports whether a sandbox with files of the run exists or is lost. If neither is known, the run has opened or
// closed the sandbox since it was resumed, or never used it.
func (r *run) files(name string) (exists, known bool) {
	if r.past == nil {
		return false, false
	}
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	exists, known = r.past.files[name]
	return exists, known
}

// forgetFiles forgets a recorded sandbox, because the key is used for a new sandbox.
func (r *run) forgetFiles(name string) {
	if r.past != nil {
		r.past.mu.Lock()
		defer r.past.mu.Unlock()
		delete(r.past.files, name)
	}
}

// continueIn opens an existing sandbox of a resumed run. The first call reports why takeOver could not open it.
func (r *run) continueIn(ctx context.Context, name string, at location) (*session.Session, error) {
	r.past.mu.Lock()
	failed := r.past.fails[name]
	delete(r.past.fails, name)
	r.past.mu.Unlock()
	if failed != nil {
		return nil, fmt.Errorf("%w: %w", errUnopened, failed)
	}
	s, err := r.reopen(ctx, name, at)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnopened, err)
	}
	r.forgetFiles(name)
	return s, nil
}

// adopt opens the isolated sandbox of a resumed step if it exists. If the sandbox is lost with files that the step
// needs, the error wraps backend.ErrLost. If it is lost without files of earlier steps, the step starts with an empty
// sandbox, and adopt returns true.
func (ex *execution) adopt(ctx context.Context) (empty bool, err error) {
	r := ex.run
	exists, known := r.files(ex.session)
	if exists && rules.IsIsolated(ex.session) {
		switch _, err = r.continueIn(ctx, ex.session, ex.location); {
		case err == nil || outage(err, false):
			return false, err
		case !r.uses(ex.step):
			return false, nil
		case !errors.Is(err, backend.ErrLost):
			return false, err
		}
		if !r.isGone(ctx, r.scope().Key(ex.session)) {
			return false, err // the files may still exist
		}
	}
	if !known || !rules.IsIsolated(ex.session) || !r.uses(ex.step) {
		return false, nil
	}
	if ex.session == ex.scope.session && r.changed(ex.scope.files, ex.location) {
		return false, fmt.Errorf("the files of the isolated sandbox are lost: %w", backend.ErrLost)
	}
	ex.closeIsolated(ctx, ex.session) // if this process has it open
	return true, nil
}

// changed reports whether an ended step may have changed the files of an isolated sandbox. prefix is the common prefix
// of the paths of the steps that use the sandbox.
func (r *run) changed(prefix string, at location) bool {
	users := map[string]bool{}
	for _, s := range r.wf.all {
		users[s.id] = s.location.name == at.name && r.uses(s)
	}
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	for path, id := range r.past.used {
		if users[id] && strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// uses reports whether a step or a step inside it may use the sandbox of the step's location.
func (r *run) uses(s *step) bool {
	switch b := s.body.(type) {
	case *execBody:
		return true
	case *agentBody:
		file := r.file(b)
		name, shares := s.location.of(file)
		return file == nil || shares && name == s.location.name
	case *fanBody:
		return b.fork || slices.ContainsFunc(b.branches, func(br branch) bool {
			return slices.ContainsFunc(br.steps.steps, func(inner *step) bool {
				return inner.location.name == s.location.name && r.uses(inner)
			})
		})
	}
	return false
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
