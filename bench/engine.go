package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"
	dockerclient "github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
)

// engine is the baseline: the same work done with the Docker Engine API alone, in a container with the same limits.
type engine struct {
	api   *dockerclient.Client
	image string
}

// open creates and starts a container like ours whose main process sleeps; remove ends it.
func (e *engine) open(ctx context.Context) (id string, remove func() error, err error) {
	vol, err := e.api.VolumeCreate(ctx, volume.CreateOptions{})
	if err != nil {
		return "", nil, err
	}
	pids := int64(276)
	made, err := e.api.ContainerCreate(ctx, &container.Config{
		Image: e.image, User: "1000:1000", WorkingDir: "/", Entrypoint: []string{"sleep", "100000"},
	}, &container.HostConfig{
		NetworkMode: "none", ReadonlyRootfs: true, CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"},
		LogConfig: container.LogConfig{Type: "none"}, Tmpfs: map[string]string{"/tmp": "size=64m"},
		Mounts:    []mount.Mount{{Type: mount.TypeVolume, Source: vol.Name, Target: "/workspace"}},
		Resources: container.Resources{Memory: 2 << 30, MemorySwap: 2 << 30, PidsLimit: &pids, NanoCPUs: int64(runtime.NumCPU()) * 1e9},
	}, nil, nil, "")
	if err != nil {
		return "", nil, errors.Join(err, e.api.VolumeRemove(ctx, vol.Name, true))
	}
	remove = func() error {
		return errors.Join(
			e.api.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true}),
			e.api.VolumeRemove(ctx, vol.Name, true))
	}
	if err := e.api.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return made.ID, remove, nil
}

// exec runs argv and waits for its exit code, as `docker exec` does.
func (e *engine) exec(ctx context.Context, id string, argv ...string) error {
	made, err := e.api.ContainerExecCreate(ctx, id, container.ExecOptions{Cmd: argv, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return err
	}
	stream, err := e.api.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	if _, err := stdcopy.StdCopy(io.Discard, io.Discard, stream.Reader); err != nil {
		return err
	}
	state, err := e.api.ContainerExecInspect(ctx, made.ID)
	if err != nil {
		return err
	}
	if state.ExitCode != 0 {
		return fmt.Errorf("%v exited with %d", argv, state.ExitCode)
	}
	return nil
}

// write puts size zero bytes into a file through the copy API. The container must not have a read-only root.
func (e *engine) write(ctx context.Context, id, dir, name string, size int64) error {
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Uid: 1000, Gid: 1000}); err != nil {
		return err
	}
	pad := (512 - size%512) % 512
	body := io.MultiReader(&head, io.LimitReader(zeros{}, size+pad+1024))
	return e.api.CopyToContainer(ctx, id, dir, body, container.CopyToContainerOptions{})
}

// read fetches a file through the copy API and gives its size.
func (e *engine) read(ctx context.Context, id, path string) (int64, error) {
	body, _, err := e.api.CopyFromContainer(ctx, id, path)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	r := tar.NewReader(body)
	if _, err := r.Next(); err != nil {
		return 0, err
	}
	return io.Copy(io.Discard, r)
}

// zeros reads as endless zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
