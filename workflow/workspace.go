package workflow

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
)

// Workspace returns the directory of the host that is copied into the run's sandboxes when they are made: what
// `sandbox: {workspace: …}` says, relative to the workflow's file. Empty is none.
func (wf *Workflow) Workspace() string {
	if wf.workspace == "" || filepath.IsAbs(wf.workspace) {
		return wf.workspace
	}
	return filepath.Join(filepath.Dir(wf.Path), wf.workspace)
}

// CheckWorkspace checks that the directory of Workspace can be copied, as far as that can be known beforehand. The error
// is a [frontmatter.Errors] with the place in the workflow's file.
func (wf *Workflow) CheckWorkspace(ctx context.Context) error {
	dir := wf.Workspace()
	if dir == "" {
		return nil
	}
	_, err := CopyWorkspace(ctx, session.Request{}, dir)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return frontmatter.Errors{wf.problem("workspace", err.Error())}
}

// AsRoot returns the place in the file where the workflow asks for sandboxes that run as root; nil when it does not.
func (wf *Workflow) AsRoot() *frontmatter.Error {
	if !wf.asRoot {
		return nil
	}
	return wf.problem("user", "sandboxes run as root")
}

// problem returns a problem with a field of `sandbox:`.
func (wf *Workflow) problem(field, message string) *frontmatter.Error {
	at := wf.sandboxAt[field]
	return &frontmatter.Error{File: wf.Path, Line: at.Line, Column: at.Column, Message: message}
}

// CopyWorkspace makes every sandbox that is based on req begin with a copy of a directory of the host, within the
// bounds of package transfer: regular files and directories only, without version control's own. It fails when the
// directory cannot be copied, as far as that can be known beforehand.
func CopyWorkspace(ctx context.Context, req session.Request, dir string) (session.Request, error) {
	if _, err := transfer.CheckWorkspace(ctx, dir); err != nil {
		return req, fmt.Errorf("workspace %s: %w", dir, err)
	}
	before := req.Prepare
	req.Prepare = func(ctx context.Context, s *session.Session) error {
		if before != nil {
			if err := before(ctx, s); err != nil {
				return err
			}
		}
		return transfer.CopyWorkspace(ctx, s, dir)
	}
	return req, nil
}

// base returns the request that the sandboxes of a run of wf are based on.
func (e *Engine) base(ctx context.Context, wf *Workflow) (session.Request, error) {
	req, dir := wf.base, wf.Workspace()
	if outer, ok := session.BaseFromContext(ctx); ok && e.opts.Within != nil {
		req = req.WithDefaults(outer)
	}
	if e.opts.Workspace != "" {
		dir = e.opts.Workspace
	}
	if e.opts.OnPull != nil {
		req.OnPull = e.opts.OnPull
	}
	if e.opts.Retention > 0 {
		req.Retention = e.opts.Retention
	}
	if dir == "" {
		return req, nil
	}
	req, err := CopyWorkspace(ctx, req, dir)
	if err != nil {
		if placed := wf.CheckWorkspace(ctx); placed != nil && e.opts.Workspace == "" {
			err = placed
		}
		return req, &Error{Code: CodeInput, Message: fmt.Sprint(err), Err: err}
	}
	return req, nil
}
