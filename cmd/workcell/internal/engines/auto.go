package engines

import (
	"cmp"
	"context"
	"fmt"
	"runtime"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// openAuto opens Docker, or else containerd. It never falls back to the local backend, because it uses no container, so
// users must select it explicitly.
func (s Set) openAuto(ctx context.Context) (backend.SandboxBackend, error) {
	docker, containerd := s.docker(), s.containerd()
	b, first := docker.Open(ctx)
	if first == nil {
		return b, nil
	}
	why := docker.Why(ctx, first)
	b, second := containerd.Open(ctx)
	switch {
	case second == nil:
		s.Notice(fmt.Sprintf("using %s because %s is unavailable: %s", containerd.Name, docker.Name, why))
		return b, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	todo := "start Docker or containerd, and run `workcell doctor` to check your setup"
	if runtime.GOOS == "linux" {
		todo += "\nor use --backend local (no engine or image needed, but less isolation: see docs/operations/local.md)"
	}
	return nil, hint.New(hint.Unavailable, fmt.Errorf("no container engine available (%w)\n%s: %s\n%s: %s",
		backend.ErrUnavailable, docker.Name, why, containerd.Name, containerd.Why(ctx, second)), todo)
}

// Why returns the reason why an engine is not usable, in one line. err is the error of Open or of a request.
func (e Engine) Why(ctx context.Context, err error) string {
	return cmp.Or(e.absent(ctx), sanitize.Line(err.Error()))
}
