package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// execPrefix begins the names of what Connect makes.
const execPrefix = "connect-"

// Connect opens a stream of its own to the guest: the engine starts the guest's bridge in the sandbox. It takes some
// tens of milliseconds more than Dial and does not disturb its stream.
func (b *Backend) Connect(ctx context.Context, id string) (_ io.ReadWriteCloser, err error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, span := b.calls.Span(ctx, telemetry.SpanContainerdConnect)
	defer func() { telemetry.End(span, err) }()
	r, err := b.running(ctx, id)
	if err != nil {
		return nil, err
	}
	b.endOrphans(ctx, r)
	s := b.newBridge(ctx, r, execPrefix+rand.Text())
	if err := s.open(ctx, r); err != nil {
		return nil, errors.Join(lost(b.settle(ctx, "connect", err)), s.Close())
	}
	return s, nil
}

// endOrphans ends the bridges of hosts that died. They do not notice: the shim holds their input open too. What they
// are and what they run counts against the sandbox's limit of processes, and could leave no room for a new one.
func (b *Backend) endOrphans(ctx context.Context, r *record) {
	entries, _ := os.ReadDir(r.state().sandbox(r.id)) // open tells what is wrong with the directory
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), execPrefix) || ctx.Err() != nil {
			continue
		}
		s := b.newBridge(ctx, r, e.Name())
		in, err := os.OpenFile(filepath.Join(s.dir, fifoIn), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			continue // one that is being made, or was ended
		}
		if tryLock(in) != nil {
			_ = in.Close() // its host lives
			continue
		}
		s.in, s.made = in, true
		_ = s.Close() // what is left of it is tried again
	}
}

// lost is what it means when a sandbox that just ran is gone or in another state.
func lost(err error) error {
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, errState) {
		return fmt.Errorf("containerd: the sandbox ended: %w", backend.ErrLost)
	}
	return err
}

// bridge is the stream to a process of ours in the sandbox, which bridges to the guest's socket there. A lock on the
// input's FIFO, which the kernel frees when this process dies, tells others that it is in use.
type bridge struct {
	b    *Backend
	id   string // of the container
	exec string // of the process
	dir  string // of its FIFOs
	life context.Context

	in, out *os.File
	made    bool // containerd may know the process

	closing sync.Once
	err     error // of closing
}

func (b *Backend) newBridge(ctx context.Context, r *record, exec string) *bridge {
	return &bridge{b: b, id: r.id, exec: exec, dir: r.state().file(r.id, exec), life: context.WithoutCancel(ctx)}
}

// open starts the process. Its FIFOs are opened before, so that nobody waits for the other end.
func (s *bridge) open(ctx context.Context, r *record) error {
	in, out := filepath.Join(s.dir, fifoIn), filepath.Join(s.dir, fifoOut)
	if err := s.makeFIFOs(in, out); err != nil {
		return err
	}
	user, err := r.owner()
	if err != nil {
		return err
	}
	spec, err := typeurl.MarshalAnyToProto(guestProcess(user, r, embed.Path, "connect"))
	if err != nil {
		return fmt.Errorf("containerd: connect: %w", err)
	}
	svc := s.b.api.TaskService()
	s.made = true
	_, err = kit.Finish(ctx, s.b.calls, "connect", func(ctx context.Context) (any, error) {
		return svc.Exec(ctx, &tasks.ExecProcessRequest{
			ContainerID: s.id, ExecID: s.exec, Stdin: in, Stdout: out, Stderr: os.DevNull, Spec: spec,
		})
	})
	if err != nil {
		return err
	}
	_, err = kit.Finish(ctx, s.b.calls, "connect", func(ctx context.Context) (*tasks.StartResponse, error) {
		return svc.Start(ctx, &tasks.StartRequest{ContainerID: s.id, ExecID: s.exec})
	})
	return err
}

// makeFIFOs makes and opens the FIFOs. The input gets its name when it is locked: until then nobody takes it for that
// of a host that died.
func (s *bridge) makeFIFOs(in, out string) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return lostFIFO(err)
	}
	unnamed := in + ".new"
	for _, path := range []string{unnamed, out} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return stateError("make FIFOs", err)
		}
	}
	var err error
	// Both directions, because a FIFO that nobody reads cannot be opened to write.
	if s.in, err = os.OpenFile(unnamed, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
		err = errors.Join(tryLock(s.in), os.Rename(unnamed, in))
	}
	if err != nil {
		return stateError("open FIFO", err)
	}
	if s.out, err = os.OpenFile(out, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return stateError("open FIFO", err)
	}
	return nil
}

// Read returns what the bridge sends.
func (s *bridge) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write sends to the bridge.
func (s *bridge) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close ends the stream and the process.
func (s *bridge) Close() error {
	s.closing.Do(func() {
		ctx, cancel := context.WithTimeout(s.life, cleanupTimeout)
		defer cancel()
		for _, f := range []*os.File{s.in, s.out} {
			if f != nil {
				s.err = errors.Join(s.err, f.Close())
			}
		}
		if s.made {
			if err := s.end(ctx); err != nil && !errors.Is(err, backend.ErrUnavailable) {
				s.err = errors.Join(s.err, err)
			}
		}
		s.err = errors.Join(s.err, stateError("remove FIFOs", os.RemoveAll(s.dir)))
	})
	return s.err
}

// end kills the process and has containerd forget it. With the sandbox, it ends anyway.
func (s *bridge) end(ctx context.Context) error {
	svc := s.b.api.TaskService()
	stop := drain(filepath.Join(s.dir, fifoOut))
	defer stop()
	return s.b.untilGone(ctx, func() error {
		err := s.b.calls.Do(ctx, "end connection", func(ctx context.Context) error {
			_, err := svc.Kill(ctx, &tasks.KillRequest{ContainerID: s.id, ExecID: s.exec, Signal: uint32(unix.SIGKILL)})
			return err
		})
		if err == nil {
			wctx, cancel := context.WithTimeout(ctx, killWait)
			defer cancel()
			_, err = kit.Call(wctx, s.b.calls, "end connection", func(ctx context.Context) (*tasks.WaitResponse, error) {
				return svc.Wait(ctx, &tasks.WaitRequest{ContainerID: s.id, ExecID: s.exec})
			})
		}
		if err != nil && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, errState) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return s.b.calls.Do(ctx, "end connection", func(ctx context.Context) error {
			_, err := svc.DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: s.id, ExecID: s.exec})
			return err
		})
	})
}
