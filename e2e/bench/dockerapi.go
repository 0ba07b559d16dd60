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

	"github.com/workcell-dev/workcell/backend"
)

// dockerAPI is a baseline. It does the same work with the Docker Engine API alone, in a container with the same limits.
type dockerAPI struct {
	api   *dockerclient.Client
	image string
}

func newDockerAPI(image string) (*dockerAPI, error) {
	api, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	return &dockerAPI{api: api, image: image}, err
}

func (e *dockerAPI) name() string { return "docker_api" }
func (e *dockerAPI) close() error { return e.api.Close() }

// open creates and starts a container like ours with a sleeping main process.
func (e *dockerAPI) open(ctx context.Context) (*contender, error) {
	vol, err := e.api.VolumeCreate(ctx, volume.CreateOptions{})
	if err != nil {
		return nil, err
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
		return nil, errors.Join(err, e.api.VolumeRemove(ctx, vol.Name, true))
	}
	remove := func() error {
		return errors.Join(
			e.api.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true}),
			e.api.VolumeRemove(ctx, vol.Name, true))
	}
	if err := e.api.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		return nil, errors.Join(err, remove())
	}
	return &contender{
		exec:   func() error { return e.exec(ctx, made.ID, "/bin/true") },
		write:  func(size int64) error { return e.write(ctx, made.ID, backend.Workdir, "file", size) },
		read:   func() (int64, error) { return e.read(ctx, made.ID, backend.Workdir+"/file") },
		remove: remove,
	}, nil
}

// exec runs argv and waits for the exit code, like `docker exec`.
func (e *dockerAPI) exec(ctx context.Context, id string, argv ...string) error {
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

// write writes size zero bytes to a file with the copy API. The container must not have a read-only root.
func (e *dockerAPI) write(ctx context.Context, id, dir, name string, size int64) error {
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Uid: 1000, Gid: 1000}); err != nil {
		return err
	}
	pad := (512 - size%512) % 512
	body := io.MultiReader(&head, io.LimitReader(zeros{}, size+pad+1024))
	return e.api.CopyToContainer(ctx, id, dir, body, container.CopyToContainerOptions{})
}

// read reads a file with the copy API and returns the size.
func (e *dockerAPI) read(ctx context.Context, id, path string) (int64, error) {
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
