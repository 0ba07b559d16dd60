//go:build linux

package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/leaktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// uncalled provides the methods that no test calls.
type uncalled struct{ backend.SandboxBackend }

// processes is a backend with one sandbox at a time. The sandbox is a process of the real guest agent on the host,
// without isolation.
type processes struct {
	backend.Unsupported
	uncalled

	mu    sync.Mutex // guards the fields below
	info  backend.Info
	guest *guesttest.Guest
}

func (p *processes) Name() string                       { return "processes" }
func (p *processes) Capabilities() backend.Capabilities { return backend.Capabilities{} }
func (p *processes) Close() error                       { return nil }

func (p *processes) Create(_ context.Context, spec backend.Spec) (backend.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info = backend.Info{
		ID: "engine", SessionID: spec.ID, Instance: spec.Instance, Key: spec.Key, Run: spec.Run, Hash: spec.Hash, Image: spec.Image,
		ImageEnv: []string{"PATH=" + os.Getenv("PATH")}, User: spec.User, Network: spec.Network, Limits: spec.Limits,
		State: backend.StateRunning, Created: spec.Created,
	}
	return p.info, nil
}

func (p *processes) Get(context.Context, string) (backend.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.info, nil
}

func (p *processes) List(context.Context, backend.Filter) ([]backend.Info, error) { return nil, nil }
func (p *processes) Remove(context.Context, string, backend.RemoveOptions) error  { return nil }
func (p *processes) Dial(context.Context, string) (io.ReadWriteCloser, error) {
	return p.guest.Dial(), nil
}
func (p *processes) HasWorkspace(context.Context, string, string) (has bool, err error) { return }
func (p *processes) RemoveWorkspace(context.Context, string, string) error              { return nil }

// newSandbox opens a sandbox. It also returns the sandbox's workspace on the host.
func newSandbox(t *testing.T) (*session.Session, string) {
	t.Helper()
	p := &processes{guest: guesttest.Start(t, nil)}
	m, err := session.NewManager(p, &session.Options{Instance: "test"})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: "none"})
	must(t, err)
	return s, p.guest.Workdir
}

var must = checktest.Must

// cli is a driver of a shell script. The prompt is the script, and its output lines are JSON events.
type cli struct {
	keep []string
	late bool
}

func (cli) Name() string { return "cli" }

func (c cli) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	return executor.Invocation{
		Argv: []string{"/bin/sh", "-c", t.Prompt}, Stdin: []byte("input"), Keep: c.keep, Late: c.late, CountTurns: true,
		Env:   map[string]string{"SETTINGS": in.Settings, "RESUME": t.ResumeID, "NEW": t.NewID, "MCP": fmt.Sprint(in.MCP)},
		Files: []executor.File{{Path: path.Join(in.Settings, ".cli/config"), Data: []byte("ours")}},
	}, nil
}

func (cli) Parser() executor.Parser { return lines{} }

func (cli) Outcome(seen executor.Seen, exit sandbox.ExecStatus) executor.Outcome {
	return executor.Judge(seen, exit, map[int]executor.Outcome{41: executor.AuthError})
}

type lines struct{}

func (lines) Line(b []byte) []executor.Event {
	var e executor.Event
	if json.Unmarshal(b, &e) != nil || e.Kind == "" {
		return []executor.Event{executor.Raw(b)}
	}
	return []executor.Event{e}
}

// Output lines for scripts.
const (
	begin = `echo '{"kind":"session","session":"s1"}';`
	done  = `echo '{"kind":"end","end":{"outcome":"completed"}}';`
)

// run runs a script.
func run(t *testing.T, s *session.Session, script string, o executor.Options) (executor.Result, error) {
	t.Helper()
	return executor.Run(t.Context(), s, cli{keep: []string{".cli/sessions"}}, executor.Task{Prompt: script}, &o)
}

// file returns the content of a file in dir, or an empty string if the file does not exist.
func file(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return string(b)
}
