package session

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/record"
)

// operations are the Manager methods for package session/admin.
type operations struct{ *Manager }

func init() { custody.Of = func(m any) custody.Operations { return operations{m.(*Manager)} } }

// EnvironmentUsed returns when a sandbox last used the environment with the recipe.
func (m operations) EnvironmentUsed(recipe string) (last time.Time) {
	if m.opts.Environments != nil {
		last = m.opts.Environments.LastUsed(recipe)
	}
	return last
}

// Store returns the manager's store.
func (m operations) Store() record.Store { return m.store }

// AfterClose calls f when the manager is closed.
func (m operations) AfterClose(f func(error)) (stop func() bool) {
	return context.AfterFunc(m.ctx, func() { f(errManagerClosed) })
}

// Error wraps an operation's error.
func (m operations) Error(op string, err error) error {
	return sandbox.WrapError(op, m.driver, "", engineError(err))
}
