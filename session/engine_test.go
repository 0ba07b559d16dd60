package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// engine is a backend whose sandboxes are processes of the real guest on this machine, each in a directory of its own.
// It walls nothing off, so that tests of sessions need no container.
type engine struct {
	dir      string
	creates  atomic.Int64
	removes  atomic.Int64
	oomKills atomic.Int64
	boxes    sync.Map // id -> *box

	mu       sync.Mutex // guards the hooks
	onCreate func(context.Context, backend.Spec) error
	onRemove func(id string) error
	onDial   func(ctx context.Context, id string) error
}

// box is one sandbox.
type box struct {
	info   backend.Info
	cmd    *exec.Cmd
	socket string
	stream *net.UnixConn // our end of the guest's attached stream
	exited chan struct{}
	out    sync.WaitGroup

	mu       sync.Mutex // guards what follows
	attached map[*attachment]struct{}
	stopped  bool
}

func newEngine(t testing.TB) *engine {
	dir, err := os.MkdirTemp("", "session-test-") // t.TempDir makes names too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{dir: dir}
	t.Cleanup(func() {
		e.boxes.Range(func(id, _ any) bool {
			e.remove(id.(string))
			return true
		})
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return e
}

// newManager makes a manager on an engine and closes it at the end of the test.
func newManager(t testing.TB, b backend.SandboxBackend, opts *session.Options) *session.Manager {
	t.Helper()
	m, err := session.NewManager(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Errorf("closing the manager: %v", err)
		}
	})
	return m
}

func (e *engine) Name() string { return "processes" }

func (e *engine) hook() (create func(context.Context, backend.Spec) error, remove func(string) error, dial func(context.Context, string) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.onCreate, e.onRemove, e.onDial
}

// setHooks replaces the hooks; a nil hook does nothing.
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
	b := &box{info: backend.Info{
		ID: "engine-" + session.NewID(), SessionID: spec.ID, Instance: spec.Instance, Key: spec.Key, Run: spec.Run,
		Hash: spec.Hash, Image: spec.Image, ImageEnv: []string{"PATH=" + os.Getenv("PATH"), "FROM_IMAGE=yes"},
		User: spec.User, Network: spec.Network, Root: spec.Root, Limits: spec.Limits, State: backend.StateRunning,
		Created: spec.Created, Labels: spec.Labels,
	}}
	if err := e.start(b); err != nil {
		return backend.Info{}, err
	}
	if err := ctx.Err(); err != nil {
		b.kill()
		return backend.Info{}, err
	}
	e.boxes.Store(b.info.ID, b)
	return b.info, nil
}

// start runs the guest of a box.
func (e *engine) start(b *box) error {
	workdir := filepath.Join(e.dir, b.info.ID)
	if err := os.MkdirAll(workdir, 0o755); err != nil {
		return err
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	b.socket = filepath.Join(e.dir, b.info.ID[:20]+".sock")
	os.Remove(b.socket) // of an earlier start
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.socket, Net: "unix"})
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	beside, err := listener.File()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer beside.Close()
	b.stream, b.exited, b.attached = conn.(*net.UnixConn), make(chan struct{}), map[*attachment]struct{}{}
	b.cmd = exec.Command("/proc/self/exe")
	b.cmd.Env = []string{guestEnv + "=" + workdir, "PATH=" + os.Getenv("PATH")}
	b.cmd.ExtraFiles = []*os.File{theirs, beside}
	if err := b.cmd.Start(); err != nil {
		return errors.Join(err, conn.Close())
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait() // its status says nothing that tests want
		close(exited)
	}(b.cmd, b.exited)
	b.out.Go(b.pump)
	return nil
}

// pump hands the guest's output to all who are attached and drops it when nobody is, as engines do.
func (b *box) pump() {
	buf := make([]byte, 64<<10)
	for {
		n, err := b.stream.Read(buf)
		b.mu.Lock()
		readers := make([]*attachment, 0, len(b.attached))
		for a := range b.attached {
			readers = append(readers, a)
		}
		b.mu.Unlock()
		for _, a := range readers {
			if err != nil {
				a.w.CloseWithError(io.EOF)
			} else {
				a.w.Write(buf[:n]) // fails when a was closed
			}
		}
		if err != nil {
			return
		}
	}
}

// attachment is one host's end of a box's stream.
type attachment struct {
	b *box
	r *io.PipeReader
	w *io.PipeWriter
}

func (a *attachment) Read(p []byte) (int, error)  { return a.r.Read(p) }
func (a *attachment) Write(p []byte) (int, error) { return a.b.stream.Write(p) }
func (a *attachment) Close() error {
	a.b.mu.Lock()
	delete(a.b.attached, a)
	a.b.mu.Unlock()
	return a.r.Close()
}

func (e *engine) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	b, err := e.running(ctx, id)
	if err != nil {
		return nil, err
	}
	a := &attachment{b: b}
	a.r, a.w = io.Pipe()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attached[a] = struct{}{}
	return a, nil
}

// running gives a box that can be dialled.
func (e *engine) running(ctx context.Context, id string) (*box, error) {
	if _, _, dial := e.hook(); dial != nil {
		if err := dial(ctx, id); err != nil {
			return nil, err
		}
	}
	b, ok := e.box(id)
	if !ok {
		return nil, fmt.Errorf("%w: %s", backend.ErrNotFound, id)
	}
	if b.state() != backend.StateRunning {
		return nil, fmt.Errorf("%w: %s is not running", backend.ErrLost, id)
	}
	return b, nil
}

func (e *engine) box(id string) (*box, bool) {
	v, ok := e.boxes.Load(id)
	if !ok {
		return nil, false
	}
	return v.(*box), true
}

// state tells whether the guest runs.
func (b *box) state() backend.State {
	select {
	case <-b.exited:
		return backend.StateStopped
	default:
		return backend.StateRunning
	}
}

// kill ends the guest: at first by the end of its stream, so that it ends its commands.
func (b *box) kill() {
	b.stream.CloseWrite()
	b.mu.Lock()
	for a := range b.attached {
		a.r.Close() // frees the pump
	}
	b.mu.Unlock()
	<-b.exited
	b.stream.Close()
	b.out.Wait()
}

// murder ends the guest without warning, as the kernel or an operator would.
func (b *box) murder() {
	b.cmd.Process.Kill()
	<-b.exited
}

func (e *engine) Get(ctx context.Context, id string) (backend.Info, error) {
	b, ok := e.box(id)
	if !ok {
		return backend.Info{}, fmt.Errorf("%w: %s", backend.ErrNotFound, id)
	}
	info := b.info
	info.State = b.state()
	return info, ctx.Err()
}

func (e *engine) List(ctx context.Context, f backend.Filter) ([]backend.Info, error) {
	var list []backend.Info
	e.boxes.Range(func(_, v any) bool {
		info := v.(*box).info
		info.State = v.(*box).state()
		if (f.Instance == "" || f.Instance == info.Instance) && (f.Key == "" || f.Key == info.Key) &&
			(f.SessionID == "" || f.SessionID == info.SessionID) && (f.Run == "" || f.Run == info.Run) {
			list = append(list, info)
		}
		return true
	})
	slices.SortFunc(list, func(a, b backend.Info) int { return a.Created.Compare(b.Created) })
	return list, ctx.Err()
}

func (e *engine) Start(_ context.Context, id string) error {
	b, ok := e.box(id)
	if !ok {
		return backend.ErrNotFound
	}
	if b.state() == backend.StateRunning {
		return nil
	}
	b.stream.Close()
	b.out.Wait()
	return e.start(b)
}

func (e *engine) Stop(_ context.Context, id string) error {
	if b, ok := e.box(id); ok {
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
		return fmt.Errorf("the engine was asked for %q", id)
	}
	e.removes.Add(1)
	e.remove(id)
	return nil
}

func (e *engine) remove(id string) {
	if v, ok := e.boxes.LoadAndDelete(id); ok {
		v.(*box).kill()
	}
}

func (e *engine) OOMKills(context.Context, string) (int64, error) { return e.oomKills.Load(), nil }

func (e *engine) Capabilities() backend.Capabilities { return backend.Capabilities{} }
func (e *engine) Close() error                       { return nil }

// count gives the number of sandboxes there are.
func (e *engine) count() int {
	n := 0
	e.boxes.Range(func(any, any) bool { n++; return true })
	return n
}

// sharing is an engine that also gives streams beside the owner's.
type sharing struct{ *engine }

func (e sharing) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	b, err := e.running(ctx, id)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", b.socket)
}
