package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// Connect opens a stream of its own to the guest, which does not disturb that of Dial. Where the sandbox's processes can be
// reached from here it is a connection to the guest's socket; else the engine starts the guest's bridge in the sandbox, which
// takes some tens of milliseconds more.
func (b *driver) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	res, err := b.running(ctx, id)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(b.api.DaemonHost(), "unix://") { // else it is on another machine
		if s := enter(ctx, res); s != nil {
			return s, nil
		}
	}
	bridge, err := kit.Call(ctx, b.calls, "connect", func(ctx context.Context) (container.ExecCreateResponse, error) {
		return b.api.ContainerExecCreate(ctx, id, container.ExecOptions{
			User: describeContainer(res).User, WorkingDir: "/", Env: kit.GuestEnv(), AttachStdin: true, AttachStdout: true,
			Cmd: []string{guestPath(), "connect"},
		})
	})
	if err != nil {
		return nil, lost(err)
	}
	s, err := b.hijack(ctx, "connect", "/exec/"+bridge.ID+"/start", nil, container.ExecStartOptions{})
	return s, lost(err)
}

// lost is what it means when a sandbox that just ran is gone or in conflict.
func lost(err error) error {
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrExists) {
		return fmt.Errorf("docker: the sandbox ended: %w", backend.ErrLost)
	}
	return err
}
