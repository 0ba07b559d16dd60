package custody

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/session/record"
)

// Operations are the methods of a session.Manager for package session/admin.
type Operations interface {
	Sweep(ctx context.Context) error
	RemoveScope(ctx context.Context, scope record.Scope) (removed []string, err error)
	Abandoned(ctx context.Context) ([]record.Record, error)
	RemoveAbandoned(ctx context.Context, rec record.Record) error
	// EnvironmentUsed returns when a sandbox last used the environment with the recipe. If unknown, it returns zero.
	EnvironmentUsed(recipe string) time.Time
	Store() record.Store
	// AfterClose calls f with the closed manager's error when the manager is closed, unless stop is called first.
	AfterClose(f func(error)) (stop func() bool)
	// Error wraps an operation's error as the manager's methods do.
	Error(op string, err error) error
}

// Of returns the operations of a *session.Manager. Package session sets it.
var Of func(manager any) Operations
