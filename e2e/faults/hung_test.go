//go:build linux

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// typed reports whether an error has a class that a caller can act on. An engine's faults must cause only such errors.
func typed(err error) bool {
	for _, class := range []error{
		backend.ErrUnavailable, backend.ErrLost, backend.ErrCapacity, backend.ErrQuota, backend.ErrImage, backend.ErrClosed,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// written tracks the lines added to a file by commands in a sandbox.
type written struct {
	s    *session.Session
	last int
	done map[string]bool // by line: whether the command reported success

	mayGo bool // the sandbox may be lost
}

// write adds a line. If the engine does not answer, the line may or may not be written.
func (w *written) write(ctx context.Context) error {
	w.last++
	line := fmt.Sprintf("line-%06d.", w.last)
	w.done[line] = false
	// On a full disk, only the beginning of a line may be written, so start each line with a newline.
	res, err := w.s.Exec(ctx, sandbox.ExecRequest{Command: `printf '\n` + line + `\n' >> log`})
	if err == nil && res.Status == sandbox.ExecCompleted && res.ExitCode == 0 {
		w.done[line] = true
	}
	return err
}

// check waits until the sandbox answers and checks the file. All successful writes must be present, and no write may be
// present twice.
func (w *written) check(t *testing.T, f *fault) {
	t.Helper()
	var log bytes.Buffer
	eventually(t, "the sandbox answers again", func() bool {
		log.Reset()
		_, err := w.s.ReadFile(t.Context(), "log", &log, sandbox.ReadFileOptions{})
		if err != nil && !errors.Is(err, backend.ErrUnavailable) {
			f.lose(t, "an existing sandbox: %v", err)
		}
		return !errors.Is(err, backend.ErrUnavailable)
	})
	counts := map[string]int{}
	for line := range strings.Lines(log.String()) {
		counts[strings.TrimSpace(line)]++
	}
	for line, done := range w.done {
		if n := counts[line]; n > 1 || n == 0 && done {
			f.lose(t, "%s is there %d times, done is %v", line, n, done)
		}
	}
}

// TestHungEngine creates, uses, and removes sandboxes while a proxy in front of the engine delays, breaks, or drops
// connections. Calls must end with appropriate errors, successful operations must have taken effect, and everything
// must work again afterwards.
func TestHungEngine(t *testing.T) {
	on(t, []string{"docker", "containerd"}, func(t *testing.T, h *host) {
		random := chance(t)
		p, driver := behind(t, h.engine)
		l := h.library(t, driver)
		s, _, err := l.Open(t.Context(), session.WorkflowKey(session.NewRunID(), "kept"), session.Request{Image: image, IdleTimeout: -1})
		must(t, err)
		kept := &written{s: s, done: map[string]bool{}}
		for range laps(1) {
			for _, w := range []weather{slow, reset, cut, hole, unanswered} {
				f := faultOf("engine's socket "+string(w), h.engine)
				storm(t, p, l, w, random, f, kept)
				if t.Failed() {
					return
				}
			}
		}
		eventually(t, "the kept sandbox can be closed", func() bool {
			err = s.Close(t.Context())
			return !errors.Is(err, backend.ErrUnavailable)
		})
		must(t, err)
		faultOf("engine's socket "+string(cut), h.engine).leave(t, h.left(t))
	})
}

// storm changes the weather while clients work.
func storm(t *testing.T, p *proxy, l *library, w weather, random *rand.Rand, f *fault, kept *written) {
	t.Helper()
	during(t, l, f, kept, func() {
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond) // the test varies this moment randomly
		p.set(w)
		f.inject(1)
		// The test varies the duration randomly, shorter or longer than the driver's patience.
		time.Sleep(time.Duration(500+random.IntN(3500)) * time.Millisecond)
		p.set(fair)
	})
	kept.check(t, f)
	eventually(t, "sandboxes can be opened again", func() bool { return useOnce(t.Context(), l) == nil })
	// Sandboxes whose removal failed are removed now.
	eventually(t, "only the kept sandbox remains", func() bool {
		list, err := l.List(t.Context())
		return err == nil && len(list) == 1
	})
}

// useOnce opens a sandbox, uses it, and closes it.
func useOnce(ctx context.Context, l *library) error {
	key := session.WorkflowKey(session.NewRunID(), record.DefaultName)
	s, _, err := l.Open(ctx, key, session.Request{Image: image})
	if err == nil {
		_, err = s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"true"}})
	}
	return errors.Join(err, l.CloseScope(ctx, key.Scope()))
}

// during creates, uses, and removes sandboxes in several clients during a fault.
func during(t *testing.T, l *library, f *fault, kept *written, fault func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	work := func(once func() error, may func(error) bool) {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := once()
				if err != nil && !may(err) {
					f.lose(t, "during the fault: %v", err)
				}
				if err != nil {
					time.Sleep(10 * time.Millisecond) // do not repeat immediate failures in a busy loop
				}
			}
		})
	}
	for range 2 {
		work(func() error { return useOnce(t.Context(), l) }, typed)
	}
	work(func() error { return kept.write(t.Context()) }, func(err error) bool {
		return errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrQuota) || kept.mayGo && errors.Is(err, backend.ErrLost)
	})
	fault()
}
