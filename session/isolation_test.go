package session_test

import (
	"context"
	"errors"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestIsolationFloor verifies that the stricter floor holds, of the operator or of the request, and that a weaker sandbox
// is refused before anything is created.
func TestIsolationFloor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		operator, request backend.Isolation
		want              error
	}{
		{"", "", nil}, {"process", "process", nil},
		{"", "container", backend.ErrUnsupported}, {"kernel", "", backend.ErrUnsupported}, {"kernel", "process", backend.ErrUnsupported},
		{"process", "vm", backend.ErrUnsupported}, {"", "strong", backend.ErrInvalid},
	} {
		b, m := isolated(t, nil, session.Options{Defaults: session.Defaults{Isolation: test.operator}})
		req := session.Request{Image: "x:1", Isolation: test.request}
		if err := m.CheckIsolation(req); !errors.Is(test.want, backend.ErrInvalid) && !errors.Is(err, test.want) {
			t.Errorf("%+v: CheckIsolation: %v", test, err)
		}
		s, _, err := m.Open(t.Context(), session.UserKey("a"), req)
		if !errors.Is(err, test.want) {
			t.Errorf("%+v: %v", test, err)
		}
		if s != nil && (s.Info().Isolation != "process" || s.Settings().Evidence().Isolation != "process") {
			t.Errorf("%+v: %+v", test, s.Info())
		}
		if list, err := b.List(t.Context(), backend.Filter{}); err != nil || (len(list) == 0) != (test.want != nil) {
			t.Errorf("%+v: %d sandboxes exist, %v", test, len(list), err)
		}
	}
}

// TestIsolationOfOthers verifies that a floor also refuses a sandbox that is open, or was left by another process, and
// that the sandbox stays as it is.
func TestIsolationOfOthers(t *testing.T) {
	t.Parallel()
	store := record.NewMemoryStore()
	opts := session.Options{Instance: "i", Store: store}
	b, m := isolated(t, nil, opts)
	key, weak := session.UserKey("a"), session.Request{Image: "x:1"}
	strong := session.Request{Image: "x:1", Isolation: backend.IsolationContainer}
	var refused *backend.IsolationError
	s, _, err := m.Open(t.Context(), key, weak)
	checktest.Must(t, err)
	if _, _, err := m.Open(t.Context(), key, strong); !errors.As(err, &refused) || refused.Has != "process" || refused.Wants != "container" {
		t.Errorf("an open one: %v", err)
	}
	digest := s.Settings().Digest()
	checktest.Must(t, m.Detach(t.Context()))
	_, other := isolated(t, b.Reopen(), opts)
	for _, mode := range []session.OpenMode{session.OpenShared, session.OpenAsIs} {
		strong.Mode = mode
		if _, _, err := other.Open(t.Context(), key, strong); !errors.As(err, &refused) {
			t.Errorf("an abandoned sandbox, mode %v: %v", mode, err)
		}
	}
	list, err := other.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Settings().Digest() != digest {
		t.Errorf("it is listed with another digest: %+v, %v", list, err)
	}
	if s, created, err := other.Open(t.Context(), key, weak); err != nil || created || s.Settings().Digest() != digest {
		t.Errorf("without a floor: %v, created %v", err, created)
	}
}

// isolated returns a manager on a backend of processes; nil makes one.
func isolated(t *testing.T, b *memory.Backend, opts session.Options) (*memory.Backend, *session.Manager) {
	t.Helper()
	var err error
	if b == nil {
		b, err = memory.New(nil)
		checktest.Must(t, err)
	}
	m, err := session.NewManager(b, &opts)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, m.Close(context.Background())) })
	return b, m
}
