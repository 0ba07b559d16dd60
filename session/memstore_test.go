package session_test

import (
	"testing"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/storetest"
)

func TestMemoryStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) session.Store { return session.NewMemoryStore() })
}
