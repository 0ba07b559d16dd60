package tools

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/firebase/genkit/go/core/api"

	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/session"
)

// toolbox is what all tools of one plugin share.
type toolbox struct {
	manager  *session.Manager
	log      *slog.Logger
	hosts    *hosttools.Registry          // nil for none
	models   *model.Proxy                 // nil: no mode executor
	asks     bool                         // approvals interrupt the call of a tool
	registry atomic.Pointer[api.Registry] // of the Genkit that has the plugin; nil for none

	executorImages map[string]string // by command, in place of the drivers'
	versions       drivers.Versions  // of coding agents that were asked

	rounds interrupt.Rounds[*interrupt.Job[any]] // what waits for the restart of an interrupted call

	texts sync.Map // partials that were registered, by name

	mu     sync.Mutex // guards the fields below; never held while a tool works
	cached map[string][]byte
	turns  map[turn]chan struct{} // that coding agents have, closed at their ends
}

func newToolbox(m *session.Manager, log *slog.Logger) *toolbox {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &toolbox{manager: m, log: log, cached: map[string][]byte{}, turns: map[turn]chan struct{}{}}
}

// schemas returns copies of the inferred schemas of a tool, which are kept: inference costs more than everything else
// in making one, and model plugins may write into what they are given.
func (t *toolbox) schemas(name string, infer func() (in, out map[string]any)) (in, out map[string]any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.cached[name]; !ok {
		in, out := infer()
		t.cached[name], _ = json.Marshal([]any{in, out}) // plain data
	}
	_ = json.Unmarshal(t.cached[name], &[]any{&in, &out}) // as it was encoded
	return in, out
}
