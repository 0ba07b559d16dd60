package promises

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// TestL8Features: what an engine and its machine can do is found out and said. What was not found is refused, and what
// was found holds.
func TestL8Features(t *testing.T) {
	t.Parallel()
	caps := w.driver.Capabilities()
	info, err := w.driver.(backend.Pinger).Ping(t.Context())
	must(t, err)
	version := "1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		version = "2"
	}
	if info.Cgroup != version && (caps.Memory || info.Cgroup != "none") || info.Name != w.name || info.Arch == "" || info.Kernel == "" {
		t.Errorf("the engine is described as %+v, the machine has control groups of version %s", info, version)
	}
	m := newManager(t, w.driver, session.Options{})
	open := func(what string, supported bool, req session.Request) *session.Session {
		t.Helper()
		req.Image = debianImage
		s, _, err := m.Open(t.Context(), session.UserKey(strings.ReplaceAll(what, " ", "-")), req)
		switch {
		case supported && err != nil, !supported && !errors.Is(err, backend.ErrUnsupported):
			t.Errorf("%s, which the engine can enforce (%t): %v", what, supported, err)
		case supported:
			return s
		}
		return nil
	}
	open("an unknown runtime", false, session.Request{Runtime: "no-such-runtime"})
	if s := open("a network", slices.Contains(caps.Networks, backend.NetworkBridge), session.Request{Network: backend.NetworkBridge}); s != nil {
		check(t, s, "sed -n '3,$s/:.*//p' /proc/net/dev | wc -l", "2\n")
	}
	if s := open("a writable root", caps.WritableRoot, session.Request{Root: backend.RootWritable, RootSet: true}); s != nil {
		check(t, s, "touch /tmp/x && echo made", "made\n")
	}
	if s := open("memory", caps.Memory, session.Request{Limits: backend.Limits{MemoryBytes: 64 << 20}}); s != nil {
		res, err := s.Exec(t.Context(), session.ExecRequest{Command: "head -c 200M /dev/zero | tail -c 150M >/dev/null"})
		if err != nil || res.ExitCode == 0 && res.Signal == "" {
			t.Errorf("150 MiB in 64: %+v, %v", res.ExecStatus, err)
		}
	}
	if s := open("a small workspace", caps.Workspace != "", session.Request{Limits: backend.Limits{WorkspaceBytes: 8 << 20}}); s != nil {
		res, err := s.Exec(t.Context(), session.ExecRequest{Command: "head -c 16M /dev/zero > fill"})
		if err != nil || res.ExitCode == 0 && res.Signal == "" || !res.QuotaExceeded {
			t.Errorf("16 MiB in 8: %+v %s, %v", res.ExecStatus, res.Stderr.Bytes(), err)
		}
		if _, err := s.WriteFile(t.Context(), "more", strings.NewReader(strings.Repeat("x", 1<<20)), session.WriteFileOptions{}); !errors.Is(err, backend.ErrQuota) {
			t.Errorf("a file beyond it: %v", err)
		}
	}
	open("CPU", caps.CPU, session.Request{Limits: backend.Limits{CPUMillis: 500}})
	open("processes", caps.PIDs, session.Request{Limits: backend.Limits{PIDs: 32}})
	if _, ok := w.engine.(*dockerEngine); ok {
		oldEngine(t)
	}
}

// oldEngine: an engine that is too old to do what is promised says so by its version.
func oldEngine(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "old.sock")
	l, err := net.Listen("unix", path)
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Api-Version", "1.40")
		rw.Header().Set("Ostype", "linux")
		_, _ = rw.Write([]byte("OK")) // a failure shows as a wrong class
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l) // ends with Close
	}()
	defer func() {
		_ = srv.Close()
		<-served
	}()
	if b, err := w.engine.connect(t.Context(), connection{address: "unix://" + path}); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("an engine of API 1.40: %v, %v", b, err)
	}
}
