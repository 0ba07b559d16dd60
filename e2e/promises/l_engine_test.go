package promises

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
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
	if p, ok := w.driver.(backend.Pinger); ok {
		info, err := p.Ping(t.Context())
		must(t, err)
		config.Architecture = info.Arch
	}
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	ref := r.host + "/" + repo
	tag, err := name.NewTag(ref, name.Insecure)
	must(t, err)
	must(t, remote.Write(tag, img))
	if e, ok := w.engine.(imaged); ok {
		t.Cleanup(func() { _ = e.forget(context.Background(), ref) }) // it may never have been fetched
	}
	return ref
}

// TestL1DownAtStart runs the command line against an engine that is not there, and one that does not answer.
func TestL1DownAtStart(t *testing.T) {
	t.Parallel()
	for name, environ := range w.engine.unreachable(t) {
		for _, args := range [][]string{{"sessions", "ls"}, {"sessions", "open"}, {"doctor"}} {
			t.Run(name+" "+strings.Join(args, " "), func(t *testing.T) {
				t.Parallel()
				state := w.stateDir(t, w.instance)
				command(t, state, nil) // built before the clock starts
				began := time.Now()
				res := workcell(t, state, []string{environ}, args...)
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
	e, ok := w.engine.(served)
	if !ok { // nothing that could be away: see TestL3Restart for what else can happen
		unusableState(t)
		return
	}
	p := e.front(t)
	m := newManager(t, newDriver(t, connection{address: p.address, patience: 3 * time.Second}), session.Options{})
	b, err := openBox(t.Context(), m, &tools.Plugin{Manager: m}, pythonBox())
	must(t, err)
	b.sh(t, "echo kept > f")
	type answer struct {
		out obj
		err error
	}
	ended := make(chan answer, 1)
	go func() {
		out, err := b.raw(t.Context(), toolspec.ToolExec, obj{"command": "touch began; until test -e end; do sleep 0.1; done", "yield_ms": 600_000, "timeout_seconds": 1200})
		ended <- answer{out, err}
	}()
	eventually(t, "the command runs", func() bool { _, err := b.s.StatFile(t.Context(), "began"); return err == nil })
	began := time.Now()
	p.setCut(true)
	if e.streams() {
		a := <-ended
		within(t, 5*time.Second, began)
		must(t, a.err)
		fails(t, "the command under way", a.out, toolspec.CodeUnavailable)
	}
	for tool, in := range map[string]obj{
		toolspec.ToolExec: {"cmd": []string{"true"}}, toolspec.ToolFSRead: {"path": "f"}, toolspec.ToolFSList: {}, toolspec.ToolOpen: {"session_key": "another"},
	} {
		began := time.Now()
		out := b.call(t, tool, in)
		within(t, 5*time.Second, began)
		if !e.streams() && tool != toolspec.ToolOpen { // the sandbox goes on without the engine, and so does its session
			if code(out) != "" {
				t.Errorf("%s: %v", tool, out)
			}
			continue
		}
		fails(t, tool, out, toolspec.CodeUnavailable)
		if e, _ := out["error"].(obj); e["retryable"] != true || strings.Contains(message(out), "/") {
			t.Errorf("%s: %v", tool, e)
		}
	}
	p.setCut(false)
	eventually(t, "the sandbox can be used again", func() bool {
		return string(code(b.call(t, toolspec.ToolExec, obj{"cmd": []string{"true"}}))) == ""
	})
	eventually(t, "another one can be opened", func() bool {
		return string(code(b.call(t, toolspec.ToolOpen, obj{"session_key": "another"}))) == ""
	})
	if !e.streams() {
		b.sh(t, "touch end")
		if a := <-ended; a.err != nil || a.out["status"] != "completed" {
			t.Errorf("the command under way: %v, %v", a.out, a.err)
		}
	}
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
	e, ok := w.engine.(imaged)
	if !ok {
		noImages(t)
		return
	}
	reg := newRegistry(t)
	ref := reg.push(t, "acme/app:1")
	wrong := strings.Repeat("0123456789abcdef", 4)
	debian, err := e.imageID(t.Context(), debianImage)
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
		"an id":                {image: debian, want: backend.ErrInvalid},
		"short id":             {image: debian[:12], pull: backend.PullNever, want: backend.ErrImage},
		"another tag":          {image: "workcell/debian", rules: policy, want: backend.ErrPermission},
		"another registry":     {image: "127.0.0.1:1/workcell/debian:12", rules: policy, want: backend.ErrPermission},
		"another repository":   {image: "workcell/python:3.11", rules: policy, want: backend.ErrPermission},
		"upper case":           {image: "PYTHON", rules: policy, want: backend.ErrPermission},
		"a digest":             {image: "workcell/debian@sha256:" + wrong, rules: policy, want: backend.ErrPermission},
		"tag and digest":       {image: "workcell/debian:12@sha256:" + wrong, rules: policy, want: backend.ErrPermission},
		"an id, by rule":       {image: "sha256:" + debian, rules: policy, want: backend.ErrPermission},
		"deeper":               {image: "evil/workcell/debian:12", rules: policy, want: backend.ErrPermission},
		"with a space":         {image: "workcell/debian:12 ", rules: policy, want: backend.ErrInvalid},
		"with a line end":      {image: "workcell/debian:12\n", rules: policy, want: backend.ErrInvalid},
		"allowed, not present": {image: "docker.io/library/python:latest", rules: policy, pull: backend.PullNever, want: backend.ErrImage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t, w.driver, session.Options{Images: c.rules})
			s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: c.image, Pull: c.pull})
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, %v, want %v", c.image, s, err, c.want)
			}
			if list, err := w.engine.left(t.Context(), m.Instance()); err != nil || len(list) != 0 {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
	m := newManager(t, w.driver, session.Options{Images: policy})
	for i, same := range []string{"workcell/debian:12", "docker.io/workcell/debian:12", "index.docker.io/workcell/debian:12"} {
		if _, _, err := m.Open(t.Context(), session.UserKey(fmt.Sprint("same", i)), session.Request{Image: same}); err != nil {
			t.Errorf("%s: %v", same, err)
		}
	}
}

// TestL5PullTimeout has a registry that goes silent in the middle.
func TestL5PullTimeout(t *testing.T) {
	t.Parallel()
	if _, ok := w.engine.(imaged); !ok {
		noImages(t)
		return
	}
	reg := newRegistry(t)
	ref := reg.push(t, "acme/slow:1")
	reg.stall.Store(true)
	m := newManager(t, newDriver(t, connection{pullTimeout: time.Second}), session.Options{})
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
	images, ok := w.engine.(imaged)
	if !ok {
		noImages(t)
		return
	}
	e := w.engine.(served)
	p := e.front(t)
	ref := newReference()
	must(t, images.tag(t.Context(), debianImage, ref))
	t.Cleanup(func() { must(t, images.forget(context.Background(), ref)) })
	create := e.steps()["create"]
	var swapped atomic.Bool
	p.on(func(r *http.Request) {
		if create(r) && images.tag(context.Background(), pythonImage, ref) == nil {
			swapped.Store(true)
		}
	})
	m := newManager(t, newDriver(t, connection{address: p.address}), session.Options{})
	s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: ref, Pull: backend.PullNever})
	if !swapped.Load() {
		t.Error("the tag was never moved")
	}
	if err == nil { // an engine that makes the sandbox of what was checked may go on
		if res, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"python3", "--version"}}); !isLaunchError(err) {
			t.Errorf("the sandbox holds the other image: %+v, %v", res, err)
		}
	} else if !errors.Is(err, backend.ErrImage) {
		t.Errorf("Open: %v, %v", s, err)
	}
	must(t, m.Close(context.Background()))
	nothingLeft(t, m.Instance())
}

func isLaunchError(err error) bool {
	var launch *session.LaunchError
	return errors.As(err, &launch)
}

// noImages is what an engine without images says of them.
func noImages(t *testing.T) {
	t.Helper()
	policy, err := backend.NewImagePolicy("workcell/debian:12")
	must(t, err)
	for image, c := range map[string]struct {
		rules session.ImagePolicy
		want  error
	}{
		"127.0.0.1:1/acme/app:1":         {nil, backend.ErrUnsupported},
		"ghcr.io/acme/app":               {nil, backend.ErrUnsupported},
		"ubuntu:24.04":                   {nil, backend.ErrUnsupported},
		"evil/python:3.11":               {nil, backend.ErrUnsupported},
		"127.0.0.1:1/workcell/debian:12": {nil, backend.ErrUnsupported},
		"workcell/debian@sha256:" + strings.Repeat("0", 64): {nil, backend.ErrUnsupported},
		"workcell/PYTHON:1":         {nil, backend.ErrInvalid},
		"workcell/debian:12 ":       {nil, backend.ErrInvalid},
		"workcell/python:3.11":      {policy, backend.ErrPermission},
		"evil/workcell/debian:12":   {policy, backend.ErrPermission},
		"127.0.0.1:1/workcell/d:12": {policy, backend.ErrPermission},
	} {
		m := newManager(t, w.driver, session.Options{Images: c.rules})
		if s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: image}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", image, s, err, c.want)
		}
	}
	m := newManager(t, w.driver, session.Options{Images: policy})
	if _, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: "docker.io/workcell/debian:12"}); err != nil {
		t.Error(err)
	}
}
