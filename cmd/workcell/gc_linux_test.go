package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session/record"
)

// TestGCOfKilledPrograms verifies that `gc --yes` names the recently ended sandbox of a library program and removes an
// older sandbox.
func TestGCOfKilledPrograms(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	b, err := local.New(t.Context(), nil)
	checktest.Must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	var ids []string
	for _, age := range []time.Duration{time.Minute, 2 * time.Hour} {
		info, err := b.Create(t.Context(), backend.Spec{
			ID: "sbx_" + record.NewID(), Instance: record.NewID(), Key: record.AgentKey("run", "default").String(),
			Image: "debian", User: "1000:1000", Ephemeral: true, Created: time.Now().Add(-age),
		})
		checktest.Must(t, err)
		t.Cleanup(func() { _ = b.Remove(context.Background(), info.ID, backend.RemoveOptions{Volumes: true}) })
		checktest.Must(t, b.Stop(t.Context(), info.ID))
		ids = append(ids, info.SessionID)
	}
	out, notices := u.run(0, "sandbox", "gc", "--yes")
	want := ids[0] + " not removed: its program may still be running; run"
	if strings.Contains(out, ids[0]) || !strings.Contains(notices, want) {
		t.Errorf("gc --yes: %s%s", out, notices)
	}
	if out, _ := u.run(0, "sandbox", "gc"); !strings.Contains(out, ids[0]) || strings.Contains(out, ids[1]) {
		t.Errorf("gc: %s", out)
	}
}
