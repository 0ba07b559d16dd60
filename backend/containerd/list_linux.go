package containerd

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/containerd/containerd/api/services/tasks/v1"
	apitask "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// Get describes a sandbox.
func (b *driver) Get(ctx context.Context, id string) (backend.Info, error) {
	r, err := b.own(ctx, id)
	if err != nil {
		return backend.Info{}, err
	}
	p, err := b.task(ctx, r.id)
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		return backend.Info{}, err
	}
	return b.describe(r, p), nil
}

// exitKilled is the exit status of a main process killed with SIGKILL, for example by the kernel's OOM killer: 128 plus
// the signal.
const exitKilled = 128 + 9

// describe returns the info of a sandbox. p is the main process, or nil if the sandbox has none.
func (b *driver) describe(r *record, p *apitask.Process) backend.Info {
	info := r.info(r.stateOf(p))
	if info.State == backend.StateStopped && p != nil && p.GetExitStatus() == exitKilled {
		info.OOMKilled = b.engine.cgroups.oomKills(r) > 0
	}
	return info
}

// List describes the sandboxes matching filter.
func (b *driver) List(ctx context.Context, filter backend.Filter) ([]backend.Info, error) {
	list, err := b.listContainers(ctx, "list containers", labelFilter(filter))
	if err != nil {
		return nil, err
	}
	if len(list) == 0 { // without a call for the tasks
		return []backend.Info{}, nil
	}
	procs, err := b.tasks(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]backend.Info, 0, len(list))
	for _, c := range list {
		r, ok := readRecord(c)
		if !ok {
			continue
		}
		b.known.Store(r.name(), r)
		p := procs[r.id]
		if p.GetStatus() == apitask.Status_UNKNOWN && r.started() { // without a task, or with a slow shim
			p, err = b.task(ctx, r.id)
			switch {
			case err == nil || errors.Is(err, backend.ErrNotFound):
			case filter.SessionID != "":
				return nil, err
			default: // one slow shim must not hide the other sandboxes
				p = &apitask.Process{ID: r.id, Status: apitask.Status_RUNNING}
			}
		}
		infos = append(infos, b.describe(r, p))
	}
	return infos, nil
}

// others returns the records of a session's sandboxes, without except, which may be nil. At most one record exists,
// unless a process died or several installations created a sandbox of the session at the same time.
func (b *driver) others(ctx context.Context, s sessionName, except *record) ([]*record, error) {
	filter := "id~=" + strconv.Quote("^"+s.prefix())
	list, err := b.listContainers(ctx, "look for sandboxes of the session", filter)
	var out []*record
	for _, c := range list {
		if r, ok := readRecord(c); ok && r.session == s && (except == nil || r.id != except.id) {
			out = append(out, r)
		}
	}
	return out, err
}

// listContainers returns the containers matching a filter of containerd. what names the call in errors.
func (b *driver) listContainers(ctx context.Context, what, filter string) ([]containers.Container, error) {
	return kit.Call(ctx, b.calls, what, func(ctx context.Context) ([]containers.Container, error) {
		return b.api.ContainerService().List(ctx, filter)
	})
}

// tasks returns the main processes of the containers in the driver's namespace. If a shim is slow, containerd 2.x omits
// the process, and containerd 1.x returns an unknown state.
func (b *driver) tasks(ctx context.Context) (map[string]*apitask.Process, error) {
	all := kit.WithoutOptions(b.api.TaskService().List, &tasks.ListTasksRequest{})
	res, err := kit.Call(ctx, b.calls, "list tasks", all)
	out := map[string]*apitask.Process{}
	for _, p := range res.GetTasks() {
		out[p.GetID()] = p
	}
	return out, err
}

// labelFilter returns a filter by labels in containerd's syntax. In this syntax, a comma means AND.
func labelFilter(f backend.Filter) string {
	parts := []string{}
	for label, want := range kit.FilterLabels(f) {
		parts = append(parts, "labels."+strconv.Quote(label)+"=="+strconv.Quote(want))
	}
	return strings.Join(parts, ",")
}
