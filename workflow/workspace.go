package workflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
)

// Workspace returns the host directory copied into the run's new sandboxes: `sandbox: {workspace: …}`, relative to the
// workflow's file and below the directory. Without a workspace, Dir is empty.
func (wf *Workflow) Workspace() transfer.Place {
	within := filepath.Dir(wf.Path)
	if wf.workspace == "" || filepath.IsAbs(wf.workspace) {
		return transfer.Place{Dir: wf.workspace, Within: within}
	}
	return transfer.Place{Dir: filepath.Join(within, wf.workspace), Within: within}
}

// CheckWorkspace checks whether the directory from Workspace can probably be copied. The error is a
// [frontmatter.Errors] with the position in the workflow's file.
func (wf *Workflow) CheckWorkspace(ctx context.Context) error {
	at := wf.Workspace()
	if at.Dir == "" {
		return nil
	}
	_, err := transfer.CheckWorkspace(ctx, at)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return frontmatter.Errors{wf.problem("workspace", fmt.Sprintf("workspace %s: %v", at.Dir, err))}
}

// AsRoot returns the position where the file requests sandboxes with user root, or nil.
func (wf *Workflow) AsRoot() *frontmatter.Error {
	if !wf.asRoot {
		return nil
	}
	return wf.problem("user", "sandboxes run as root")
}

// CheckServices returns the problems found by check in the services of the workflow's sandboxes, with their positions
// in the file.
func (wf *Workflow) CheckServices(check func([]sandbox.ServiceUse) frontmatter.Errors) error {
	var found []error
	for _, p := range check(wf.base.Egress.Services) {
		at := wf.problem(p.Field, p.Message)
		at.Hint = p.Hint
		found = append(found, at)
	}
	return errors.Join(found...)
}

// problem returns a problem with a field of `sandbox:`.
func (wf *Workflow) problem(field, message string) *frontmatter.Error {
	at := cmp.Or(wf.sandboxAt["sandbox."+field], &yamlnode.Node{}) // a position of other fields is unknown
	return &frontmatter.Error{File: wf.Path, Line: at.Line, Column: at.Column, Message: message}
}

// setBase sets the base request for the run's sandboxes.
func (r *run) setBase(ctx context.Context) error {
	req, at := r.wf.base, r.wf.Workspace()
	if outer, ok := session.BaseFromContext(ctx); ok && r.opts.Within != nil {
		req = req.WithDefaults(outer)
	}
	if r.opts.Workspace != "" {
		at = transfer.Place{Dir: r.opts.Workspace}
	}
	if r.opts.OnPull != nil {
		req.OnPull = r.opts.OnPull
	}
	if r.opts.Retention > 0 {
		req.Retention = r.opts.Retention
	}
	r.base = req
	file := ""
	if r.opts.Results != "" {
		file = runfiles.Dir(r.opts.Results).Base(r.result.RunID)
	}
	_, err := os.Stat(file)
	if at.Dir == "" && err != nil { // otherwise the file came with the run
		return nil
	}
	if r.workspace, err = transfer.NewSnapshot(ctx, at, file); err != nil {
		text := fmt.Errorf("workspace %s: %w", at.Dir, err)
		if placed := r.wf.CheckWorkspace(ctx); placed != nil && r.opts.Workspace == "" {
			text = placed
		}
		return failf(CodeInput, err, "%v", text)
	}
	r.base = r.workspace.Into(req)
	return nil
}
