package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// settleTime is the maximum time until containerd notices the exit of a process.
const settleTime = time.Second

// Dial connects to the guest agent's socket. Streams are independent of each other. They need containerd only for the
// connection.
func (b *driver) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	if err := b.waitForWorkspace(ctx, id); err != nil {
		return nil, err
	}
	r, pid, err := b.running(ctx, id)
	if err != nil {
		return nil, err
	}
	if !kernelNetwork(r.config.Runtime) { // its process and commands have different network namespaces
		return b.bridged(ctx, r, id, pid)
	}
	stream, err := kit.ReachGuest(ctx, r.config.Cgroup, pid, func(ctx context.Context) (int, error) {
		_, now, err := b.running(ctx, id)
		return now, lost(err)
	})
	switch {
	case err == nil:
		return stream, nil
	case errors.Is(err, kit.ErrElsewhere):
		return b.bridged(ctx, r, id, pid)
	case ctx.Err() != nil:
		return nil, b.calls.Settle(ctx, "dial", err)
	}
	return nil, fmt.Errorf("containerd: %w", err)
}

// lost returns backend.ErrLost if the error means that a recently running sandbox has been removed or is in another
// state.
func lost(err error) error {
	if host.IsAny(err, backend.ErrNotFound, errState) {
		return fmt.Errorf("containerd: the sandbox exited: %w", backend.ErrLost)
	}
	return err
}

// bridged is like bridge, but also detects the recent exit of the guest agent, which the runtime knows before
// containerd does.
func (b *driver) bridged(ctx context.Context, r *record, id string, pid int) (io.ReadWriteCloser, error) {
	stream, err := b.bridge(ctx, r)
	if err == nil {
		return stream, nil
	}
	end := time.Now().Add(settleTime)
	return nil, b.calls.Retry(ctx, func() (bool, error) {
		switch _, now, gone := b.running(ctx, id); {
		case gone != nil:
			return true, lost(gone)
		case now != pid:
			return true, fmt.Errorf("containerd: the guest agent exited: %w", backend.ErrLost)
		}
		return time.Now().After(end), err
	})
}

// bridge starts a process in the sandbox to connect to the guest agent's socket, and returns a stream to the process.
// It is necessary if the runtime has a separate network stack, or if the sandbox's process is not visible on this host.
// Close ends the process. If the host process dies, the guest agent ends the connection after 30 seconds without data,
// and the process exits.
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
			err = p.Start(ctx) // releases all resources if it fails
		}
		return p, err
	})
	if process == nil {
		return nil, lost(err)
	}
	s := host.NewStream(stream.Stdout, stream.Stdin, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kit.CleanupTimeout)
		defer cancel()
		err := errors.Join(stream.Stdin.Close(), stream.Stdout.Close()) // first, to let a pending read fail
		err = errors.Join(err, b.calls.Do(ctx, "end connection", func(ctx context.Context) error {
			_, err := process.Delete(ctx, ctrd.WithProcessKill)
			return err
		}))
		if !errors.Is(lost(err), err) { // already ended with the sandbox
			return nil
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(lost(err), s.Close())
	}
	return s, nil
}
