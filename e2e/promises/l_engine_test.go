package promises

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	imagetypes "github.com/docker/docker/api/types/image"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// registryServer is a real registry on loopback, from which the engine pulls.
type registryServer struct {
	host  string
	stall atomic.Bool                         // answer no more requests for contents
	hook  atomic.Pointer[func(*http.Request)] // called with every request
}

func newRegistry(t testing.TB) *registryServer {
	t.Helper()
	r := &registryServer{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		if f := r.hook.Load(); f != nil {
			(*f)(q)
		}
		if r.stall.Load() && strings.Contains(q.URL.Path, "/blobs/") {
			select {
			case <-q.Context().Done():
			case <-ended:
			}
			return
		}
		inner.ServeHTTP(rw, q)
	}))
	t.Cleanup(func() {
		close(ended)
		srv.CloseClientConnections()
		srv.Close()
	})
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// push stores an image that no engine has, and gives its reference. What the engine fetches of it goes with the test.
func (r *registryServer) push(t testing.TB, repo string) string {
	t.Helper()
	var files bytes.Buffer
	tw := tar.NewWriter(&files)
	text := session.NewID()
	must(t, tw.WriteHeader(&tar.Header{Name: "unique", Mode: 0o644, Size: int64(len(text))}))
	_, err := io.WriteString(tw, text)
	must(t, errors.Join(err, tw.Close()))
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	must(t, err)
	img, err := mutate.AppendLayers(empty.Image, layer)
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	if version, err := w.api.ServerVersion(t.Context()); err == nil {
		config.Architecture = version.Arch
	}
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	ref := r.host + "/" + repo
	tag, err := name.NewTag(ref, name.Insecure)
	must(t, err)
	must(t, remote.Write(tag, img))
	t.Cleanup(func() {
		_, _ = w.api.ImageRemove(context.Background(), ref, imagetypes.RemoveOptions{Force: true}) // it may never have been fetched
	})
	return ref
}

// TestL1DownAtStart runs the command line against an engine that is not there, and one that does not answer.
func TestL1DownAtStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	silent, err := net.Listen("unix", filepath.Join(dir, "silent.sock"))
	must(t, err)
	defer silent.Close() // nobody accepts: connections are made and nothing comes back
	for name, host := range map[string]string{
		"no socket": "unix://" + filepath.Join(dir, "secret-place.sock"), "silent": "unix://" + filepath.Join(dir, "silent.sock"), "no listener": "tcp://127.0.0.1:1",
	} {
		for _, args := range [][]string{{"sessions", "ls"}, {"sessions", "open"}, {"doctor"}} {
			t.Run(name+" "+strings.Join(args, " "), func(t *testing.T) {
				t.Parallel()
				state := w.stateDir(t, w.instance)
				command(t, state, nil) // built before the clock starts
				began := time.Now()
				res := workcell(t, state, []string{"DOCKER_HOST=" + host}, args...)
				within(t, 5*time.Second, began)
				if res.code != 5 || strings.Contains(res.stderr, "goroutine ") || !strings.Contains(res.stderr+res.stdout, "engine") {
					t.Errorf("%+v", res)
				}
			})
		}
	}
}

// TestL1DownMeanwhile cuts the engine off under a sandbox, and has it come back.
func TestL1DownMeanwhile(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	m := newManager(t, newDriver(t, docker.Options{Host: p.host, Patience: 3 * time.Second}), session.Options{})
	b, err := openBox(t.Context(), m, &tools.Plugin{Manager: m}, pythonBox())
	must(t, err)
	b.sh(t, "echo kept > f")
	type answer struct {
		out obj
		err error
	}
	ended := make(chan answer, 1)
	go func() {
		out, err := b.raw(t.Context(), tools.ToolExec, obj{"command": "touch began; sleep 600", "yield_ms": 600_000})
		ended <- answer{out, err}
	}()
	eventually(t, "the command runs", func() bool { _, err := b.s.StatFile(t.Context(), "began"); return err == nil })
	began := time.Now()
	p.setCut(true)
	a := <-ended
	within(t, 5*time.Second, began)
	must(t, a.err)
	fails(t, "the command under way", a.out, tools.CodeUnavailable)
	for tool, in := range map[string]obj{
		tools.ToolExec: {"cmd": []string{"true"}}, tools.ToolFSRead: {"path": "f"}, tools.ToolFSList: {}, tools.ToolOpen: {"session_key": "another"},
	} {
		began := time.Now()
		out := b.call(t, tool, in)
		fails(t, tool, out, tools.CodeUnavailable)
		within(t, 5*time.Second, began)
		if e, _ := out["error"].(obj); e["retryable"] != true || strings.Contains(message(out), "/") {
			t.Errorf("%s: %v", tool, e)
		}
	}
	p.setCut(false)
	eventually(t, "the sandbox can be used again", func() bool {
		return string(code(b.call(t, tools.ToolExec, obj{"cmd": []string{"true"}}))) == ""
	})
	if got := b.sh(t, "cat f"); got != "kept\n" {
		t.Errorf("the file holds %q", got)
	}
	if b.s.Info().State != session.StateReady {
		t.Errorf("state %s", b.s.Info().State)
	}
}

// TestL5Images asks for images that cannot be had or must not be used. No container comes of it.
func TestL5Images(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	ref := reg.push(t, "acme/app:1")
	wrong := strings.Repeat("0123456789abcdef", 4)
	debian, err := w.api.ImageInspect(t.Context(), debianImage)
	must(t, err)
	policy, err := backend.NewImagePolicy("workcell/debian:12", "python")
	must(t, err)
	for name, c := range map[string]struct {
		image string
		rules session.ImagePolicy
		pull  backend.PullPolicy
		want  error
	}{
		"missing":              {image: reg.host + "/acme/none:1", want: backend.ErrImage},
		"missing tag":          {image: reg.host + "/acme/app:2", want: backend.ErrImage},
		"no registry":          {image: "127.0.0.1:1/acme/app:1", want: backend.ErrImage},
		"may not be fetched":   {image: ref, pull: backend.PullNever, want: backend.ErrImage},
		"wrong digest":         {image: reg.host + "/acme/app@sha256:" + wrong, want: backend.ErrImage},
		"malformed":            {image: "UPPER/case:1", want: backend.ErrInvalid},
		"an id":                {image: strings.TrimPrefix(debian.ID, "sha256:"), want: backend.ErrInvalid},
		"short id":             {image: strings.TrimPrefix(debian.ID, "sha256:")[:12], pull: backend.PullNever, want: backend.ErrImage},
		"another tag":          {image: "workcell/debian", rules: policy, want: backend.ErrPermission},
		"another registry":     {image: "127.0.0.1:1/workcell/debian:12", rules: policy, want: backend.ErrPermission},
		"another repository":   {image: "workcell/python:3.11", rules: policy, want: backend.ErrPermission},
		"upper case":           {image: "PYTHON", rules: policy, want: backend.ErrPermission},
		"a digest":             {image: "workcell/debian@sha256:" + wrong, rules: policy, want: backend.ErrPermission},
		"tag and digest":       {image: "workcell/debian:12@sha256:" + wrong, rules: policy, want: backend.ErrPermission},
		"an id, by rule":       {image: debian.ID, rules: policy, want: backend.ErrPermission},
		"deeper":               {image: "evil/workcell/debian:12", rules: policy, want: backend.ErrPermission},
		"with a space":         {image: "workcell/debian:12 ", rules: policy, want: backend.ErrInvalid},
		"with a line end":      {image: "workcell/debian:12\n", rules: policy, want: backend.ErrInvalid},
		"allowed, not present": {image: "docker.io/library/python:latest", rules: policy, pull: backend.PullNever, want: backend.ErrImage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t, w.engine, session.Options{Images: c.rules})
			s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: c.image, Pull: c.pull})
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, %v, want %v", c.image, s, err, c.want)
			}
			if list, err := w.objects(t.Context(), m.Instance()); err != nil || len(list) != 0 {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
	m := newManager(t, w.engine, session.Options{Images: policy})
	for i, same := range []string{"workcell/debian:12", "docker.io/workcell/debian:12", "index.docker.io/workcell/debian:12"} {
		if _, _, err := m.Open(t.Context(), session.UserKey(fmt.Sprint("same", i)), session.Request{Image: same}); err != nil {
			t.Errorf("%s: %v", same, err)
		}
	}
}

// TestL5PullTimeout has a registry that goes silent in the middle.
func TestL5PullTimeout(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	ref := reg.push(t, "acme/slow:1")
	reg.stall.Store(true)
	m := newManager(t, newDriver(t, docker.Options{PullTimeout: time.Second}), session.Options{})
	began := time.Now()
	_, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: ref})
	within(t, 2*time.Second, began)
	if !errors.Is(err, backend.ErrImage) {
		t.Errorf("Open: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, err := m.Open(ctx, session.UserKey("y"), session.Request{Image: ref}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open with a deadline: %v", err)
	}
	nothingLeft(t, m.Instance())
}

// TestL5TagSwapped moves a tag between the moment when the image is checked and the moment when it is used.
func TestL5TagSwapped(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	ref := "workcell-promises/" + strings.ToLower(session.NewID()) + ":1"
	must(t, w.api.ImageTag(t.Context(), debianImage, ref))
	t.Cleanup(func() {
		_, err := w.api.ImageRemove(context.Background(), ref, imagetypes.RemoveOptions{})
		must(t, err)
	})
	p.on(func(r *http.Request) {
		if isCreate(r) {
			_ = w.api.ImageTag(r.Context(), pythonImage, ref) // a failure shows as a sandbox of the right image
		}
	})
	m := newManager(t, newDriver(t, docker.Options{Host: p.host}), session.Options{})
	s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: ref, Pull: backend.PullNever})
	if !errors.Is(err, backend.ErrImage) {
		t.Errorf("Open: %v, %v", s, err)
	}
	nothingLeft(t, m.Instance())
}
