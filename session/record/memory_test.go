package record_test

import (
	"testing"

	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/storetest"
)

func TestMemoryStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) record.Store { return record.NewMemoryStore() })
}
