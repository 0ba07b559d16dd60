package containerd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	apitask "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// killWait is the maximum time for a killed process to exit before it is checked again, because it may be paused.
const killWait = 3 * time.Second

// staleWait is the maximum time in which containerd removes a task whose shim died or was incomplete.
const staleWait = 10 * time.Second

// startTask connects the network of a bridged sandbox and starts the sandbox's main process. again means an earlier
// task may have existed. If startTask fails, destroy removes the task.
func (b *driver) startTask(ctx context.Context, r *record, mounts []mount.Mount, again bool) (err error) {
	ctx, span := b.calls.Span(ctx, telemetry.SpanDriverStart)
	defer func() { telemetry.End(span, err) }()
	if path := r.netns(); path != "" {
		if err := makeNetns(path); err != nil {
			return err
		}
	}
	device, err := r.attachWorkspace()
	if err != nil {
		return err
	}
	defer device.Close() //nolint:errcheck // the runtime's mount keeps the device
	g, gctx := errgroup.WithContext(ctx)
	if r.bridged() {
		g.Go(func() error { return b.joinNetwork(gctx, r) })
	}
	g.Go(func() error { return b.createTask(gctx, r, mounts, again) })
	if err := g.Wait(); err != nil {
		return err
	}
	start := kit.WithoutOptions(b.api.TaskService().Start, &tasks.StartRequest{ContainerID: r.id})
	if _, err = kit.Finish(ctx, b.calls, "start sandbox", start); err != nil {
		return err
	}
	return r.markStarted()
}

// errStarted means that another call, perhaps in another process, started the sandbox concurrently.
var errStarted = errors.New("another call started the sandbox")

// createTask makes the runtime create the container without running the process yet.
func (b *driver) createTask(ctx context.Context, r *record, mounts []mount.Mount, again bool) error {
	req := &tasks.CreateTaskRequest{ContainerID: r.id}
	for _, m := range mounts {
		req.Rootfs = append(req.Rootfs, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	began := time.Now()
	return b.calls.Retry(ctx, func() (bool, error) {
		_, err := kit.Finish(ctx, b.calls, "make sandbox", kit.WithoutOptions(b.api.TaskService().Create, req))
		switch {
		case kit.Unexplained(err):
			// containerd may still be cleaning up an earlier, failed task of this name, for example because the requesting
			// process died. The error for this case has no type.
			return !again || ctx.Err() != nil || time.Since(began) > staleWait, err
		case !errors.Is(err, backend.ErrExists):
			return true, err
		}
		if p, err := b.task(ctx, r.id); err == nil && r.stateOf(p) == backend.StateRunning {
			return true, errStarted
		}
		// Another caller is starting the sandbox, or containerd has not yet cleaned up a dead shim.
		return time.Since(began) > staleWait, fmt.Errorf("containerd: the sandbox is starting or stopping: %w",
			backend.ErrUnavailable)
	})
}

// task returns the main process of a sandbox, or ErrNotFound if it has none. If the shim is slow, containerd 1.x
// returns an unknown state, and task returns ErrUnavailable.
func (b *driver) task(ctx context.Context, id string) (*apitask.Process, error) {
	get := kit.WithoutOptions(b.api.TaskService().Get, &tasks.GetRequest{ContainerID: id})
	res, err := kit.Call(ctx, b.calls, "inspect sandbox", get)
	if err == nil && res.GetProcess().GetStatus() == apitask.Status_UNKNOWN {
		return nil, b.calls.Error("inspect sandbox", backend.ErrUnavailable, "unknown state")
	}
	return res.GetProcess(), err
}

// deleteTask kills a sandbox's processes and waits until they have exited.
func (b *driver) deleteTask(ctx context.Context, r *record) error {
	if err := b.Thaw(ctx, r); err != nil {
		return err
	}
	remove := kit.WithoutOptions(b.api.TaskService().Delete, &tasks.DeleteTaskRequest{ContainerID: r.id})
	var begin time.Time // start of the time bounded by endWait
	return b.calls.Retry(ctx, func() (bool, error) {
		err := b.killTask(ctx, r.id)
		if err == nil {
			_, err = kit.Call(ctx, b.calls, "delete task", remove)
		}
		switch {
		case err == nil, errors.Is(err, backend.ErrNotFound):
			return true, nil
		case errors.Is(err, errState):
			return false, err
		case begin.IsZero():
			begin = time.Now()
		}
		return !kit.Unexplained(err) || time.Since(begin) > endWait, err
	})
}

// endWait is how long deleteTask retries after errors without a known type. Shims return such errors while another call
// ends the same process. containerd returns them while it cleans up a killed shim.
const endWait = 5 * time.Second

// killTask kills the main process and thereby all processes in its PID namespace. It waits for a while until they exit.
func (b *driver) killTask(ctx context.Context, id string) error {
	svc := b.api.TaskService()
	kill := kit.WithoutOptions(svc.Kill, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL)})
	_, err := kit.Call(ctx, b.calls, "kill sandbox", kill)
	if errors.Is(err, backend.ErrNotFound) { // no task, or it has exited
		return nil
	}
	if kit.Unexplained(err) { // runsc has no error type for an exited process
		if p, terr := b.task(ctx, id); terr == nil && p.GetStatus() == apitask.Status_STOPPED {
			return nil
		}
	}
	if err != nil && !errors.Is(err, errState) {
		return err
	}
	wctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	wait := kit.WithoutOptions(svc.Wait, &tasks.WaitRequest{ContainerID: id})
	_, err = kit.Call(wctx, b.calls, "await the sandbox's exit", wait)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		// A frozen process does not exit.
		return b.calls.Do(ctx, "resume sandbox", func(ctx context.Context) error {
			_, err := svc.Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
			if err != nil {
				b.opts.Logger.Warn("containerd: a killed sandbox does not exit", "container", id, "error", err)
			}
			return nil
		})
	}
	return kit.Ignore(err, backend.ErrNotFound)
}
