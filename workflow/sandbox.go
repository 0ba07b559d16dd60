package workflow

import (
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// baseRequest turns the workflow's `sandbox:` into the request that the run's sandboxes are based on. Without a wish for
// an image the base has none: then agents bring their own.
func baseRequest(s frontmatter.Sandbox, hasImage bool) session.Request {
	req := session.Request{
		User:        s.User,
		Env:         s.Env,
		Limits:      s.Limits.Backend(),
		IdleTimeout: time.Duration(s.Limits.TimeoutSeconds) * time.Second,
		ExecTimeout: time.Duration(s.Limits.ExecTimeoutSeconds) * time.Second,
	}
	if hasImage {
		req.Image = s.WithDefaults().Image
		req.Language = string(s.Runtime)
	}
	if s.Root == frontmatter.RootWritable {
		req.Root = backend.RootWritable
	}
	if s.Network.Enabled {
		req.Network = backend.NetworkBridge
	}
	return req
}

// defaultImage is where commands run when neither the workflow nor an agent names an image.
func defaultImage() string { return frontmatter.DefaultImage(frontmatter.RuntimeBash) }
