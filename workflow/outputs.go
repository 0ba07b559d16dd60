package workflow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
)

// outputs reads which files are brought home.
func (o *object) outputs(wf *Workflow) {
	if !o.has("outputs") {
		return
	}
	for i, n := range o.items("outputs", maxItems) {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
			o.fail(n, quoteHint(n), "outputs[%d] of %s must be text, it is %s", i, o.what, yamlnode.Kind(n))
			return
		}
		wf.outputs, wf.outputsAt = append(wf.outputs, n.Value), append(wf.outputsAt, n)
	}
	for _, p := range wf.outputs.Problems() {
		at := o.at["outputs"]
		if p.Index >= 0 {
			at = wf.outputsAt[p.Index]
		}
		o.fail(at, p.Hint, "%s", p.Message)
	}
}

// Outputs returns what the workflow says under `outputs`.
func (wf *Workflow) Outputs() []string { return slices.Clone(wf.outputs) }

// bringHome collects the run's outputs and its patch, while the sandboxes still live, and keeps them. A run that has
// succeeded fails when it did not make its outputs, or they cannot be had.
func (r *run) bringHome(ctx context.Context) {
	err := errors.Join(r.collect(ctx), r.keepMade())
	switch {
	case r.workspace == nil:
	case r.opts.OnSnapshot != nil:
		r.opts.OnSnapshot(r.workspace)
	default:
		if rmErr := r.workspace.Remove(); rmErr != nil {
			r.opts.Logger.Warn("the copy of a run's workspace was not removed", "run", r.result.RunID, "error", rmErr)
		}
	}
	switch {
	case err == nil:
	case r.result.Error == nil:
		r.result.Outcome, r.result.Output, r.result.Error = Failed, nil, asError(err, codeOutputs)
	default:
		r.opts.Logger.Warn("what a run made was not all brought home", "run", r.result.RunID, "error", err)
	}
}

// collect reads what the run made.
func (r *run) collect(ctx context.Context) error {
	if r.manager == nil || r.workspace == nil && r.wf.outputs == nil {
		return nil
	}
	box, err := r.sandbox(ctx)
	if err != nil {
		return err
	}
	var made transfer.Made
	if box != nil {
		made, err = transfer.Collect(ctx, box, r.wf.outputs, r.workspace)
	} else if missing, _ := r.wf.outputs.Missing(nil); len(missing) > 0 {
		err = &Error{Code: codeOutputs, Message: "the run has no outputs: there is no sandbox that its steps share"}
	}
	r.result.Outputs, r.result.Missing, r.result.Patch = made.Outputs, made.Missing, made.Patch
	if made.Patch != nil {
		r.result.Workspace = r.workspace.Dir()
	}
	var missing *transfer.MissingError
	if errors.As(err, &missing) {
		at := r.wf.outputsAt[missing.First]
		return &Error{Code: codeOutputs, Where: fmt.Sprintf("%s:%d:%d", r.wf.Path, at.Line, at.Column), Message: missing.Error()}
	}
	return err
}

// sandbox returns the sandbox that the run's outputs are in; nil when it has none, or several.
func (r *run) sandbox(ctx context.Context) (*session.Session, error) {
	box := transfer.Shared(r.manager, r.scope())
	if box != nil || r.past == nil {
		return box, nil
	}
	key := r.scope().Key(session.DefaultName)
	list, err := r.manager.List(ctx) // a run that was resumed behind its last step with a sandbox
	if err != nil || !slices.ContainsFunc(list, func(i session.Info) bool { return i.Key == key }) {
		return nil, err
	}
	req := r.base
	req.Mode = session.OpenAsIs
	box, _, err = r.manager.Open(ctx, key, req)
	return box, err
}

// keepMade keeps the outputs and the patch below Options.Results.
func (r *run) keepMade() error {
	if r.opts.Results == "" || len(r.result.Outputs) == 0 && r.result.Patch == nil {
		return nil
	}
	err := runfiles.Dir(r.opts.Results).Save(r.result.RunID, runfiles.Made{
		Source: r.wf.Path, Workspace: r.result.Workspace, Outputs: r.result.Outputs, Patch: r.result.Patch,
	})
	if err != nil {
		return fmt.Errorf("what the run made cannot be kept: %w", err)
	}
	return nil
}
