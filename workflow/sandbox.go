package workflow

import (
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
)

// baseRequest turns the workflow's `sandbox:` into the request that the run's sandboxes are based on. Without a wish for
// an image the base has none: then agents bring their own.
func baseRequest(s frontmatter.Sandbox, hasImage bool) session.Request {
	req := wish.Request(s)
	if hasImage {
		req.Image = s.WithDefaults().Image
		req.Language = string(s.Runtime)
	}
	return req
}

// defaultImage is where commands run when neither the workflow nor an agent names an image.
func defaultImage() string { return frontmatter.DefaultImage(frontmatter.RuntimeBash) }
