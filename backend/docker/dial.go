package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Dial connects to the guest agent's socket. If only the engine can reach the socket, the engine starts the guest
// agent's bridge in the sandbox. This takes some tens of milliseconds longer.
func (b *driver) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	info, pid, err := b.running(ctx, id)
	if err != nil {
		return nil, err
	}
	s, err := b.reach(ctx, id, pid)
	switch {
	case err == nil:
		b.near.Store(true)
		return s, nil
	case b.near.Load() && errors.Is(err, kit.ErrNoProcess): // the runtime did not report the exit
		return nil, fmt.Errorf("docker: the sandbox's process is gone, although the engine says that it runs: %w",
			backend.ErrLost)
	case !errors.Is(err, kit.ErrElsewhere):
		return nil, err
	}
	res, err := kit.Call(ctx, b.calls, "dial", func(ctx context.Context) (container.ExecCreateResponse, error) {
		return b.api.ContainerExecCreate(ctx, id, container.ExecOptions{
			User: info.User, WorkingDir: "/", Env: kit.GuestEnv(), AttachStdin: true, AttachStdout: true,
			Cmd: []string{embed.Path, "connect"},
		})
	})
	if err != nil {
		return nil, lost(err)
	}
	s, err = b.hijack(ctx, "dial", "/exec/"+res.ID+"/start", nil, container.ExecStartOptions{}, []byte(wire.FromGuest))
	return s, lost(err)
}

// reach connects directly to the guest agent's socket, as a process of this host. An engine with a local socket most
// likely runs containers on this host. Such a stream is a third faster than a stream of the engine, and works even if
// the engine is not running.
func (b *driver) reach(ctx context.Context, id string, pid int) (io.ReadWriteCloser, error) {
	if !strings.HasPrefix(b.api.DaemonHost(), "unix://") {
		return nil, kit.ErrElsewhere
	}
	s, err := kit.ReachGuest(ctx, id, pid, func(ctx context.Context) (int, error) {
		_, now, err := b.running(ctx, id)
		return now, lost(err)
	})
	return s, b.calls.Settle(ctx, "dial", err)
}

// running returns an error if a sandbox is not running or this driver may not connect to it. It also returns the
// process ID of the sandbox's main process.
func (b *driver) running(ctx context.Context, id string) (backend.Info, int, error) {
	res, err := b.own(ctx, id)
	if err != nil {
		return backend.Info{}, 0, err
	}
	if err := snapshots.Waited(ctx, b.Recover(ctx, res)); err != nil {
		return backend.Info{}, 0, err
	}
	info := describeContainer(res)
	switch info.State {
	case backend.StateRunning:
	case backend.StatePaused: // the processes continue after a resume
		return info, 0, fmt.Errorf("docker: the sandbox is paused: %w", backend.ErrUnavailable)
	default:
		return info, 0, fmt.Errorf("docker: the sandbox is %s: %w", info.State, backend.ErrLost)
	}
	return info, res.State.Pid, b.guardNetwork(ctx, res)
}

// lost returns backend.ErrLost if the error means that a recently running sandbox has exited or is in conflict.
func lost(err error) error {
	if host.IsAny(err, backend.ErrNotFound, backend.ErrExists) {
		return fmt.Errorf("docker: the sandbox exited: %w", backend.ErrLost)
	}
	return err
}
