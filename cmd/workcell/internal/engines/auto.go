package engines

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// autoHeadStart is Docker's time to respond before the selection also tries containerd. It keeps a hanging engine from
// doubling the time of the selection.
const autoHeadStart = time.Second

// opened is an opened engine, or the error of opening it.
type opened struct {
	engine  Engine
	backend backend.SandboxBackend
	err     error
}

// begin opens an engine in the background. The channel receives one value, at the latest soon after ctx is done.
func (e Engine) begin(ctx context.Context) <-chan opened {
	result := make(chan opened, 1)
	go func() {
		b, err := e.Open(ctx)
		result <- opened{e, b, err}
	}()
	return result
}

// why returns the reason why an engine is not usable, in one line.
func (o opened) why(ctx context.Context) string {
	if absent := o.engine.Absent(ctx); absent != "" {
		return absent
	}
	return sanitize.Line(o.err.Error())
}

// openAuto opens Docker, or else containerd. It never falls back to the local backend, because it uses no container, so
// users must select it explicitly.
func (s Set) openAuto(ctx context.Context) (backend.SandboxBackend, error) {
	first, second := openFirst(ctx, s.docker(), s.containerd())
	switch {
	case first.err == nil:
		return first.backend, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case second.err == nil:
		s.Notice(fmt.Sprintf("using %s because %s is unavailable: %s", second.engine.Name, first.engine.Name, first.why(ctx)))
		return second.backend, nil
	default:
		return nil, noEngine(ctx, first, second)
	}
}

// openFirst opens one of two engines. It uses the second engine only if the first fails. If the first engine is slow,
// openFirst already tries the second engine while it waits. It closes the unused engine.
func openFirst(ctx context.Context, one, two Engine) (first, second opened) {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp() // drivers do not keep the context of Open
	ones := one.begin(ctx)
	var twos <-chan opened
	select {
	case first = <-ones:
	case <-time.After(autoHeadStart):
		twos = two.begin(ctx)
		first = <-ones
	}
	if first.err == nil {
		if twos != nil {
			giveUp()
			if late := <-twos; late.err == nil {
				late.backend.Close() // unused, so the error does not matter
			}
		}
		return first, opened{engine: two}
	}
	if twos == nil {
		twos = two.begin(ctx)
	}
	return first, <-twos
}

// noEngine returns auto's error if no engine is usable.
func noEngine(ctx context.Context, tried ...opened) error {
	var text string
	for _, o := range tried {
		text += fmt.Sprintf("\n%s: %s", o.engine.Name, o.why(ctx))
	}
	todo := "start Docker or containerd, and run `workcell doctor` to check your setup"
	if runtime.GOOS == "linux" {
		todo += "\nor use --backend local (no engine or image needed, but less isolation: see docs/operations/local.md)"
	}
	return hint.New(hint.Unavailable, fmt.Errorf("no container engine available (%w)%s",
		backend.ErrUnavailable, text), todo)
}
