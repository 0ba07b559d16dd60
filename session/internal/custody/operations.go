package custody

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/session/record"
)

// Operations are the methods of a session.Manager that only package session/admin calls.
type Operations interface {
	Sweep(ctx context.Context) error
	RemoveScope(ctx context.Context, scope record.Scope) (removed []string, err error)
	Abandoned(ctx context.Context) ([]record.Record, error)
	RemoveAbandoned(ctx context.Context, rec record.Record) error
	// EnvironmentUsed returns when a sandbox last had the environment of a recipe. The time is zero if that is unknown.
	EnvironmentUsed(recipe string) time.Time
	Store() record.Store
	// AfterClose calls f with the error of a closed manager when the manager is closed, unless stop is called before.
	AfterClose(f func(error)) (stop func() bool)
	// Error returns the error of an operation in the form that the manager's methods use.
	Error(op string, err error) error
}

// Of returns the operations of a *session.Manager. Package session sets it.
var Of func(manager any) Operations
