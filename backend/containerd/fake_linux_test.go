package containerd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	apitask "github.com/containerd/containerd/api/types/task"
	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// oneContainer is a store with one container. Other methods than these panic.
type oneContainer struct {
	containers.Store
	container containers.Container
}

func (s oneContainer) Get(context.Context, string) (containers.Container, error) {
	return s.container, nil
}

func (s oneContainer) List(context.Context, ...string) ([]containers.Container, error) {
	return []containers.Container{s.container}, nil
}

// fakeTasks answers requests for one task and for all tasks. Other methods panic.
type fakeTasks struct {
	tasks.TasksClient
	listed []*apitask.Process
	one    *apitask.Process
	err    error
}

func (f fakeTasks) Get(context.Context, *tasks.GetRequest, ...grpc.CallOption) (*tasks.GetResponse, error) {
	return &tasks.GetResponse{Process: f.one}, f.err
}

func (f fakeTasks) List(context.Context, *tasks.ListTasksRequest,
	...grpc.CallOption) (*tasks.ListTasksResponse, error) {
	return &tasks.ListTasksResponse{Tasks: f.listed}, nil
}

func fakeDriver(api *ctrd.Client) *driver {
	return &driver{
		api:  api,
		opts: Options{CallTimeout: time.Minute, PullTimeout: time.Hour, Logger: slog.New(slog.DiscardHandler)},
		calls: kit.New(kit.Options{
			Name: "containerd", Log: slog.New(slog.DiscardHandler), Limit: time.Minute, Patience: time.Minute,
			Native: native, Classify: classify,
		}),
	}
}

// TestSlowShim verifies that a started sandbox whose shim does not respond in time never counts as stopped.
func TestSlowShim(t *testing.T) {
	t.Parallel()
	root, nonce := t.TempDir(), rand.Text()
	r := &record{session: nameOf("session"), labels: map[string]string{
		backend.LabelRole: backend.RoleSandbox, backend.LabelID: "session", labelNonce: nonce,
	}}
	r.id = containerID(r.session, nonce)
	r.config.State, r.config.Cgroup = root, "/x/"+r.id
	checktest.Must(t, os.MkdirAll(r.state().sandbox(r.id), 0o700))
	checktest.Must(t, r.markStarted())
	unknown := &apitask.Process{ID: r.id}
	store := oneContainer{container: containers.Container{
		ID: r.id, Labels: r.labels, Extensions: map[string]typeurl.Any{configKey: r.extension()},
	}}
	for name, tc := range map[string]struct {
		tasks fakeTasks
		want  backend.State // empty means ErrUnavailable
	}{
		"containerd 1": {tasks: fakeTasks{listed: []*apitask.Process{unknown}, one: unknown}},
		"containerd 2": {tasks: fakeTasks{err: status.Error(codes.DeadlineExceeded, "slow")}},
		"fast again":   {fakeTasks{one: &apitask.Process{Status: apitask.Status_RUNNING}}, backend.StateRunning},
		"stopped":      {fakeTasks{err: status.Error(codes.NotFound, "no task")}, backend.StateStopped},
	} {
		api, err := ctrd.New("", ctrd.WithServices(ctrd.WithContainerStore(store), ctrd.WithTaskClient(tc.tasks)))
		checktest.Must(t, err)
		b := fakeDriver(api)
		all, err := b.List(t.Context(), backend.Filter{})
		if want := cmp.Or(tc.want, backend.StateRunning); err != nil || all[0].State != want {
			t.Errorf("%s: all: %+v, %v, want %s", name, all, err, want)
		}
		list, lerr := b.List(t.Context(), backend.Filter{SessionID: "session"})
		info, gerr := b.Get(t.Context(), r.name())
		_, _, rerr := b.running(t.Context(), r.name())
		if tc.want == "" {
			for _, err := range []error{lerr, gerr, rerr} {
				if !errors.Is(err, backend.ErrUnavailable) {
					t.Errorf("%s: %v, want %v", name, err, backend.ErrUnavailable)
				}
			}
		} else if lerr != nil || gerr != nil || list[0].State != tc.want || info.State != tc.want {
			t.Errorf("%s: %+v, %v, %+v, %v, want %s", name, list, lerr, info, gerr, tc.want)
		}
	}
}

// noSnapshots is a snapshotter without snapshots. Other methods panic.
type noSnapshots struct{ snapshots.Snapshotter }

func (noSnapshots) Stat(context.Context, string) (snapshots.Info, error) {
	return snapshots.Info{}, cerrdefs.ErrNotFound
}

func (noSnapshots) Prepare(context.Context, string, string, ...snapshots.Opt) ([]mount.Mount, error) {
	return nil, cerrdefs.ErrNotFound
}

// noLeases fails to create a lease, and stores the time limit of the call.
type noLeases struct {
	leases.Manager
	limit *time.Duration
}

var errNoLease = errors.New("no lease")

func (l noLeases) Create(ctx context.Context, _ ...leases.Opt) (leases.Lease, error) {
	end, _ := ctx.Deadline()
	*l.limit = time.Until(end)
	return leases.Lease{}, errNoLease
}

// TestUnpackAgain verifies that an image whose layers are missing is unpacked again, and that unpacking may take as
// long as a pull.
func TestUnpackAgain(t *testing.T) {
	t.Parallel()
	var limit time.Duration
	api, err := ctrd.New("", ctrd.WithServices(ctrd.WithLeasesService(noLeases{limit: &limit}),
		ctrd.WithSnapshotters(map[string]snapshots.Snapshotter{"x": noSnapshots{}})))
	checktest.Must(t, err)
	b := fakeDriver(api)
	b.engine.snapshotter = "x"
	b.images.Store("sha256:used", &image{chain: "c"})
	b.images.Store("sha256:other", &image{chain: "d"})
	_, err = b.prepareSnapshot(t.Context(), &record{snapshotter: "x", config: config{Parent: "c"}})
	_, used := b.images.Load("sha256:used")
	_, other := b.images.Load("sha256:other")
	if !errors.Is(err, backend.ErrImage) || used || !other {
		t.Errorf("without layers: %v, known: %t, other image: %t", err, used, other)
	}
	if err := b.unpack(t.Context(), images.Image{}, &image{chain: "c"}); err == nil || limit < b.opts.PullTimeout/2 {
		t.Errorf("unpack: %v with a limit of %v", err, limit)
	}
}
