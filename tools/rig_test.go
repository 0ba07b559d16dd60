package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// uncalled provides the methods no test calls.
type uncalled struct{ backend.SandboxBackend }

// processes is a backend whose sandboxes are processes of the real guest agent on the host. It provides no isolation.
type processes struct {
	backend.Unsupported
	uncalled
	t testing.TB

	boxes sync.Map                     // existing sandboxes by id
	made  atomic.Int64                 // number of created sandboxes
	asked atomic.Pointer[backend.Spec] // latest requested spec
	conns sync.Map                     // latest connection of each sandbox
	fail  struct {                     // called by Create and Remove if set
		create atomic.Pointer[func(context.Context) error]
		remove atomic.Pointer[func() error]
	}
}

type fakeSandbox struct {
	info  backend.Info
	guest *guesttest.Guest
}

func (p *processes) Name() string                       { return "processes" }
func (p *processes) Capabilities() backend.Capabilities { return backend.Capabilities{} }
func (p *processes) Close() error                       { return nil }

func (p *processes) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	p.made.Add(1)
	p.asked.Store(&spec)
	if fail := p.fail.create.Load(); fail != nil {
		if err := (*fail)(ctx); err != nil {
			return backend.Info{}, err
		}
	}
	s := fakeSandbox{
		guest: guesttest.Start(p.t, &guesttest.Options{Binary: os.Getenv(guestEnv)}),
		info: backend.Info{
			ID: "engine-" + record.NewID(), SessionID: spec.ID, Instance: spec.Instance, Key: spec.Key, Run: spec.Run,
			Hash: spec.Hash, Image: spec.Image, ImageEnv: []string{"PATH=" + os.Getenv("PATH")}, User: spec.User,
			Network: spec.Network, Root: spec.Root, Limits: spec.Limits, Isolation: backend.IsolationContainer, State: backend.StateRunning, Created: spec.Created,
		},
	}
	p.boxes.Store(s.info.ID, s)
	return s.info, nil
}

func (p *processes) sandbox(id string) (fakeSandbox, error) {
	if s, ok := p.boxes.Load(id); ok {
		return s.(fakeSandbox), nil
	}
	return fakeSandbox{}, backend.ErrNotFound
}

func (p *processes) Get(_ context.Context, id string) (backend.Info, error) {
	s, err := p.sandbox(id)
	return s.info, err
}

func (p *processes) List(_ context.Context, f backend.Filter) (list []backend.Info, err error) {
	for _, info := range p.all() {
		if f.Instance == "" || f.Instance == info.Instance {
			list = append(list, info)
		}
	}
	return list, nil
}

// all returns the existing sandboxes.
func (p *processes) all() (list []backend.Info) {
	p.boxes.Range(func(_, s any) bool {
		list = append(list, s.(fakeSandbox).info)
		return true
	})
	return list
}

func (p *processes) Remove(_ context.Context, id string, _ backend.RemoveOptions) error {
	if fail := p.fail.remove.Load(); fail != nil {
		return (*fail)()
	}
	p.boxes.Delete(id)
	return nil
}

func (p *processes) Dial(_ context.Context, id string) (io.ReadWriteCloser, error) {
	s, err := p.sandbox(id)
	if err != nil {
		return nil, err
	}
	conn := s.guest.Dial()
	p.conns.Store(id, conn)
	return conn, nil
}

// die removes a sandbox and closes the connection.
func (p *processes) die(id string) error {
	p.boxes.Delete(id)
	conn, _ := p.conns.Load(id)
	return conn.(io.Closer).Close()
}

func (p *processes) open() int                                 { return len(p.all()) }
func (p *processes) created() int                              { return int(p.made.Load()) }
func (p *processes) onCreate(fail func(context.Context) error) { p.fail.create.Store(&fail) }

// rig is a Genkit instance with the plugin on a manager.
type rig struct {
	t       *testing.T
	engine  *processes
	manager *session.Manager
	plugin  *tools.Plugin
	g       *genkit.Genkit
	log     *buffertest.Buffer
	models  atomic.Int64
}

func newRig(t *testing.T, plugins ...api.Plugin) *rig {
	t.Helper()
	return rigWith(t, fstest.MapFS{}, plugins...)
}

// rigWith is like newRig, with prompts for Genkit's own loader.
func rigWith(t *testing.T, prompts fs.FS, plugins ...api.Plugin) *rig {
	t.Helper()
	return rigOf(t, session.Options{}, prompts, plugins...)
}

// rigOf is like rigWith, with options for the manager.
func rigOf(t *testing.T, opts session.Options, prompts fs.FS, plugins ...api.Plugin) *rig {
	t.Helper()
	r := &rig{t: t, engine: &processes{t: t}, log: &buffertest.Buffer{}}
	logger := slog.New(slog.NewTextHandler(r.log, nil))
	opts.Logger = logger
	m, err := session.NewManager(r.engine, &opts)
	checktest.Must(t, err)
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Errorf("closing the manager: %v", err)
		}
	})
	r.manager = m
	r.plugin = &tools.Plugin{Manager: m, Logger: logger}
	r.g = initGenkit(t, prompts, append(plugins, r.plugin)...)
	return r
}

// initGenkit starts a Genkit instance that loads only the given prompts.
func initGenkit(t *testing.T, prompts fs.FS, plugins ...api.Plugin) *genkit.Genkit {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return genkit.Init(ctx, genkit.WithExperimental(), genkit.WithPromptFS(prompts), genkit.WithPromptDir("."), genkit.WithPlugins(plugins...))
}

// turn returns one answer of a scripted model.
type turn func(*ai.ModelRequest) ([]*ai.Part, error)

// say returns a turn ending a conversation.
func say(text string) turn {
	return func(*ai.ModelRequest) ([]*ai.Part, error) { return []*ai.Part{ai.NewTextPart(text)}, nil }
}

// call returns a turn calling tools. Arguments: name, input, name, input, …
func call(pairs ...any) turn {
	return func(*ai.ModelRequest) ([]*ai.Part, error) {
		var parts []*ai.Part
		for i := 0; i+1 < len(pairs); i += 2 {
			parts = append(parts, ai.NewToolRequestPart(&ai.ToolRequest{Name: str(pairs[i]), Input: pairs[i+1]}))
		}
		return parts, nil
	}
}

// model registers a model that plays turns, and returns the name and the requests to it.
func (r *rig) model(turns ...turn) (string, *requests) {
	r.t.Helper()
	name := fmt.Sprintf("test/script-%d", r.models.Add(1))
	seen := &requests{}
	genkit.DefineModelAction(r.g, name, &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, SystemRole: true, Tools: true, ToolChoice: true}},
		func(_ context.Context, req *ai.ModelRequest, _ obj, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			n := seen.add(req)
			if n > len(turns) {
				return nil, fmt.Errorf("turn %d was not expected", n)
			}
			parts, err := turns[n-1](req)
			if err != nil {
				return nil, err
			}
			return &ai.ModelResponse{
				Request: req, Message: &ai.Message{Role: ai.RoleModel, Content: parts}, FinishReason: ai.FinishReasonStop,
				Usage: &ai.GenerationUsage{InputTokens: 10, OutputTokens: 3, CachedContentTokens: 4},
			}, nil
		})
	return name, seen
}

// generate plays turns with the sandbox middleware.
func (r *rig) generate(ctx context.Context, s tools.Sandbox, turns ...turn) (*ai.ModelResponse, *requests, error) {
	r.t.Helper()
	name, seen := r.model(turns...)
	resp, err := genkit.Generate(ctx, r.g, ai.WithModelName(name), ai.WithPrompt("go"), ai.WithMaxTurns(50), ai.WithUse(r.plugin.Use(s)))
	return resp, seen, err
}

// requests are the requests to a scripted model.
type requests struct {
	mu   sync.Mutex
	list []*ai.ModelRequest
}

func (r *requests) add(req *ai.ModelRequest) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	copied := *req
	copied.Messages = slices.Clone(req.Messages)
	r.list = append(r.list, &copied)
	return len(r.list)
}

// outputs returns the outputs of the tool calls in the last request, in order.
func (r *requests) outputs() []obj {
	r.mu.Lock()
	defer r.mu.Unlock()
	return outputsOf(r.list[len(r.list)-1])
}

func outputsOf(req *ai.ModelRequest) []obj {
	var out []obj
	for _, m := range req.Messages {
		for _, p := range m.Content {
			if p.IsToolResponse() {
				out = append(out, plain(p.ToolResponse.Output))
			}
		}
	}
	return out
}

// plain converts v as if it was decoded from JSON.
func plain(v any) obj {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var m obj
	if err := json.Unmarshal(b, &m); err != nil {
		panic(fmt.Sprintf("%s: %v", b, err))
	}
	return m
}

// code returns the error code of an output, or an empty string.
func code(out obj) string {
	return str(sub(out["error"])["code"])
}

// message returns the message and remediation of an output's error.
func message(out obj) string {
	e := sub(out["error"])
	return fmt.Sprint(e["message"], "; ", e["remediation"])
}

// toolset is a set of tools of one binding, for calls by name.
type toolset struct {
	t     *testing.T
	tools map[string]ai.Tool
}

// within returns a context with a workflow's run and base request. The run is closed at the end of the test.
func (r *rig) within(id string, base session.Request) context.Context {
	run := session.Run{Namespace: record.NamespaceWorkflow, ID: id}
	r.t.Cleanup(func() {
		if err := r.manager.CloseScope(context.Background(), run.Scope()); err != nil {
			r.t.Error(err)
		}
	})
	return session.WithBase(session.WithRun(context.Background(), run), base)
}

// tools returns tools with a private run.
func (r *rig) tools(s tools.Sandbox) *toolset { return r.toolsIn(context.Background(), s) }

// toolsIn returns tools in the run of ctx.
func (r *rig) toolsIn(ctx context.Context, s tools.Sandbox) *toolset {
	r.t.Helper()
	list, err := r.plugin.Tools(ctx, s)
	checktest.Must(r.t, err)
	set := &toolset{t: r.t, tools: map[string]ai.Tool{}}
	for _, tool := range list {
		set.tools[tool.Name()] = tool
	}
	return set
}

// call calls a tool and returns the output. A Go error fails the test.
func (s *toolset) call(ctx context.Context, name string, input any) obj {
	s.t.Helper()
	out, err := s.tools[name].RunRaw(ctx, input)
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	return plain(out)
}

// ok is like call, but the call must succeed.
func (s *toolset) ok(name string, input any) obj {
	s.t.Helper()
	out := s.call(context.Background(), name, input)
	if code(out) != "" {
		s.t.Fatalf("%s: %v", name, out["error"])
	}
	return out
}

// fails is like call, but the call must fail with code want.
func (s *toolset) fails(want toolspec.Code, name string, input any) obj {
	s.t.Helper()
	out := s.call(context.Background(), name, input)
	e := sub(out["error"])
	if code(out) != string(want) || e["message"] == "" || e["remediation"] == "" || e["retryable"] == nil {
		s.t.Errorf("%s: %v, want an error with code %s", name, out, want)
	}
	return out
}

type obj = map[string]any

// str, num, items, and sub convert a value of an output. A value of another type becomes the zero value.
func str(v any) string  { s, _ := v.(string); return s }
func num(v any) float64 { n, _ := v.(float64); return n }
func items(v any) []any { l, _ := v.([]any); return l }
func sub(v any) obj     { m, _ := v.(obj); return m }

// codeMode returns code mode with a runtime the process engine supports.
func codeMode() tools.Sandbox { return tools.Sandbox{Mode: "code", Runtime: "bash"} }

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Errorf("never happened: %s", what) // not Fatal, because this may run in another goroutine than the test
			return
		}
	}
}

// keys returns the keys of an output, sorted.
func keys(m obj) string { return strings.Join(slices.Sorted(maps.Keys(m)), " ") }
