package session

import (
	"cmp"
	"context"
	"maps"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/record"
)

type (
	sessionNameKey struct{}
	userKey        struct{}
	baseKey        struct{}
)

// WithSessionName sets the name of the run's sandbox for agents that run with ctx and specify no name. A workflow step
// with a separate sandbox uses it to select this sandbox for the tools of the step's agent.
func WithSessionName(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, sessionNameKey{}, name)
}

// SessionNameFromContext returns the name set by WithSessionName. Without a name, it returns record.DefaultName.
func SessionNameFromContext(ctx context.Context) string {
	if name, ok := ctx.Value(sessionNameKey{}).(string); ok && name != "" {
		return name
	}
	return record.DefaultName
}

// WithUser sets the end user of agents run with ctx. An agent file with `session: user` uses this user's sandbox. The
// sandbox outlives runs and is removed after the idle timeout. Sandboxes of Genkit agents' conversations also belong to
// the user. The name must come from the program, which has authenticated the user, never from a model. See
// record.UserScope for the maximum length.
func WithUser(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, userKey{}, name)
}

// UserFromContext returns the name set by WithUser. Without a name, it returns "".
func UserFromContext(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}

// WithBase sets the default request for the run's sandboxes. The tools apply it with WithDefaults, so an agent without
// special settings shares the run's sandbox. Manager.Open does not apply it.
func WithBase(ctx context.Context, base Request) context.Context {
	return context.WithValue(ctx, baseKey{}, base)
}

// BaseFromContext returns the request set by WithBase.
func BaseFromContext(ctx context.Context) (Request, bool) {
	base, ok := ctx.Value(baseKey{}).(Request)
	return base, ok
}

// WithDefaults returns r with its zero fields taken from base, except IdlePolicy, Mode, and Match. It also adds the
// environment variables of base that r does not set. If base explicitly disables the network, the result has no network
// either. It can still have services, which are not a network.
func (r Request) WithDefaults(base Request) Request {
	if r.Image == "" {
		r.Image, r.DefaultImage = base.Image, base.DefaultImage
	}
	r.User = cmp.Or(r.User, base.User)
	if !r.RootSet {
		r.Root = cmp.Or(r.Root, base.Root)
	}
	r.RootSet = r.RootSet || base.RootSet
	services := r.Egress.Services
	banned := base.Network == backend.NetworkNone && len(base.Egress.Allow) == 0
	if banned || r.Network == "" && len(r.Egress.Allow) == 0 {
		r.Network, r.Egress = base.Network, base.Egress
	}
	if r.Egress.Services = services; services == nil {
		r.Egress.Services = base.Egress.Services
	}
	if r.Environment.IsZero() {
		r.Environment = base.Environment
	}
	if r.Mounts == nil {
		r.Mounts = base.Mounts
	}
	if r.Caches == nil {
		r.Caches = base.Caches
	}
	r.OCIRuntime = cmp.Or(r.OCIRuntime, base.OCIRuntime)
	r.Isolation = r.Isolation.Stricter(base.Isolation)
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

// Run identifies the run of a context.
type Run struct {
	Namespace string // for example record.NamespaceWorkflow
	ID        string // NewRunID
}

// Scope returns the scope of the run's sandboxes.
func (r Run) Scope() record.Scope { return record.Scope(r) }

// Key returns the key of the run's sandbox with the specified name.
func (r Run) Key(name string) Key { return record.Scope(r).Key(name) }

type runKey struct{}

// WithRun binds ctx to a run. Tools called with ctx can use only the run's sandboxes.
func WithRun(ctx context.Context, run Run) context.Context {
	return context.WithValue(ctx, runKey{}, run)
}

// RunFromContext returns the run set by WithRun.
func RunFromContext(ctx context.Context) (Run, bool) {
	run, ok := ctx.Value(runKey{}).(Run)
	return run, ok
}

// Key names a sandbox. See package record.
type Key = record.Key

// WorkflowKey names a sandbox of a workflow run.
func WorkflowKey(runID, name string) Key { return record.WorkflowKey(runID, name) }

// UserKey names a sandbox without a run.
func UserKey(name string) Key { return record.UserKey(name) }

// NewRunID returns the id of a new run.
func NewRunID() string { return record.NewRunID() }
