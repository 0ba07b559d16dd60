package docker

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// Connect opens a stream of its own to the guest. Where only the engine reaches that, the engine starts the guest's bridge
// in the sandbox: it takes some tens of milliseconds more than Dial and does not disturb its stream.
func (b *driver) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	info, pid, err := b.running(ctx, id)
	if err != nil {
		return nil, err
	}
	if s, err := b.reach(ctx, id, pid); !errors.Is(err, kit.ErrElsewhere) {
		return s, err
	}
	res, err := kit.Call(ctx, b.calls, "connect", func(ctx context.Context) (container.ExecCreateResponse, error) {
		return b.api.ContainerExecCreate(ctx, id, container.ExecOptions{
			User: info.User, WorkingDir: "/", Env: kit.GuestEnv(), AttachStdin: true, AttachStdout: true,
			Cmd: []string{embed.Path, "connect"},
		})
	})
	if err != nil {
		return nil, lost(err)
	}
	s, err := b.hijack(ctx, "connect", "/exec/"+res.ID+"/start", nil, container.ExecStartOptions{})
	return s, lost(err)
}

// lost is what it means when a sandbox that just ran is gone or in conflict.
func lost(err error) error {
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrExists) {
		return fmt.Errorf("docker: the sandbox exited: %w", backend.ErrLost)
	}
	return err
}
