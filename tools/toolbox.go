package tools

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/firebase/genkit/go/core/api"

	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/session"
)

// toolbox is the state all tools of one plugin share.
type toolbox struct {
	plugin   *Plugin
	manager  *session.Manager
	log      *slog.Logger
	registry atomic.Pointer[api.Registry] // of the Genkit instance with the plugin; nil without Genkit
	versions drivers.Versions             // cached versions of coding agents

	rounds interrupt.Rounds[*interrupt.Job[any]] // interrupted calls, waiting for their restart

	texts sync.Map // registered partials, by name
	turns sync.Map // channels of the current turns of coding agents, by turn; closed when the turn ends

	mu     sync.Mutex // guards cached; never held while a tool runs
	cached map[string][]byte
}

func newToolbox(p *Plugin) *toolbox {
	log := cmp.Or(p.Logger, slog.New(slog.DiscardHandler))
	return &toolbox{plugin: p, manager: p.Manager, log: log, cached: map[string][]byte{}}
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
