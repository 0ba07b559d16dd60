// Package wish turns what a file asks of a sandbox into a session's request, and what a workflow asks for its agents
// into a context.
package wish

import (
	"cmp"
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// Request returns the request of a sandbox that is described by s. What s leaves out is left out, so that
// Request.Over can take it from a base; an explicit no is not nothing. The image is as written: the caller knows which
// one a runtime means.
func Request(s frontmatter.Sandbox) session.Request {
	full := s.WithDefaults()
	req := session.Request{
		Image: s.Image, User: s.User, Env: s.Env, RootSet: s.Root != "", Isolation: s.Isolation,
		Limits:      s.Limits.Backend(),
		IdleTimeout: time.Duration(full.Limits.IdleTimeout),
		ExecTimeout: time.Duration(full.Limits.ExecTimeout),
	}
	if s.Root == frontmatter.RootWritable {
		req.Root = backend.RootWritable
	}
	req.Egress, req.Environment, req.Caches = full.Network.Hosts(), s.Environment(), s.Cache
	req.Egress.Services = s.Services
	switch {
	case full.Network.Allowed():
		req.Network = backend.NetworkBridge
	case full.Network.Enabled != nil || full.Network.Allow != nil:
		req.Network = backend.NetworkNone
	}
	return req
}

// MoreIsolation is the remedy for a backend.IsolationError.
const MoreIsolation = "use an OCI runtime such as runsc, or another backend; " +
	"`workcell doctor` shows the isolation of each"

// CheckIsolation returns a *frontmatter.Error with the place in the file if new sandboxes of an agent would be less
// isolated than its file requires.
func CheckIsolation(m *session.Manager, doc *frontmatter.Document) error {
	if doc.Sandbox == nil || doc.Sandbox.Isolation == "" {
		return nil
	}
	err := m.CheckIsolation(Request(*doc.Sandbox))
	if err == nil {
		return nil
	}
	at := doc.Problem("sandbox.isolation", MoreIsolation, "%v", err)
	at.Err = err
	return at
}

// DefaultImage fills in the image that a runtime has when nobody names one.
func DefaultImage(req *session.Request, r frontmatter.Runtime) {
	req.Image, req.DefaultImage, req.Language = frontmatter.DefaultImage(r), true, string(cmp.Or(r, frontmatter.RuntimePython))
}

type yieldKey struct{} // holds the time.Duration of WithYield

// WithYield returns a context in which sandbox_exec waits d for the end of a command when neither the call nor its
// agent sets another time. Zero leaves ctx as it is.
func WithYield(ctx context.Context, d time.Duration) context.Context {
	if d == 0 {
		return ctx
	}
	return context.WithValue(ctx, yieldKey{}, d)
}

// Yield returns the duration of WithYield; zero without one.
func Yield(ctx context.Context) time.Duration {
	d, _ := ctx.Value(yieldKey{}).(time.Duration)
	return d
}
