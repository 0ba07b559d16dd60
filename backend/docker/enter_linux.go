package docker

import (
	"context"
	"io"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// enter connects to the guest's socket in the sandbox's network namespace, without the engine and without a process in the
// sandbox. It returns nil where that cannot be done: the engine counts processes of another machine or of another namespace,
// the runtime has a network of its own, this user has no right to enter, or the guest does not listen yet.
func enter(ctx context.Context, res container.InspectResponse) io.ReadWriteCloser {
	pid := res.State.Pid
	if pid <= 0 || host.Argv(pid)[0] != guestPath() || !host.InCgroup(pid, res.ID) {
		return nil
	}
	conn, err := host.DialProcess(ctx, pid, wire.SocketName)
	if err != nil {
		return nil
	}
	return host.NewStream(conn)
}
