package workflow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/transfer"
)

// outputs reads the patterns of files to collect.
func (o *object) outputs(wf *Workflow) {
	if !o.has("outputs") {
		return
	}
	if wf.outputsAt = o.items("outputs", maxItems); wf.outputsAt == nil || !o.get("outputs", (*[]string)(&wf.outputs)) {
		return
	}
	for _, p := range wf.outputs.Problems() {
		at, i := o.at["outputs"], 0
		if _, err := fmt.Sscanf(p.Field, "outputs[%d]", &i); err == nil {
			at = wf.outputsAt[i]
		}
		o.Fail(at, p.Hint, "%s", p.Message)
	}
}

// Outputs returns the workflow's `outputs`.
func (wf *Workflow) Outputs() []string { return slices.Clone(wf.outputs) }

// collectResults collects and saves the run's outputs and patch while the sandboxes still exist. If a successful run
// did not create the outputs, the run fails. If existing outputs cannot be collected or saved, the run does not end,
// because only the sandboxes contain them.
func (r *run) collectResults(ctx context.Context) {
	made := r.collect(ctx)
	stuck := isStranded(made) && r.opts.Within == nil
	var keep error
	if !stuck { // if the run is resumed, a part could be mistaken for the complete result
		keep = r.keepMade(ctx)
	}
	err := errors.Join(made, keep)
	switch {
	case err == nil:
	case stuck || keep != nil:
		r.result.Unfinished = failf(codeOutputs, err, "cannot collect the run's results: %v", err)
		if r.opts.Journal != nil && outage(err, false) {
			r.interrupt(fmt.Errorf("%w: %w", ErrInterrupted, r.result.Unfinished))
		}
	case r.result.Error != nil:
		r.opts.Logger.Warn("cannot collect all results of a run", "run", r.result.RunID, "error", err)
	default:
		r.result.Outcome, r.result.Output, r.result.Error = Failed, nil, asError(err, codeOutputs)
	}
}

// isStranded reports whether a resumed run could collect the results after collecting failed with err. It could not if
// the outputs were never created or are too large, or if the sandbox is lost. The error may have several causes.
func isStranded(err error) bool {
	var e *Error
	permanent := errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrTooLarge) && !outage(err, false)
	return err != nil && !permanent && (!errors.As(err, &e) || e.Code != codeOutputs)
}

// collect reads the run's outputs and patch from the sandbox.
func (r *run) collect(ctx context.Context) error {
	if r.manager == nil || r.workspace == nil && r.wf.outputs == nil {
		return nil
	}
	box, err := r.sandbox(ctx)
	shared := box != nil && box.Key().Name == record.DefaultName // otherwise an earlier process may have removed it
	if (!shared && err == nil || errors.Is(err, backend.ErrLost)) && r.loadKept() {
		return nil
	}
	if err != nil {
		return err
	}
	made, err := transfer.Collect(ctx, box, r.wf.outputs, r.workspace)
	for n := 0; n < 3 && box != nil && errors.Is(err, backend.ErrLost); n++ { // the engine may still be stopping the sandbox
		if box, err = r.reopen(ctx, box.Key().Name, named(box.Key().Name)); err == nil {
			made, err = transfer.Collect(ctx, box, r.wf.outputs, r.workspace)
		}
	}
	r.result.Outputs, r.result.Missing, r.result.Patch = made.Outputs, made.Missing, made.Patch
	for text, names := range map[string][]string{
		"pipes, sockets, devices, and leased files among the outputs are not collected": made.Special,
		"directories that may contain more outputs are unreadable or too large":         made.Unread,
	} {
		if len(names) > 0 {
			r.opts.Logger.Warn(text + ": " + clip(strings.Join(names, ", ")))
		}
	}
	if made.Patch != nil {
		r.result.Workspace = r.workspace.Dir()
	}
	if missing, ok := errors.AsType[*transfer.MissingError](err); ok {
		e := &Error{Code: codeOutputs, Message: missing.Error()}
		if r.wf.agent == nil {
			at := r.wf.outputsAt[missing.First]
			e.Where = fmt.Sprintf("%s:%d:%d", r.wf.Path, at.Line, at.Column)
		}
		return e
	}
	return err
}

// loadKept loads the results an earlier process of the run saved. That process removed the sandbox and died before it
// recorded the run's end. loadKept reports whether results exist.
func (r *run) loadKept() bool {
	if r.past == nil || r.opts.Results == "" {
		return false
	}
	archive, err := runfiles.Dir(r.opts.Results).Open(r.result.RunID)
	if err != nil {
		return false
	}
	defer archive.Close() // only read from
	outputs, err := archive.Read(archive.Outputs("."))
	if err != nil {
		return false
	}
	p, err := archive.Patch()
	if err != nil {
		return false
	}
	_, _, r.result.Missing = r.wf.outputs.Missing(slices.Collect(maps.Keys(outputs)))
	r.result.Outputs, r.result.Patch, r.result.Workspace = outputs, p, archive.Workspace()
	return true
}

// sandbox returns the sandbox with the run's outputs. If the run has no sandbox or several, it returns nil.
func (r *run) sandbox(ctx context.Context) (*session.Session, error) {
	box := transfer.Shared(r.manager, r.scope())
	if box != nil || r.past == nil {
		return box, nil
	}
	key := r.scope().Key(record.DefaultName)
	list, err := r.manager.List(ctx)                                                           // resumed after all steps
	has := func(i session.Info) bool { return i.Key == key && i.State != session.StateClosed } // else partly removed
	if err != nil || !slices.ContainsFunc(list, has) {
		return nil, err
	}
	return r.reopen(ctx, record.DefaultName, named(record.DefaultName))
}

// keepMade saves the outputs and the patch in Options.Results.
func (r *run) keepMade(ctx context.Context) error {
	if r.opts.Results == "" || r.opts.OnSnapshot != nil || len(r.result.Outputs) == 0 && r.result.Patch == nil {
		return nil
	}
	err := runfiles.Dir(r.opts.Results).Save(r.result.RunID, runfiles.Made{
		Source: r.wf.Path, Workspace: r.result.Workspace, Outputs: r.result.Outputs, Patch: r.result.Patch,
	})
	if err == nil && r.opts.OnKept != nil {
		err = r.opts.OnKept(ctx, r.result.RunID)
	}
	if err != nil {
		return fmt.Errorf("cannot save the run's results: %w", err)
	}
	return nil
}
