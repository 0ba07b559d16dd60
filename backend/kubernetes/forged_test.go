package kubernetes_test

import (
	"context"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestForgedPod verifies that a forged pod, which users of the namespace can create for the sandbox of a key, is not
// adopted for the key, and that connecting to it fails.
func TestForgedPod(t *testing.T) {
	t.Parallel()
	key, spec := session.UserKey("bob"), newSpec()
	spec.ID, spec.Key = "sbx_"+record.NewID(), key.String()
	backendtest.Create(t, newBackend(t, nil), spec)
	opts := &session.Options{Instance: instance, Store: record.NewMemoryStore(), ReapEvery: -1}
	m, err := session.NewManager(newBackend(t, nil), opts)
	must(t, err)
	defer func() { must(t, m.Close(context.Background())) }()
	s, created, err := m.Open(t.Context(), key, session.Request{Image: debianImage})
	if err != nil || !created || s.ID() == spec.ID {
		t.Errorf("Open: created %v, %v", created, err)
	}
	backendtest.Fails(t, "Connect", second(m.Connect(t.Context(), spec.ID)), backend.ErrPermission)
}
