// Package wish converts the sandbox settings of a file to a session's request, and stores a workflow's defaults for
// agents in a context.
package wish

import (
	"cmp"
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// Request returns the request for the sandbox described by s. Fields not set by s stay unset, to allow
// Request.WithDefaults to take them from a base. An explicit "no" is set. The image is copied as written; the caller
// selects a runtime's image.
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
const MoreIsolation = "use --oci-runtime with a runtime such as runsc, or another backend; " +
	"`workcell doctor` shows the isolation of each"

// CheckIsolation returns a *frontmatter.Error with the place in the file if new sandboxes of an agent would be less
// isolated than required by the agent's file.
func CheckIsolation(m *session.Manager, doc *frontmatter.Document) error {
	if doc.Sandbox != nil && doc.Sandbox.Isolation != "" {
		if err := m.CheckIsolation(Request(*doc.Sandbox)); err != nil {
			at := doc.Problem("sandbox.isolation", MoreIsolation, "%v", err)
			at.Err = err
			return at
		}
	}
	return nil
}

// DefaultImage sets the image of req to the default image of a runtime. Callers use it if no image is specified.
func DefaultImage(req *session.Request, r frontmatter.Runtime) {
	req.Image, req.DefaultImage, req.Language = frontmatter.DefaultImage(r), true,
		string(cmp.Or(r, frontmatter.RuntimePython))
}

type yieldKey struct{} // time.Duration from WithYield

// WithYield returns a context with the default wait of sandbox_exec for the end of a command. The call and the agent
// can override this time. If d is zero, WithYield returns ctx.
func WithYield(ctx context.Context, d time.Duration) context.Context {
	if d == 0 {
		return ctx
	}
	return context.WithValue(ctx, yieldKey{}, d)
}

// Yield returns the duration from WithYield, or zero.
func Yield(ctx context.Context) time.Duration {
	d, _ := ctx.Value(yieldKey{}).(time.Duration)
	return d
}
