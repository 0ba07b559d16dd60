//go:build linux

package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// engine is a backend whose sandboxes are local processes of the real guest, each with a separate directory. It does
// not isolate them, so tests of sessions need no container.
type engine struct {
	backend.Unsupported
	dir     string
	creates atomic.Int64
	removes atomic.Int64

	mu        sync.Mutex              // guards the fields below
	sandboxes map[string]*fakeSandbox // by engine id
	onCreate  func(context.Context, backend.Spec) error
	onRemove  func(id string) error
	onDial    func(ctx context.Context, id string) error
}

// fakeSandbox is one sandbox.
type fakeSandbox struct {
	info backend.Info
	mu   sync.Mutex // guards p
	p    *process
}

// process is a running or exited guest.
type process struct {
	cmd    *exec.Cmd
	socket string
	life   io.Closer // closing it ends the guest
	exited chan struct{}

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func newEngine(t testing.TB) *engine {
	dir, err := os.MkdirTemp("", "session-test-") // paths from t.TempDir are too long for sockets
	must(t, err)
	e := &engine{dir: dir, sandboxes: map[string]*fakeSandbox{}}
	t.Cleanup(func() {
		for _, b := range e.all() {
			e.remove(b.info.ID)
		}
		must(t, os.RemoveAll(dir))
	})
	return e
}

// newManager creates a manager on an engine and closes it at the end of the test.
func newManager(t testing.TB, b backend.SandboxBackend, opts *session.Options) *session.Manager {
	t.Helper()
	m, err := session.NewManager(b, opts)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	return m
}

func (e *engine) Name() string { return "processes" }

func (e *engine) Ping(context.Context) (backend.EngineInfo, error) { return backend.EngineInfo{}, nil }

func (e *engine) hook() (create func(context.Context, backend.Spec) error, remove func(string) error, dial func(context.Context, string) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.onCreate, e.onRemove, e.onDial
}

// setHooks replaces the hooks. A nil hook has no effect.
func (e *engine) setHooks(create func(context.Context, backend.Spec) error, remove func(string) error, dial func(context.Context, string) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onCreate, e.onRemove, e.onDial = create, remove, dial
}

func (e *engine) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	e.creates.Add(1)
	if create, _, _ := e.hook(); create != nil {
		if err := create(ctx, spec); err != nil {
			return backend.Info{}, err
		}
	}
	b := &fakeSandbox{info: backend.Info{
		ID: "engine-" + record.NewID(), SessionID: spec.ID, Instance: spec.Instance, Key: spec.Key, Run: spec.Run,
		Hash: spec.Hash, Image: spec.Image, ImageEnv: []string{"PATH=" + os.Getenv("PATH"), "FROM_IMAGE=yes"},
		User: spec.User, Network: spec.Network, Root: spec.Root, Limits: spec.Limits, State: backend.StateRunning,
		Ephemeral: spec.Ephemeral, Created: spec.Created, Labels: spec.Labels,
	}}
	if spec.Limits.WorkspaceBytes > 0 {
		b.info.Workspace = backend.WorkspaceMemory
	}
	if err := e.start(b); err != nil {
		return backend.Info{}, err
	}
	if err := ctx.Err(); err != nil {
		b.process().kill()
		return backend.Info{}, err
	}
	e.mu.Lock()
	e.sandboxes[b.info.ID] = b
	e.mu.Unlock()
	return b.info, nil
}

// start starts a guest in a sandbox.
func (e *engine) start(b *fakeSandbox) error {
	workdir := e.workspace(b.info.SessionID)
	if err := os.MkdirAll(workdir, 0o755); err != nil {
		return err
	}
	p := &process{socket: filepath.Join(e.dir, record.NewID()[:8]+".sock"), exited: make(chan struct{})}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.socket, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	socket, err := listener.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Env = []string{guestEnv + "=" + workdir, "PATH=" + os.Getenv("PATH")}
	p.cmd.ExtraFiles = []*os.File{socket}
	if p.life, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.cmd.Wait() // tests do not need the exit status
		close(p.exited)
	}()
	b.mu.Lock()
	b.p = p
	b.mu.Unlock()
	return nil
}

// workspace returns the directory of a session's files. It may outlive the sandbox.
func (e *engine) workspace(sessionID string) string { return filepath.Join(e.dir, "files-"+sessionID) }

// process returns the sandbox's current guest.
func (b *fakeSandbox) process() *process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.p
}

func (e *engine) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	p, err := e.running(ctx, id)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", p.socket)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conn)
	return conn, nil
}

// running returns a guest that accepts connections.
func (e *engine) running(ctx context.Context, id string) (*process, error) {
	if _, _, dial := e.hook(); dial != nil {
		if err := dial(ctx, id); err != nil {
			return nil, err
		}
	}
	b, ok := e.fakeSandbox(id)
	if !ok {
		return nil, fmt.Errorf("%w: %s", backend.ErrNotFound, id)
	}
	p := b.process()
	if p.state() != backend.StateRunning {
		return nil, fmt.Errorf("%w: %s is not running", backend.ErrLost, id)
	}
	return p, nil
}

func (e *engine) fakeSandbox(id string) (*fakeSandbox, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b, ok := e.sandboxes[id]
	return b, ok
}

// all returns the existing sandboxes.
func (e *engine) all() []*fakeSandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.sandboxes))
}

// state returns the state of the guest.
func (p *process) state() backend.State {
	select {
	case <-p.exited:
		return backend.StateStopped
	default:
		return backend.StateRunning
	}
}

// kill closes the guest's input, so that the guest kills its commands before it exits.
func (p *process) kill() {
	p.cut()
	_ = p.life.Close() // fails if the guest has exited
	<-p.exited
}

// cut breaks the streams of all hosts, like an engine restart.
func (p *process) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close() // fails if the host has closed it
	}
	p.conns = nil
}

// murder kills the guest without warning, as the kernel or an operator would.
func (b *fakeSandbox) murder() {
	p := b.process()
	_ = p.cmd.Process.Kill() // fails if it has exited
	<-p.exited
}

func (e *engine) murder(id string) {
	b, _ := e.fakeSandbox(id)
	b.murder()
}

func (e *engine) Get(ctx context.Context, id string) (backend.Info, error) {
	b, ok := e.fakeSandbox(id)
	if !ok {
		return backend.Info{}, fmt.Errorf("%w: %s", backend.ErrNotFound, id)
	}
	info := b.info
	info.State = b.process().state()
	return info, ctx.Err()
}

func (e *engine) List(ctx context.Context, f backend.Filter) ([]backend.Info, error) {
	var list []backend.Info
	for _, b := range e.all() {
		info := b.info
		info.State = b.process().state()
		if (f.Instance == "" || f.Instance == info.Instance) && (f.Key == "" || f.Key == info.Key) &&
			(f.SessionID == "" || f.SessionID == info.SessionID) && (f.Run == "" || f.Run == info.Run) {
			list = append(list, info)
		}
	}
	slices.SortFunc(list, func(a, b backend.Info) int { return a.Created.Compare(b.Created) })
	return list, ctx.Err()
}

func (e *engine) Start(_ context.Context, id string) error {
	b, ok := e.fakeSandbox(id)
	if !ok {
		return backend.ErrNotFound
	}
	p := b.process()
	if p.state() == backend.StateRunning {
		return nil
	}
	return e.start(b)
}

func (e *engine) Stop(_ context.Context, id string) error {
	if b, ok := e.fakeSandbox(id); ok {
		b.murder()
	}
	return nil
}

func (e *engine) Remove(ctx context.Context, id string, opts backend.RemoveOptions) error {
	if _, remove, _ := e.hook(); remove != nil {
		if err := remove(id); err != nil {
			return err
		}
	}
	if !strings.HasPrefix(id, "engine-") {
		return fmt.Errorf("the engine got a request for %q", id)
	}
	e.removes.Add(1)
	b, ok := e.fakeSandbox(id)
	e.remove(id)
	if ok && opts.Volumes {
		return os.RemoveAll(e.workspace(b.info.SessionID))
	}
	return nil
}

func (e *engine) HasWorkspace(_ context.Context, _, sessionID string) (bool, error) {
	_, err := os.Stat(e.workspace(sessionID))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (e *engine) RemoveWorkspace(_ context.Context, _, sessionID string) error {
	return os.RemoveAll(e.workspace(sessionID))
}

func (e *engine) remove(id string) {
	e.mu.Lock()
	b, ok := e.sandboxes[id]
	delete(e.sandboxes, id)
	e.mu.Unlock()
	if ok {
		b.process().kill()
	}
}

func (e *engine) Capabilities() backend.Capabilities {
	return backend.Capabilities{Persistent: true, Workspace: backend.WorkspaceMemory}
}

func (e *engine) Close() error { return nil }

// holds verifies the number of existing sandboxes.
func (e *engine) holds(t testing.TB, want int) {
	t.Helper()
	if got := e.count(); got != want {
		t.Errorf("%d sandboxes exist, want %d", got, want)
	}
}

// count returns the number of existing sandboxes.
func (e *engine) count() int { return len(e.all()) }
