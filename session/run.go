package session

import "context"

// Scope is the set of keys of one run, or of one named sandbox: all keys with this Namespace and ID. It decides which
// sandboxes a tool call may name.
type Scope struct {
	Namespace string
	ID        string
}

// Key returns the key of a sandbox in the scope.
func (s Scope) Key(name string) Key { return Key{Namespace: s.Namespace, ID: s.ID, Name: name} }

// String returns "namespace:id".
func (s Scope) String() string { return s.Namespace + ":" + s.ID }

// seals reports whether closing the scope is for good. Runs end once; a named sandbox may be opened again.
func (s Scope) seals() bool { return s.Namespace != NamespaceUser }

// Run is the run that a context belongs to.
type Run struct {
	Namespace string // NamespaceWorkflow, NamespaceAgent or NamespaceMCP
	ID        string // NewRunID
}

// Scope returns the scope of the run's sandboxes.
func (r Run) Scope() Scope { return Scope(r) }

// Key returns the key of one of the run's sandboxes.
func (r Run) Key(name string) Key { return Scope(r).Key(name) }

type runKey struct{}

// WithRun binds ctx to a run: tools that are called with it see only that run's sandboxes.
func WithRun(ctx context.Context, run Run) context.Context {
	return context.WithValue(ctx, runKey{}, run)
}

// RunFromContext returns the run that ctx is bound to.
func RunFromContext(ctx context.Context) (Run, bool) {
	run, ok := ctx.Value(runKey{}).(Run)
	return run, ok
}
