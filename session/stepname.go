package session

import (
	"cmp"
	"context"
	"maps"
)

type (
	sessionNameKey struct{}
	baseKey        struct{}
)

// WithSessionName names the one of the run's sandboxes in which an agent works that is run with ctx and names none itself. A
// workflow step that asks for a sandbox of its own reaches its agent's tools this way.
func WithSessionName(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, sessionNameKey{}, name)
}

// SessionNameFromContext returns the name set by WithSessionName, DefaultName without one.
func SessionNameFromContext(ctx context.Context) string {
	if name, ok := ctx.Value(sessionNameKey{}).(string); ok && name != "" {
		return name
	}
	return DefaultName
}

// WithBase sets what the run's sandboxes are by default. Who opens one with ctx takes from base every field that
// is not set, and always Retention; so an agent that asks for nothing special shares the run's sandbox.
func WithBase(ctx context.Context, base Request) context.Context {
	return context.WithValue(ctx, baseKey{}, base)
}

// BaseFromContext returns the request set by WithBase.
func BaseFromContext(ctx context.Context) (Request, bool) {
	base, ok := ctx.Value(baseKey{}).(Request)
	return base, ok
}

// WithDefaults returns r with its zero fields taken from base and, by name, the variables of base that r does not set.
func (r Request) WithDefaults(base Request) Request {
	r.Image = cmp.Or(r.Image, base.Image)
	r.User = cmp.Or(r.User, base.User)
	if !r.RootSet {
		r.Root = cmp.Or(r.Root, base.Root)
	}
	r.RootSet = r.RootSet || base.RootSet
	r.Network = cmp.Or(r.Network, base.Network)
	r.Runtime = cmp.Or(r.Runtime, base.Runtime)
	r.Language = cmp.Or(r.Language, base.Language)
	r.Pull = cmp.Or(r.Pull, base.Pull)
	r.IdleTimeout = cmp.Or(r.IdleTimeout, base.IdleTimeout)
	r.ExecTimeout = cmp.Or(r.ExecTimeout, base.ExecTimeout)
	r.Retention = cmp.Or(r.Retention, base.Retention)
	if r.OnPull == nil {
		r.OnPull = base.OnPull
	}
	if r.Prepare == nil {
		r.Prepare = base.Prepare
	}
	if r.OnAdopt == nil {
		r.OnAdopt = base.OnAdopt
	}
	r.Limits = r.Limits.Merge(base.Limits)
	r.Ceiling = r.Ceiling.Clamp(base.Ceiling)
	if len(base.Env) > 0 {
		env := maps.Clone(base.Env)
		maps.Copy(env, r.Env)
		r.Env = env
	}
	return r
}
