//go:build linux

package promises

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
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
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// registryServer is a real registry on loopback, from which the engine pulls.
type registryServer struct {
	host  string
	stall atomic.Bool // stop answering requests for contents
}

func newRegistry(t testing.TB) *registryServer {
	t.Helper()
	r := &registryServer{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
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

// push stores an image unknown to every engine, and returns the reference. At the end of the test, the image is removed
// from the engine.
func (r *registryServer) push(t testing.TB, repo string) string {
	t.Helper()
	unique := (&file{"unique", 0o644, []byte(record.NewID())}).archive(t)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(unique)), nil })
	must(t, err)
	img, err := mutate.AppendLayers(empty.Image, layer)
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	info, err := w.driver.Ping(t.Context())
	must(t, err)
	config.OS, config.Architecture = "linux", cmp.Or(info.Arch, runtime.GOARCH)
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	ref := r.host + "/" + repo
	tag, err := name.NewTag(ref, name.Insecure)
	must(t, err)
	must(t, remote.Write(tag, img))
	if e, ok := w.engine.(imaged); ok {
		t.Cleanup(func() { _ = e.forget(context.Background(), ref) }) // it may never have been pulled
	}
	return ref
}

// TestL1DownMeanwhile: calls return typed errors while the engine is cut off. A running command continues when the
// engine is back.
func TestL1DownMeanwhile(t *testing.T) {
	t.Parallel()
	e, ok := w.engine.(served)
	if !ok {
		return // no engine can be cut off
	}
	p := e.proxy(t)
	m := newManager(t, newDriver(t, connection{address: p.address, patience: 8 * time.Second}), session.Options{})
	b, err := openSandbox(t.Context(), m, &tools.Plugin{Manager: m}, pythonSandbox())
	must(t, err)
	b.sh(t, "echo kept > f")
	var out obj
	ended := make(chan error, 1)
	go func() {
		var err error
		out, err = b.raw(t.Context(), toolspec.ToolExec, obj{"command": "touch began; until test -e end; do sleep 0.1; done", "yield_ms": 600_000, "timeout_seconds": 1200})
		ended <- err
	}()
	eventually(t, "the command runs", func() bool { _, err := b.s.StatFile(t.Context(), "began"); return err == nil })
	p.setCut(true)
	for tool, in := range map[string]obj{
		toolspec.ToolExec: {"cmd": []string{"true"}}, toolspec.ToolFSRead: {"path": "f"}, toolspec.ToolFSList: {}, toolspec.ToolOpen: {"session_key": "another"},
	} {
		out := b.call(t, tool, in)
		if !e.streams() && tool != toolspec.ToolOpen { // the sandbox and the session work without the engine
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
		return code(b.call(t, toolspec.ToolExec, obj{"cmd": []string{"true"}})) == ""
	})
	eventually(t, "another sandbox can be opened", func() bool {
		return code(b.call(t, toolspec.ToolOpen, obj{"session_key": "another"})) == ""
	})
	b.sh(t, "touch end")
	if err := <-ended; err != nil || out["status"] != "completed" {
		t.Errorf("the running command: %v, %v", out, err)
	}
	if got := b.sh(t, "cat f"); got != "kept\n" {
		t.Errorf("the file holds %q", got)
	}
	if b.s.Info().State != session.StateReady {
		t.Errorf("state %s", b.s.Info().State)
	}
}

// TestL5PullTimeout: a registry without answers blocks an open at most for the timeout.
func TestL5PullTimeout(t *testing.T) {
	t.Parallel()
	if _, ok := w.engine.(imaged); !ok {
		return // no images are pulled
	}
	reg := newRegistry(t)
	ref := reg.push(t, "acme/slow:1")
	reg.stall.Store(true)
	timeout, want := time.Second, backend.ErrImage
	if onCluster() {
		timeout, want = 5*time.Second, backend.ErrUnavailable // the node starts late, and no progress is reported
	}
	m := newManager(t, newDriver(t, connection{pullTimeout: timeout}), session.Options{})
	_, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: ref})
	if !errors.Is(err, want) {
		t.Errorf("Open: %v, want %v", err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, err := m.Open(ctx, session.UserKey("y"), session.Request{Image: ref}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open with a deadline: %v", err)
	}
	nothingLeft(t, m.Instance())
}

// TestL5TagSwapped: a tag moved between the check of the image and the use does not lead to the other image.
func TestL5TagSwapped(t *testing.T) {
	t.Parallel()
	images, ok := w.engine.(imaged)
	if !ok {
		return // there are no tags
	}
	e := w.engine.(served)
	p := e.proxy(t)
	ref := newReference()
	must(t, images.tag(t.Context(), debianImage, ref))
	t.Cleanup(func() { must(t, images.forget(context.Background(), ref)) })
	var swapped atomic.Bool
	p.on(func(r *http.Request) {
		if e.creates(r) && images.tag(context.Background(), pythonImage, ref) == nil {
			swapped.Store(true)
		}
	})
	m := newManager(t, newDriver(t, connection{address: p.address}), session.Options{})
	s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: ref, Pull: backend.PullNever})
	if !swapped.Load() {
		t.Error("the tag was never moved")
	}
	if err == nil { // an engine may create the sandbox from the checked image
		var launch *sandbox.LaunchError
		if res, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"python3", "--version"}}); !errors.As(err, &launch) {
			t.Errorf("the sandbox holds the other image: %+v, %v", res, err)
		}
	} else if !errors.Is(err, backend.ErrImage) {
		t.Errorf("Open: %v, %v", s, err)
	}
	must(t, m.Close(context.Background()))
	nothingLeft(t, m.Instance())
}

// TestL8Features verifies the description of the engine and the host. The drivers' conformance suite verifies the
// capabilities.
func TestL8Features(t *testing.T) {
	t.Parallel()
	caps := w.driver.Capabilities()
	info, err := w.driver.Ping(t.Context())
	must(t, err)
	version := "1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		version = "2"
	}
	if onCluster() { // the hosts may be of any kind
		if info.Name != w.name || info.Version == "" || info.Cgroup+info.Arch+info.Kernel != "" {
			t.Errorf("the cluster is described as %+v", info)
		}
	} else if info.Cgroup != version && (caps.Memory || info.Cgroup != "none") || info.Name != w.name || info.Arch == "" || info.Kernel == "" {
		t.Errorf("the engine is described as %+v, the machine has control groups of version %s", info, version)
	}
	if w.name == "docker" {
		oldEngine(t)
	}
}

// oldEngine verifies the rejection of an engine with a version too old for the guarantees.
func oldEngine(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "old.sock")
	l, err := net.Listen("unix", path)
	must(t, err)
	handler := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Api-Version", "1.40")
		rw.Header().Set("Ostype", "linux")
		_, _ = rw.Write([]byte("OK")) // a failure shows as a wrong error class
	})
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
	srv.Start()
	defer srv.Close()
	if b, err := w.engine.connect(t.Context(), connection{address: "unix://" + path}); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("an engine of API 1.40: %v, %v", b, err)
	}
}
