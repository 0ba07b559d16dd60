package admin

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/internal/custody"
)

// Environment is an environment that the engine keeps.
type Environment struct {
	backend.Environment
	LastUsed time.Time // by a sandbox that was made; when it was installed where nothing else is known
	// Superseded: there is a newer one of the same recipe, for what the image's name means by now.
	Superseded bool
}

// Environments returns the environments of the manager's instance, oldest first.
func Environments(ctx context.Context, m *session.Manager) ([]Environment, error) {
	ops := custody.Of(m)
	list, err := m.Backend().Environments(ctx, m.Instance())
	if err != nil {
		return nil, ops.Error("Environments", err)
	}
	out := make([]Environment, len(list))
	newest := map[[2]string]int{}
	for i, e := range list {
		out[i] = Environment{Environment: e, LastUsed: e.Created}
		if used := ops.EnvironmentUsed(e.Recipe); used.After(e.Created) {
			out[i].LastUsed = used
		}
		kind := [2]string{e.Recipe, e.Image}
		if older, ok := newest[kind]; ok {
			out[older].Superseded, out[older].LastUsed = true, e.Created
		}
		newest[kind] = i
	}
	return out, nil
}

// RemoveEnvironment removes an environment by its name. If a sandbox has it, it stays, and the error wraps
// backend.ErrExists.
func RemoveEnvironment(ctx context.Context, m *session.Manager, name string) error {
	return custody.Of(m).Error("RemoveEnvironment", m.Backend().RemoveEnvironment(ctx, m.Instance(), name))
}
