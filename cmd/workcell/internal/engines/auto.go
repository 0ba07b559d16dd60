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

// autoHeadStart is how long Docker may take to answer before containerd is asked as well, so that an engine that hangs
// does not make the choice take twice as long.
const autoHeadStart = time.Second

// opened is an engine, or why it cannot be used.
type opened struct {
	engine  Engine
	backend backend.SandboxBackend
	err     error
}

// begin opens an engine in the background. The channel gets one value, soon after ctx ended at the latest.
func (e Engine) begin(ctx context.Context) <-chan opened {
	result := make(chan opened, 1)
	go func() {
		b, err := e.Open(ctx)
		result <- opened{e, b, err}
	}()
	return result
}

// why returns in one line why an engine cannot be used.
func (o opened) why(ctx context.Context) string {
	if words := o.engine.Absent(ctx); words != "" {
		return words
	}
	return sanitize.Line(o.err.Error())
}

// openAuto opens Docker, else containerd. It never falls back to the local backend: that is no container, so a person
// has to choose it.
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

// openFirst opens one of two engines: the second only when the first fails, though it is asked before that when the
// first is slow to answer. An engine that is not needed is closed.
func openFirst(ctx context.Context, one, two Engine) (first, second opened) {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp() // a driver does not keep the context that it was opened with
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
				late.backend.Close() // nothing was done with it
			}
		}
		return first, opened{engine: two}
	}
	if twos == nil {
		twos = two.begin(ctx)
	}
	return first, <-twos
}

// noEngine returns the error of auto when no engine can be used.
func noEngine(ctx context.Context, tried ...opened) error {
	var text string
	for _, o := range tried {
		text += fmt.Sprintf("\n%s: %s", o.engine.Name, o.why(ctx))
	}
	todo := "start Docker or containerd, and run `workcell doctor` to check your setup"
	if runtime.GOOS == "linux" {
		todo += "\nor use --backend local (no engine or image needed, but less isolation: see docs/local.md)"
	}
	return hint.New(hint.Unavailable, fmt.Errorf("no container engine available (%w)%s", backend.ErrUnavailable, text), todo)
}
