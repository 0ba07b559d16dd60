//go:build linux

package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// TestWaitIsLogged: the wait for another process that makes a named sandbox is logged, once.
func TestWaitIsLogged(t *testing.T) {
	t.Parallel()
	e := sharing{newEngine(t)}
	var log logBuffer
	opts := shared()
	patient := *opts
	patient.Logger = log.logger()
	first, second := newManager(t, e, opts), newManager(t, e, &patient)
	going, goOn := make(chan struct{}), make(chan struct{})
	e.setHooks(func(_ context.Context, spec backend.Spec) error {
		if spec.Image != "test:first" {
			return nil
		}
		close(going)
		<-goOn
		return backend.ErrImage
	}, nil, nil)
	key := session.UserKey("lab")
	open := func(m *session.Manager, req session.Request) <-chan error {
		opened := make(chan error, 1)
		go func() {
			_, _, err := m.Open(t.Context(), key, req)
			opened <- err
		}()
		return opened
	}
	one := open(first, session.Request{Image: "test:first"})
	<-going
	two := open(second, testImage())
	const words = "waiting for another process that is opening or removing the sandbox"
	for !strings.Contains(log.String(), words) && t.Context().Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	close(goOn)
	if err := <-one; !errors.Is(err, backend.ErrImage) {
		t.Errorf("Open: %v, want ErrImage", err)
	}
	must(t, <-two)
	if n := strings.Count(log.String(), words); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// TestRemovedWhileOpened: an Open of a sandbox that somebody else removes before it is reached fails with just that.
func TestRemovedWhileOpened(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	e.setHooks(nil, nil, func(_ context.Context, id string) error {
		e.remove(id)
		return nil
	})
	_, _, err := m.Open(t.Context(), session.UserKey("lab"), testImage())
	if !errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), "it was removed while it was being made") {
		t.Errorf("Open: %v, want ErrLost", err)
	}
	if e.count() != 0 {
		t.Errorf("%d sandboxes are left", e.count())
	}
}
