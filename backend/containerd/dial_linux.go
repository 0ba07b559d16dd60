package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"syscall"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// guestWait is how long a guest that was just started may take to listen.
const guestWait = 10 * time.Second

// Dial connects to the guest's socket. Streams do not disturb each other, and need containerd for the connecting only.
func (b *driver) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	r, pid, err := b.running(ctx, id)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(guestWait); ; pause(ctx, time.Millisecond) {
		stream, err := b.reach(ctx, r, pid)
		if err == nil {
			return stream, nil
		}
		if ctx.Err() != nil {
			return nil, b.settle(ctx, "dial", err)
		}
		if _, now, err := b.running(ctx, id); err != nil {
			return nil, lost(err)
		} else if now != pid {
			return nil, fmt.Errorf("containerd: the guest ended: %w", backend.ErrLost)
		}
		switch late := time.Now().After(deadline); {
		case errors.Is(err, syscall.EAGAIN) && late:
			return nil, fmt.Errorf("containerd: the guest takes no more connections: %w", backend.ErrCapacity)
		case late || !passing(err):
			return nil, lost(stateError("dial", err))
		}
	}
}

// reach connects once, in whichever way the guest can be reached.
func (b *driver) reach(ctx context.Context, r *record, pid int) (io.ReadWriteCloser, error) {
	program, starting := programOf(pid)
	if starting {
		return nil, syscall.ESRCH
	}
	if !kernelNetwork(r.config.Runtime) || program != embed.Path {
		return b.bridge(ctx, r)
	}
	conn, err := host.DialProcess(ctx, pid, wire.SocketName)
	if err != nil {
		return nil, err
	}
	return host.NewStream(conn), nil
}

// passing reports whether a failure to connect soon ends by itself: the guest was just started, or has just ended and
// containerd does not know yet, or commands keep its socket busy.
func passing(err error) bool {
	for _, e := range []error{syscall.EAGAIN, syscall.ECONNREFUSED, syscall.ENOENT, syscall.ESRCH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Connect is Dial.
func (b *driver) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	return b.Dial(ctx, id)
}

// programOf returns what the process runs, and reports whether that is runc, which has not become the guest yet. A containerd
// that counts processes in a namespace of its own names others than the guest.
func programOf(pid int) (program string, starting bool) {
	argv := host.Argv(pid)
	return argv[0], len(argv) > 1 && argv[1] == "init" && (argv[0] == "/proc/self/exe" || path.Base(argv[0]) == "runc")
}

// lost is what it means when a sandbox that just ran is gone or in another state.
func lost(err error) error {
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, errState) {
		return fmt.Errorf("containerd: the sandbox ended: %w", backend.ErrLost)
	}
	return err
}

// bridge is the stream to a process of ours in the sandbox, which bridges to the guest's socket there: the network of a
// runtime that has one of its own cannot be entered, nor that of a process that cannot be seen from here. The process of a host that died ends when the guest has heard
// nothing from it for 30 s.
type bridge struct {
	io.Reader
	io.WriteCloser
	end func() error
}

// Close ends the stream and the process.
func (s *bridge) Close() error { return errors.Join(s.WriteCloser.Close(), s.end()) }

func (b *driver) bridge(ctx context.Context, r *record) (io.ReadWriteCloser, error) {
	user, err := r.owner()
	if err != nil {
		return nil, err
	}
	var stream *cio.DirectIO
	process, err := kit.Finish(ctx, b.calls, "connect", func(ctx context.Context) (p ctrd.Process, err error) {
		c, err := b.api.LoadContainer(ctx, r.id)
		if err != nil {
			return nil, err
		}
		task, err := c.Task(ctx, nil)
		if err != nil {
			return nil, err
		}
		spec := guestProcess(user, r, embed.Path, "connect")
		p, err = task.Exec(ctx, "connect-"+rand.Text(), spec, func(name string) (cio.IO, error) {
			fifos, err := cio.NewFIFOSetInDir(r.state().sandbox(r.id), name, false)
			if err == nil {
				stream, err = cio.NewDirectIO(context.WithoutCancel(ctx), fifos)
			}
			return stream, err
		})
		if err == nil {
			err = p.Start(ctx) // which releases all when it fails
		}
		return p, err
	})
	if process == nil {
		return nil, lost(err)
	}
	s := &bridge{Reader: stream.Stdout, WriteCloser: stream.Stdin}
	s.end = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err := errors.Join(stream.Stdout.Close(), b.calls.Do(ctx, "end connection", func(ctx context.Context) error {
			_, err := process.Delete(ctx, ctrd.WithProcessKill)
			return err
		}))
		if lost(err) != err { // with the sandbox, it ended anyway
			return nil
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(lost(err), s.Close())
	}
	return s, nil
}
