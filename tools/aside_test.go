package tools_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// breakable is a backend whose guest agents send garbage after it is broken.
type breakable struct {
	*memory.Backend
	link   atomic.Pointer[io.ReadWriteCloser]
	broken atomic.Bool
}

func (b *breakable) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	if b.broken.Load() {
		host, guest := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, guest) }() // both goroutines end with host
		go func() { _, _ = guest.Write(make([]byte, 64)) }()
		return host, nil
	}
	rw, err := b.Backend.Dial(ctx, id)
	b.link.Store(&rw)
	return rw, err
}

// TestSetAside verifies that "keep: workspace" removes a user's sandbox at the end of a run, unless another run uses it
// or its commands cannot be listed.
func TestSetAside(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		during func(*testing.T, *breakable, *session.Session)
		left   int
	}{
		"idle": {func(*testing.T, *breakable, *session.Session) {}, 0},
		"another run's command": {func(t *testing.T, b *breakable, s *session.Session) {
			if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "sleep", Background: true}); err != nil {
				t.Error(err)
			}
		}, 1},
		"not listed": {func(_ *testing.T, b *breakable, _ *session.Session) {
			b.broken.Store(true)
			(*b.link.Load()).Close()
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine, err := memory.New(nil)
			checktest.Must(t, err)
			b := &breakable{Backend: engine}
			b.On("true", memory.Answer{})
			b.On("sleep", memory.Answer{Takes: 1 << 40})
			m, err := session.NewManager(b, &session.Options{
				Instance: "here", Store: record.NewMemoryStore(), Logger: slog.New(slog.DiscardHandler),
			})
			checktest.Must(t, err)
			t.Cleanup(func() { _ = m.Close(context.Background()) }) // the backend may be broken
			r := &rig{t: t, manager: m, log: &buffertest.Buffer{}}
			r.plugin = &tools.Plugin{Manager: m, Logger: slog.New(slog.DiscardHandler)}
			r.g = initGenkit(t, fstest.MapFS{}, r.plugin)
			model, _ := r.model(call("sandbox_exec", obj{"command": "true"}), func(req *ai.ModelRequest) ([]*ai.Part, error) {
				list, err := m.List(t.Context())
				if err != nil || len(list) != 1 {
					return nil, errors.Join(err, fmt.Errorf("%d sandboxes: %v", len(list), outputsOf(req)))
				}
				s, err := m.Get(list[0].Key)
				if err == nil {
					test.during(t, b, s)
				}
				return []*ai.Part{ai.NewTextPart("done")}, err
			})
			const name = "sandbox: {mode: code, runtime: bash, session: user, keep: workspace}"
			a := r.agent("a", "---\nmodel: "+model+"\n"+name+"\n---\nGo.")
			if _, err := a.Run(session.WithUser(t.Context(), "ann"), nil, nil); err != nil {
				t.Error(err)
			}
			removed := 0
			for _, c := range b.Calls() {
				if c.Op == memory.OpRemove {
					removed++
				}
			}
			if removed != 1-test.left {
				t.Errorf("%d removed, want %d left", removed, test.left)
			}
		})
	}
}
