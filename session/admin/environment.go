package admin

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/internal/custody"
)

// Environment is an environment stored on the engine.
type Environment struct {
	backend.Environment
	LastUsed time.Time // when a sandbox was last created with it; if unknown, when it was installed
	// Superseded reports a newer environment of the same recipe, because the image's reference now means another image.
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

// RemoveEnvironment removes an environment by name. If a sandbox uses the environment, RemoveEnvironment keeps it and
// returns an error wrapping backend.ErrExists.
func RemoveEnvironment(ctx context.Context, m *session.Manager, name string) error {
	return custody.Of(m).Error("RemoveEnvironment", m.Backend().RemoveEnvironment(ctx, m.Instance(), name))
}
