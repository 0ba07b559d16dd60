// Package wish turns what a file says of a sandbox into a session's request.
package wish

import (
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// Request returns the request of a sandbox that is described by s. What s says nothing of is left out, so that
// Request.Over can take it from a base; an explicit no is not nothing. The image is as written: whoever asks knows which
// one a runtime means.
func Request(s frontmatter.Sandbox) session.Request {
	full := s.WithDefaults()
	req := session.Request{
		Image: s.Image, User: s.User, Env: s.Env, RootSet: s.Root != "",
		Limits:      s.Limits.Backend(),
		IdleTimeout: time.Duration(s.Limits.TimeoutSeconds) * time.Second,
		ExecTimeout: time.Duration(full.Limits.ExecTimeoutSeconds) * time.Second,
	}
	if s.Root == frontmatter.RootWritable {
		req.Root = backend.RootWritable
	}
	switch {
	case full.Network.Allowed():
		req.Network = backend.NetworkBridge
	case full.Network.Enabled != nil:
		req.Network = backend.NetworkNone
	}
	return req
}
