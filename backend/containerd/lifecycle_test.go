package containerd_test

import (
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

func TestLifecycle(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	info := create(t, b, spec)
	if info.SessionID != spec.ID || info.State != backend.StateRunning {
		t.Errorf("info %+v", info)
	}
	conn := dial(t, b, info.ID)
	if got := sh(t, conn, "id -u; pwd; echo hello > f; cat f"); got != "1000\n/workspace\nhello\n" {
		t.Errorf("inside: %q", got)
	}
}
