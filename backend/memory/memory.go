// Package memory is a driver for your own tests. The sandboxes need no processes, engine, or disk, and work on every
// operating system.
//
// A test passes the backend to session.NewManager like any other driver. The backend stores files in memory, answers
// commands from the test's script, and records every call:
//
//	b, err := memory.New(nil)
//	b.On("go test ./...", memory.Answer{Stdout: "ok\n"})
//	m, err := session.NewManager(b, nil)
//	...                                  // the code under test opens sandboxes and runs commands
//	for _, c := range b.Calls() { ... }  // Create, Exec, Put, Remove, in order
//
// A command without an answer exits with code 127, and standard error shows the missing Go call. Use [Backend.Fault] to
// make calls fail or wait. Use [Backend.Lose] to remove a sandbox.
//
// The driver isolates and runs nothing, so tests with it cannot verify the effects of commands. It does not support
// terminals, ports, services, links, mounts, and environments.
package memory

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const name = "memory"

// Options configure New. The zero value is ready to use.
type Options struct {
	// Images lists the existing images. Any other image returns backend.ErrImage. If empty, every image exists.
	Images []string
}

// Backend implements backend.SandboxBackend. It is safe for concurrent use.
type Backend struct {
	backend.Unsupported
	e      *engine
	closed atomic.Bool
}

// engine stores the sandboxes, which several backends can share.
type engine struct {
	o Options

	mu         sync.Mutex // guards all fields below
	sandboxes  map[string]*sandbox
	workspaces map[string]*workspace // by session ID
	fault      func(context.Context, Call) error
	answers    []func(Command) (Answer, bool) // newest last
	calls      []Call
}

// workspace stores the files of a session. A workspace may exist without a sandbox.
type workspace struct {
	instance string
	files    *files
}

// sandbox is one sandbox. The info is immutable, except for the state.
type sandbox struct {
	info  backend.Info
	guest *guest // nil if the sandbox is stopped
	files *files
}

// New returns a backend without sandboxes. A nil o means the zero Options.
func New(o *Options) (*Backend, error) {
	e := &engine{o: *cmp.Or(o, &Options{}), sandboxes: map[string]*sandbox{}, workspaces: map[string]*workspace{}}
	e.o.Images = slices.Clone(e.o.Images)
	return &Backend{e: e}, nil
}

// Reopen returns another backend with the same sandboxes, script, and recorded calls. Use it to simulate another
// process on the same engine. Each backend must be closed separately.
func (b *Backend) Reopen() *Backend { return &Backend{e: b.e} }

// Name returns "memory".
func (b *Backend) Name() string { return name }

// begin admits and records a call, and applies the test's Fault.
func (b *Backend) begin(ctx context.Context, c Call) error {
	if b.closed.Load() {
		return fmt.Errorf("memory: %w", backend.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.e.note(c)
	b.e.mu.Lock()
	fault := b.e.fault
	b.e.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(ctx, c)
}

// call begins a call for a sandbox and runs f while it holds the engine's mutex.
func call[T any](ctx context.Context, b *Backend, op Op, id string, f func(*sandbox) (T, error)) (v T, err error) {
	if err := b.begin(ctx, Call{Op: op, Sandbox: b.e.session(id)}); err != nil {
		return v, err
	}
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	s := b.e.sandboxes[id]
	if s == nil {
		return v, fmt.Errorf("memory: sandbox %.80q: %w", id, backend.ErrNotFound)
	}
	return f(s)
}

// Create creates a sandbox.
func (b *Backend) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	if err := b.begin(ctx, Call{Op: OpCreate, Sandbox: spec.ID, Image: spec.Image}); err != nil {
		return backend.Info{}, err
	}
	p, err := kit.NewPlan(name, spec, nil, backend.Limits{})
	if err != nil {
		return backend.Info{}, err
	}
	if err := p.Supports(b.Capabilities(), runtime.GOARCH); err != nil {
		return backend.Info{}, err
	}
	switch {
	case spec.Environment != "":
		return backend.Info{}, fmt.Errorf("memory: environments: %w", backend.ErrUnsupported)
	case spec.Fork != nil:
		return backend.Info{}, fmt.Errorf("memory: snapshots: %w", backend.ErrUnsupported)
	case len(spec.Mounts) > 0:
		return backend.Info{}, fmt.Errorf("memory: mounts: %w", backend.ErrUnsupported)
	case len(b.e.o.Images) > 0 && !slices.Contains(b.e.o.Images, spec.Image):
		return backend.Info{}, fmt.Errorf("memory: %.200q is not one of Options.Images: %w", spec.Image, backend.ErrImage)
	}
	return b.e.create(p)
}

func (e *engine) create(p *kit.Plan) (backend.Info, error) {
	r := p.Record(backend.WorkspaceWatched)
	r.Image = strings.Clone(p.Spec.Image)
	info := r.Info(p.SandboxLabels(name), p.Spec.Labels)
	info.ID, info.Created = "memory-"+strings.ToLower(rand.Text()), p.Spec.Created
	info.ImageID = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(p.Spec.Image)))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of(info.SessionID) != nil {
		return backend.Info{}, fmt.Errorf("memory: sandbox %s already exists: %w", info.SessionID, backend.ErrExists)
	}
	w := e.workspaces[info.SessionID]
	if w == nil {
		w = &workspace{instance: info.Instance, files: newFiles()}
		e.workspaces[info.SessionID] = w
	}
	if w.instance != info.Instance {
		return backend.Info{}, fmt.Errorf("memory: workspace of sandbox %s belongs to another installation: %w",
			info.SessionID, backend.ErrExists)
	}
	w.files.mu.Lock()
	w.files.limit = info.Limits.WorkspaceBytes
	w.files.mu.Unlock()
	s := &sandbox{info: info, files: w.files}
	s.guest = newGuest(e, s)
	e.sandboxes[info.ID] = s
	return s.describe(), nil
}

// of returns the sandbox of a session, or nil. The caller must hold the mutex.
func (e *engine) of(sessionID string) *sandbox {
	for _, s := range e.sandboxes {
		if s.info.SessionID == sessionID {
			return s
		}
	}
	return nil
}

// describe returns a copy of the sandbox's info. The caller must hold the engine's mutex.
func (s *sandbox) describe() backend.Info {
	info := s.info
	info.Labels = maps.Clone(info.Labels)
	info.State = backend.StateRunning
	if s.guest == nil {
		info.State = backend.StateStopped
	}
	info.ImageEnv = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	return info
}

// session returns the session ID of a sandbox, for the record of a call. If the sandbox is unknown, it returns id.
func (e *engine) session(id string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sandboxes[id]; s != nil {
		return s.info.SessionID
	}
	return id
}

// Get describes a sandbox.
func (b *Backend) Get(ctx context.Context, id string) (backend.Info, error) {
	return call(ctx, b, OpGet, id, func(s *sandbox) (backend.Info, error) { return s.describe(), nil })
}

// List describes the sandboxes matching filter.
func (b *Backend) List(ctx context.Context, filter backend.Filter) ([]backend.Info, error) {
	if err := b.begin(ctx, Call{Op: OpList}); err != nil {
		return nil, err
	}
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	var all []backend.Info
	for _, s := range b.e.sandboxes {
		all = append(all, s.describe())
	}
	return kit.Select(all, filter), nil
}

// Start starts a stopped sandbox.
func (b *Backend) Start(ctx context.Context, id string) error {
	_, err := call(ctx, b, OpStart, id, func(s *sandbox) (*guest, error) {
		if s.guest == nil {
			s.guest = newGuest(b.e, s)
		}
		return s.guest, nil
	})
	return err
}

// Stop kills the commands of a sandbox and keeps the files.
func (b *Backend) Stop(ctx context.Context, id string) error {
	g, err := call(ctx, b, OpStop, id, func(s *sandbox) (*guest, error) {
		g := s.guest
		s.guest = nil
		return g, nil
	})
	g.stop()
	return err
}

// Remove deletes a sandbox.
func (b *Backend) Remove(ctx context.Context, id string, opts backend.RemoveOptions) error {
	if err := b.begin(ctx, Call{Op: OpRemove, Sandbox: b.e.session(id)}); err != nil {
		return err
	}
	b.e.remove(id, opts.Volumes)
	return nil
}

func (e *engine) remove(id string, volumes bool) {
	e.mu.Lock()
	s := e.sandboxes[id]
	if s != nil {
		delete(e.sandboxes, id)
		if volumes {
			delete(e.workspaces, s.info.SessionID)
		}
	}
	e.mu.Unlock()
	if s != nil {
		s.guest.stop()
	}
}

// Dial opens a stream to the guest agent of a sandbox.
func (b *Backend) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	return call(ctx, b, OpDial, id, func(s *sandbox) (io.ReadWriteCloser, error) {
		if s.guest == nil {
			return nil, fmt.Errorf("memory: the sandbox is stopped: %w", backend.ErrLost)
		}
		host, end := net.Pipe()
		s.guest.serve(end)
		return host, nil
	})
}

// Ping returns information about the simulated engine.
func (b *Backend) Ping(ctx context.Context) (backend.EngineInfo, error) {
	if err := b.begin(ctx, Call{Op: OpPing}); err != nil {
		return backend.EngineInfo{}, err
	}
	return backend.EngineInfo{
		Name: name, Version: "1", Kernel: "none", OS: runtime.GOOS, Arch: runtime.GOARCH, Cgroup: "none",
	}, nil
}

// Capabilities returns the supported features. Limits of CPU time, memory, and processes always hold, because commands
// use none of these.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Memory: true, CPU: true, PIDs: true, Workspace: backend.WorkspaceWatched, Persistent: true,
		Networks:     []backend.NetworkMode{backend.NetworkNone, backend.NetworkBridge},
		WritableRoot: true, RootEnforcement: backend.WorkspaceWatched,
		Isolation: map[string]backend.Isolation{"": backend.IsolationProcess},
	}
}

// HasWorkspace reports whether a session has files.
func (b *Backend) HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error) {
	if err := b.begin(ctx, Call{Op: OpGet, Sandbox: sessionID}); err != nil {
		return false, err
	}
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	w := b.e.workspaces[sessionID]
	return w != nil && w.instance == instance, nil
}

// RemoveWorkspace deletes the files of a session without a sandbox.
func (b *Backend) RemoveWorkspace(ctx context.Context, instance, sessionID string) error {
	if err := b.begin(ctx, Call{Op: OpRemove, Sandbox: sessionID}); err != nil {
		return err
	}
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	w := b.e.workspaces[sessionID]
	if w == nil {
		return nil
	}
	if b.e.of(sessionID) != nil {
		return fmt.Errorf("memory: the workspace of sandbox %s is in use: %w", sessionID, backend.ErrExists)
	}
	if w.instance != instance {
		return fmt.Errorf("memory: workspace of sandbox %s belongs to another installation: %w", sessionID, backend.ErrExists)
	}
	delete(b.e.workspaces, sessionID)
	return nil
}

// Close closes this backend. Sandboxes and their commands remain.
func (b *Backend) Close() error {
	b.closed.Store(true)
	return nil
}
