package promises

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	imagetypes "github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/session"
)

// dockerEngine is a Docker Engine.
type dockerEngine struct {
	api  *dockerclient.Client
	host string // as DOCKER_HOST; empty is the platform's default
}

func openDocker(context.Context, string) (engine, error) {
	api, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	return &dockerEngine{api, os.Getenv("DOCKER_HOST")}, nil
}

func (e *dockerEngine) connect(ctx context.Context, c connection) (backend.SandboxBackend, error) {
	host := c.address
	if host == "" {
		host = e.host
	}
	return docker.New(ctx, &docker.Options{
		Host: host, AllowNets: c.allowNets, Patience: c.patience, PullTimeout: c.pullTimeout, Logger: c.logger, TracerProvider: c.tracer,
	})
}

func (e *dockerEngine) environ() []string {
	if e.host != "" {
		return []string{"DOCKER_HOST=" + e.host}
	}
	return nil
}

func (e *dockerEngine) left(ctx context.Context, prefix string) ([]string, error) {
	var list []string
	cs, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		if strings.HasPrefix(c.Labels[backend.LabelInstance], prefix) || strings.Contains(strings.Join(c.Names, " "), prefix) {
			list = append(list, fmt.Sprintf("container %v, %s", c.Names, c.State))
		}
	}
	vs, err := e.api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", backend.LabelInstance))})
	if err != nil {
		return nil, err
	}
	for _, vol := range vs.Volumes {
		if strings.HasPrefix(vol.Labels[backend.LabelInstance], prefix) {
			list = append(list, "volume "+vol.Name)
		}
	}
	return list, nil
}

func (e *dockerEngine) running(ctx context.Context, id string) bool {
	res, err := e.api.ContainerInspect(ctx, id)
	return err == nil && res.State.Running
}

func (e *dockerEngine) processes(ctx context.Context, id string) (int, error) {
	top, err := e.api.ContainerTop(ctx, id, nil)
	return len(top.Processes), err
}

func (e *dockerEngine) describe(ctx context.Context, id string) (string, error) {
	c, err := e.api.ContainerInspect(ctx, id)
	if err != nil {
		return "", err
	}
	v, err := e.api.VolumeInspect(ctx, "workcell-"+c.Config.Labels[backend.LabelID]+"-workspace")
	if err != nil {
		return "", err
	}
	text, err := json.Marshal([]any{c, v})
	return string(text), err
}

func (e *dockerEngine) address(ctx context.Context, id string) (own, gateway string, err error) {
	res, err := e.api.ContainerInspect(ctx, id)
	if err != nil {
		return "", "", err
	}
	for _, n := range res.NetworkSettings.Networks {
		own, gateway = n.IPAddress, n.Gateway
	}
	return own, gateway, nil
}

func (e *dockerEngine) stranger(t testing.TB, labels map[string]string) stranger {
	t.Helper()
	return e.strangerFrom(t, debianImage, labels)
}

func (e *dockerEngine) strangerFrom(t testing.TB, image string, labels map[string]string) stranger {
	t.Helper()
	name := "other-" + w.instance + "-" + session.NewID()
	res, err := e.api.ContainerCreate(t.Context(), &container.Config{Image: image, Cmd: []string{"sleep", "6000"}, Labels: labels},
		&container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	must(t, err)
	t.Cleanup(func() {
		must(t, e.api.ContainerRemove(context.Background(), res.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}))
	})
	must(t, e.api.ContainerStart(t.Context(), res.ID, container.StartOptions{}))
	return stranger{[]string{res.ID, res.ID[:12], name}, func() bool { return e.running(context.Background(), res.ID) }}
}

func (e *dockerEngine) derive(t testing.TB, c change) string {
	t.Helper()
	ctx := context.Background() // what is begun is ended
	res, err := e.api.ContainerCreate(ctx, &container.Config{Image: debianImage, Cmd: []string{"true"}}, nil, nil, nil,
		"other-"+w.instance+"-"+session.NewID())
	must(t, err)
	defer func() { must(t, e.api.ContainerRemove(ctx, res.ID, container.RemoveOptions{Force: true})) }()
	if len(c.files) > 0 {
		must(t, e.api.CopyToContainer(ctx, res.ID, "/", bytes.NewReader(packed(t, c.files)), container.CopyToContainerOptions{}))
	}
	var changes []string
	for name, value := range c.env {
		changes = append(changes, "ENV "+name+"="+value)
	}
	for name, value := range c.labels {
		changes = append(changes, "LABEL "+name+"="+value)
	}
	ref := newReference()
	_, err = e.api.ContainerCommit(ctx, res.ID, container.CommitOptions{Reference: ref, Changes: changes})
	must(t, err)
	t.Cleanup(func() { must(t, e.forget(context.Background(), ref)) })
	return ref
}

// newReference gives a reference that no engine knows.
func newReference() string { return "workcell-promises/" + strings.ToLower(session.NewID()) + ":1" }

// packed gives files as a tar archive.
func packed(t testing.TB, files []file) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, f := range files {
		must(t, tw.WriteHeader(&tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.data))}))
		_, err := tw.Write(f.data)
		must(t, err)
	}
	must(t, tw.Close())
	return b.Bytes()
}

func (e *dockerEngine) imageID(ctx context.Context, ref string) (string, error) {
	res, err := e.api.ImageInspect(ctx, ref)
	return strings.TrimPrefix(res.ID, "sha256:"), err
}

func (e *dockerEngine) tag(ctx context.Context, image, ref string) error {
	return e.api.ImageTag(ctx, image, ref)
}

func (e *dockerEngine) forget(ctx context.Context, ref string) error {
	_, err := e.api.ImageRemove(ctx, ref, imagetypes.RemoveOptions{Force: true, PruneChildren: true})
	return err
}

func (e *dockerEngine) front(t testing.TB) *proxy {
	t.Helper()
	at, err := dockerclient.ParseHostURL(e.api.DaemonHost())
	must(t, err)
	p := newHTTPProxy(t, at.Scheme, at.Host)
	p.address = "unix://" + p.address
	return p
}

func (e *dockerEngine) steps() map[string]func(*http.Request) bool {
	creates := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/containers/create") }
	// The sandbox's own container, and not one that helps to make it.
	own := func(r *http.Request) bool {
		name := r.URL.Query().Get("name")
		return strings.HasPrefix(name, "workcell-sbx_") && strings.Count(name, "-") == 1
	}
	posts := func(path string) func(*http.Request) bool {
		return func(r *http.Request) bool { return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, path) }
	}
	return map[string]func(*http.Request) bool{
		"pull":    posts("/images/create"),
		"create":  func(r *http.Request) bool { return creates(r) && own(r) },
		"prepare": func(r *http.Request) bool { return creates(r) && !own(r) },
		"start":   posts("/start"),
		"attach":  posts("/attach"),
	}
}

func (e *dockerEngine) streams() bool { return true }

func (e *dockerEngine) unreachable(t testing.TB) map[string]string {
	dir := t.TempDir()
	silent := silentSocket(t, dir)
	return map[string]string{
		"no socket": "DOCKER_HOST=unix://" + filepath.Join(dir, "secret-place.sock"), "silent": "DOCKER_HOST=unix://" + silent,
		"no listener": "DOCKER_HOST=tcp://127.0.0.1:1",
	}
}

// silentSocket takes connections and says nothing.
func silentSocket(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "silent.sock")
	l, err := net.Listen("unix", path) // nobody accepts
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return path
}

func (e *dockerEngine) mounts() *regexp.Regexp { return containerMounts() }

func (e *dockerEngine) close() error { return e.api.Close() }
