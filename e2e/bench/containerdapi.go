package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// containerdAPI is a baseline. It does the same work with containerd's client alone, in a container with the same
// limits and containerd's default system call filter.
type containerdAPI struct {
	api   *ctrd.Client
	image ctrd.Image
	execs atomic.Int64
}

func newContainerdAPI(ctx context.Context, address, ref string) (*containerdAPI, error) {
	full, err := backend.NormalizeImage(ref)
	if err != nil {
		return nil, err
	}
	api, err := ctrd.New(address, ctrd.WithDefaultNamespace(containerd.DefaultNamespace))
	if err != nil {
		return nil, err
	}
	image, err := api.GetImage(ctx, full)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("containerd has no image %s: %w", full, err), api.Close())
	}
	return &containerdAPI{api: api, image: image}, nil
}

func (e *containerdAPI) name() string { return "containerd_api" }
func (e *containerdAPI) close() error { return e.api.Close() }

// open creates and starts a container like ours with a sleeping main process.
func (e *containerdAPI) open(ctx context.Context) (*contender, error) {
	id := "bench-" + strconv.FormatInt(e.execs.Add(1), 10) + "-" + strconv.Itoa(syscall.Getpid())
	unlimited := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		s.Process.Rlimits = nil // the defaults may exceed the host's limits
		return nil
	}
	c, err := e.api.NewContainer(ctx, id, ctrd.WithImage(e.image), ctrd.WithNewSnapshot(id, e.image), ctrd.WithNewSpec(
		oci.WithImageConfig(e.image), oci.WithProcessArgs("sleep", "100000"), oci.WithUserID(1000), oci.WithRootFSReadonly(),
		oci.WithCapabilities(nil), oci.WithNoNewPrivileges, oci.WithMemoryLimit(2<<30), oci.WithMemorySwap(2<<30), oci.WithPidsLimit(276),
		oci.WithCPUCFS(int64(runtime.NumCPU())*100_000, 100_000), unlimited, seccomp.WithDefaultProfile(),
	))
	if err != nil {
		return nil, err
	}
	drop := func() error { return c.Delete(context.WithoutCancel(ctx), ctrd.WithSnapshotCleanup) }
	task, err := c.NewTask(ctx, cio.NullIO)
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	remove := func() error {
		_, err := task.Delete(context.WithoutCancel(ctx), ctrd.WithProcessKill)
		return errors.Join(err, drop())
	}
	if err := task.Start(ctx); err != nil {
		return nil, errors.Join(err, remove())
	}
	spec, err := c.Spec(ctx)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return &contender{exec: func() error { return e.exec(ctx, task, spec.Process, "/bin/true") }, remove: remove}, nil
}

// exec runs argv with task.Exec and waits for the exit code.
func (e *containerdAPI) exec(ctx context.Context, task ctrd.Task, process *specs.Process, argv ...string) error {
	own := *process // copied because callers share it
	own.Args = argv
	p, err := task.Exec(ctx, "exec-"+strconv.FormatInt(e.execs.Add(1), 10), &own,
		cio.NewCreator(cio.WithStreams(nil, io.Discard, io.Discard)))
	if err != nil {
		return err
	}
	exit, err := p.Wait(ctx)
	if err == nil {
		err = p.Start(ctx)
	}
	if err != nil {
		_, derr := p.Delete(ctx, ctrd.WithProcessKill)
		return errors.Join(err, derr)
	}
	status := <-exit
	p.IO().Wait()
	if _, err := p.Delete(ctx); err != nil {
		return err
	}
	code, _, err := status.Result()
	if err == nil && code != 0 {
		err = fmt.Errorf("%v exited with %d", argv, code)
	}
	return err
}
