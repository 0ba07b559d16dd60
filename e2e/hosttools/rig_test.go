// Package hosttools runs agents whose code calls host tools, in real sandboxes without a network. It tests the
// connection, the libraries in the sandbox, the registry, and the model's tools together. The tests of each package
// verify the package's behavior.
package hosttools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

var must, eventually = checktest.Must, checktest.Eventually

const pythonImage = "workcell/python:3.11" // built by `make images`

// patience is the maximum wait for an expected event. Hosts with running tests may be very busy.
const patience = 3 * time.Minute

type obj = map[string]any

// on runs a test on each engine in parallel.
func on(t *testing.T, test func(t *testing.T, m *session.Manager)) {
	onDrivers(t, func(t *testing.T, b backend.SandboxBackend) { test(t, managerOf(t, b)) })
}

// onDrivers is like on, for tests that create managers.
func onDrivers(t *testing.T, test func(t *testing.T, b backend.SandboxBackend)) {
	enginetest.On(t, func(t *testing.T, engine string) { test(t, enginetest.Driver(t, engine)) })
}

// managerOf opens a manager of a new instance. At the end, it checks for leftover sandboxes.
func managerOf(t *testing.T, b backend.SandboxBackend) *session.Manager {
	t.Helper()
	return enginetest.Manager(t, b, &session.Options{Instance: "hosttools-" + record.NewID()})
}

// rig is a Genkit instance whose agents have host tools.
type rig struct {
	t   *testing.T
	m   *session.Manager
	g   *genkit.Genkit
	log *buffertest.Buffer

	mu      sync.Mutex                    // guards offered
	offered map[string]*ai.ToolDefinition // by name, in the latest request to a model
}

func newRig(t *testing.T, m *session.Manager, sources ...hosttools.Source) *rig {
	t.Helper()
	r := &rig{t: t, m: m, log: &buffertest.Buffer{}}
	logger := slog.New(slog.NewTextHandler(r.log, nil))
	registry, err := hosttools.New(&hosttools.Options{Log: logger}, sources...)
	must(t, err)
	t.Cleanup(func() { must(t, registry.Close()) })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	plugin := &tools.Plugin{Manager: m, Logger: logger, HostTools: registry}
	r.g = genkit.Init(ctx, genkit.WithPlugins(plugin), genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	return r
}

// agent loads an agent. The model calls sandbox_run with each program, and then answers. It also answers for an empty
// program. outputs returns the outputs of the calls.
func (r *rig) agent(name, sandbox string, programs ...string) (a *tools.Agent, outputs func() []obj) {
	r.t.Helper()
	var calls []*ai.ToolRequest
	for _, program := range programs {
		var call *ai.ToolRequest
		if program != "" {
			call = &ai.ToolRequest{Name: "sandbox_run", Input: obj{"code": program}}
		}
		calls = append(calls, call)
	}
	return r.calling(name, sandbox, calls...)
}

// calling is like agent, for calls of any tool. A nil call is an answer.
func (r *rig) calling(name, sandbox string, calls ...*ai.ToolRequest) (a *tools.Agent, outputs func() []obj) {
	r.t.Helper()
	var mu sync.Mutex
	var got []obj
	turn := 0
	genkit.DefineModelAction(r.g, "test/"+name, &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, Tools: true, SystemRole: true}},
		func(_ context.Context, req *ai.ModelRequest, _ obj, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			r.offer(req.Tools)
			mu.Lock()
			defer mu.Unlock()
			if last := req.Messages[len(req.Messages)-1].Content[0]; last.ToolResponse != nil {
				out, ok := last.ToolResponse.Output.(obj)
				if !ok {
					return nil, fmt.Errorf("an output is %T", last.ToolResponse.Output)
				}
				got = append(got, out)
			}
			message := ai.NewModelTextMessage("done")
			if turn < len(calls) && calls[turn] != nil {
				message = ai.NewModelMessage(ai.NewToolRequestPart(calls[turn]))
			}
			turn++
			return &ai.ModelResponse{Request: req, Message: message, FinishReason: ai.FinishReasonStop}, nil
		})
	file := fmt.Sprintf("---\nmodel: test/%s\nsandbox: %s\n---\nGo on.\n", name, sandbox)
	agents, err := tools.LoadAgentsFS(r.g, fs.FS(fstest.MapFS{name + ".prompt": {Data: []byte(file)}}))
	must(r.t, err)
	return agents[name], func() []obj {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

func (r *rig) offer(tools []*ai.ToolDefinition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offered = map[string]*ai.ToolDefinition{}
	for _, t := range tools {
		r.offered[t.Name] = t
	}
}

// run runs programs as an agent and returns the outputs of the calls.
func (r *rig) run(ctx context.Context, name, sandbox string, programs ...string) []obj {
	r.t.Helper()
	a, outputs := r.agent(name, sandbox, programs...)
	_, err := a.Run(ctx, nil, nil)
	must(r.t, err)
	return outputs()
}

func script(allow string) string {
	return "{mode: script, image: " + pythonImage + ", host_tools: {allow: " + allow + "}}"
}

// waits observes the calls of orders.wait.
type waits struct {
	begun chan struct{}
	ended chan error
}

func newWaits() *waits { return &waits{make(chan struct{}, 8), make(chan error, 8)} }

// end returns the error that ended a call.
func (w *waits) end() error {
	select {
	case err := <-w.ended:
		return err
	case <-time.After(patience):
		return errors.New("the call has not ended")
	}
}

// orders returns tools that answer, fail, and wait. w observes the waiting calls.
func orders(w *waits) hosttools.Source {
	id := obj{"type": "object", "properties": obj{"id": obj{"type": "string"}}, "required": []any{"id"}}
	return hosttools.Static("orders",
		hosttools.Tool{
			Definition: hosttools.Definition{Name: "lookup", Description: "Finds an order.", ReadOnly: true, Input: id},
			Handle: func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
				return hosttools.Result{Data: fmt.Appendf(nil, `{"order":%s,"total":12.5}`, c.Args)}, nil
			},
		},
		hosttools.Tool{
			Definition: hosttools.Definition{Name: "refund", Description: "Pays an order back.", Destructive: true, Input: id},
			Handle: func(context.Context, hosttools.Call) (hosttools.Result, error) {
				return hosttools.Result{Text: "refunded"}, nil
			},
		},
		hosttools.Tool{
			Definition: hosttools.Definition{Name: "export", Description: "Lists all orders.", ReadOnly: true},
			Handle: func(context.Context, hosttools.Call) (hosttools.Result, error) {
				return hosttools.Result{Text: string(bytes.Repeat([]byte("x"), 1<<20))}, nil
			},
		},
		hosttools.Tool{
			Definition: hosttools.Definition{Name: "wait", Description: "Waits for the end of the call.", ReadOnly: true},
			Handle: func(ctx context.Context, _ hosttools.Call) (hosttools.Result, error) {
				w.begun <- struct{}{}
				<-ctx.Done()
				w.ended <- ctx.Err()
				return hosttools.Result{}, ctx.Err()
			},
		},
	)
}
