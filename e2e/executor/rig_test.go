//go:build linux

// Package executor runs the real CLI coding agents in real sandboxes, as an unprivileged user without a network, with a
// model of the tests. It verifies the drivers together with package executor. The drivers' tests verify the parsing of
// recorded output.
//
// `make agents` builds the images. The whole suite runs on Docker. On containerd and the local backend, only the
// features in one sandbox are tested. WORKCELL_TEST_BACKEND=containerd runs the whole suite on containerd.
package executor

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	gateway "github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

var must = checktest.Must

// recording writes the output of the CLIs to the testdata of the parsers' tests.
var recording = flag.Bool("record", false, "record the output of the CLIs for the tests of their parsers")

// patience is the maximum duration of a CLI. Hosts with running tests may be very busy.
const patience = 5 * time.Minute

// ample are limits that no CLI reaches.
var ample = backend.Limits{MemoryBytes: 2 << 30, PIDs: 512, CPUMillis: 2000}

// agent is a CLI to test.
type agent struct {
	executor.Driver
	image, model string
}

func agents() []agent {
	return []agent{
		{drivers.Named("claude"), image("claude"), "claude-sonnet-4-5"},
		{drivers.Named("codex"), image("codex"), "gpt-5.1-codex"},
		{drivers.Named("opencode"), image("opencode"), "anthropic/claude-sonnet-4-5"},
		{drivers.Named("gemini"), image("gemini"), "gemini-2.5-pro"},
	}
}

// image returns the image of a CLI. The default is the image with the driver's version. `make contract` sets another
// image.
func image(name string) string {
	return cmp.Or(os.Getenv("WORKCELL_EXECUTOR_IMAGE_"+strings.ToUpper(name)), drivers.Of(name, nil, "").Image)
}

// speakers are the CLIs with support for the Agent Client Protocol, with the common driver.
func speakers() []agent {
	return []agent{
		{speak("opencode", "acp"), image("opencode"), "anthropic/claude-sonnet-4-5"},
		{speak("gemini", "--acp", "-m", "{model}"), image("gemini"), "gemini-2.5-pro"},
	}
}

func speak(argv ...string) speaker {
	return speaker{drivers.Of("acp", argv, "").Driver.(drivers.ACP), argv[0]}
}

// speaker has the name of the CLI, because the tests know the expected requests by this name.
type speaker struct {
	drivers.ACP
	name string
}

func (s speaker) Name() string { return s.name }

// each runs a test for each CLI.
func each(t *testing.T, test func(t *testing.T, a agent)) {
	t.Parallel()
	for _, a := range agents() {
		t.Run(a.Name(), func(t *testing.T) {
			t.Parallel()
			test(t, a)
		})
	}
}

// manager opens a manager of a new instance. At the end, it checks for leftover sandboxes.
func manager(t *testing.T) *session.Manager {
	t.Helper()
	return managerOn(t, enginetest.Names()[0])
}

// managerOn is like manager, on an engine.
func managerOn(t *testing.T, engine string) *session.Manager {
	t.Helper()
	return enginetest.Manager(t, enginetest.Driver(t, engine), &session.Options{Instance: "executor-" + record.NewID()})
}

// rig is a sandbox with a CLI, a model, and a host tool.
type rig struct {
	t     *testing.T
	a     agent
	s     *session.Session
	model *model
	o     executor.Options

	mu     sync.Mutex // guards the fields below
	calls  []string   // arguments of the host tool
	events []executor.Event
	output bytes.Buffer
}

func newRig(t *testing.T, a agent) *rig {
	t.Helper()
	r := newSandbox(t, manager(t), a, ample)
	r.model = newModel("orders_lookup", `{"id":"42"}`, "The total is 12.5.")
	addr := r.model.serve(t, r.s)
	r.o.Models = map[gateway.Dialect]executor.Endpoint{
		gateway.Anthropic:       {BaseURL: addr + "/anthropic", Key: key},
		gateway.OpenAIResponses: {BaseURL: addr + "/openai/v1", Key: key},
		gateway.OpenAIChat:      {BaseURL: addr + "/openai/v1", Key: key},
		gateway.Gemini:          {BaseURL: addr + "/gemini", Key: key},
	}
	return r
}

// newSandbox returns a rig whose CLI has no model yet.
func newSandbox(t *testing.T, m *session.Manager, a agent, limits backend.Limits) *rig {
	t.Helper()
	s, _, err := m.Open(t.Context(), record.AgentKey(record.NewID(), record.DefaultName), session.Request{Image: a.image, Limits: limits})
	must(t, err)
	r := &rig{t: t, a: a, s: s}
	r.o = executor.Options{
		Timeout: patience, Start: patience, Keep: &r.output,
		OnEvent: func(e executor.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		},
	}
	r.tools()
	return r
}

// tools allows the CLI to call orders.lookup.
func (r *rig) tools() {
	registry := orders(r.t, func(args string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls = append(r.calls, args)
	})
	set, err := registry.Set(r.t.Context(), hosttools.Grant{Rules: hosttools.Rules{Allow: []hosttools.Rule{{Tool: "orders.lookup"}}}})
	must(r.t, err)
	r.t.Cleanup(func() { must(r.t, set.Close(context.Background())) })
	attached, err := hosttools.Attach(r.t.Context(), r.s.Sandbox)
	must(r.t, err)
	r.o.HostTools = true
	r.o.Grant = func(ctx context.Context, req *sandbox.ExecRequest) { attached.Grant(ctx, set, req) }
}

// orders returns a registry with the tool orders.lookup, which passes the arguments of each call to note.
func orders(t *testing.T, note func(args string)) *hosttools.Registry {
	t.Helper()
	id := map[string]any{"type": "string"}
	schema := map[string]any{"type": "object", "properties": map[string]any{"id": id}, "required": []any{"id"}}
	registry, err := hosttools.New(nil, hosttools.Static("orders", hosttools.Tool{
		Definition: hosttools.Definition{Name: "lookup", Description: "Finds an order.", ReadOnly: true, Input: schema},
		Handle: func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
			note(string(c.Args))
			return hosttools.Result{Data: []byte(`{"total":12.5}`)}, nil
		},
	}))
	must(t, err)
	t.Cleanup(func() { must(t, registry.Close()) })
	return registry
}

// run runs the CLI. If recording is set, it writes the output to the testdata of the driver.
func (r *rig) run(ctx context.Context, name string, task executor.Task) (executor.Result, error) {
	r.t.Helper()
	if task.Model == "" {
		task.Model = r.a.model
	}
	r.mu.Lock()
	r.events = nil
	r.output.Reset()
	r.mu.Unlock()
	res, err := executor.Run(ctx, r.s, r.a.Driver, task, &r.o)
	if *recording && name != "" {
		dir := filepath.Join("..", "..", "executor", "drivers", "testdata", r.a.Name())
		if s, ok := r.a.Driver.(speaker); ok {
			dir, name = filepath.Join(filepath.Dir(dir), s.ACP.Name()), s.name+"-"+name
		}
		must(r.t, os.MkdirAll(dir, 0o755))
		must(r.t, os.WriteFile(filepath.Join(dir, name+".jsonl"), r.output.Bytes(), 0o644))
	}
	return res, err
}
