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

// toolbox is the state that all tools of one plugin share.
type toolbox struct {
	manager  *session.Manager
	log      *slog.Logger
	hosts    **hosttools.Registry         // the plugin's, which may be set after genkit.Init; nil for none
	models   *model.Proxy                 // nil if mode executor is not available
	asks     bool                         // approvals interrupt the tool call
	registry atomic.Pointer[api.Registry] // of the Genkit instance with the plugin; nil without Genkit

	executorImages map[string]string // by command; override the drivers' images
	versions       drivers.Versions  // cached versions of coding agents

	rounds interrupt.Rounds[*interrupt.Job[any]] // interrupted calls that wait for their restart

	texts sync.Map // registered partials, by name

	mu     sync.Mutex // guards the fields below; never held while a tool runs
	cached map[string][]byte
	turns  map[turn]chan struct{} // current turns of coding agents; a channel is closed when its turn ends
}

func newToolbox(m *session.Manager, log *slog.Logger) *toolbox {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	hosts := new(*hosttools.Registry)
	return &toolbox{manager: m, log: log, hosts: hosts, cached: map[string][]byte{}, turns: map[turn]chan struct{}{}}
}

// schemas returns copies of a tool's inferred schemas. It caches the schemas, because inference is the most expensive
// part of creating a tool. It copies them, because model plugins may modify them.
func (t *toolbox) schemas(name string, infer func() (in, out map[string]any)) (in, out map[string]any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.cached[name]; !ok {
		in, out := infer()
		t.cached[name], _ = json.Marshal([]any{in, out}) // plain data, so the error is always nil
	}
	_ = json.Unmarshal(t.cached[name], &[]any{&in, &out}) // decodes its own encoding, so the error is always nil
	return in, out
}
