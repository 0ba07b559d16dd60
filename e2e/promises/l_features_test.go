package promises

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// TestL8Features: what an engine and its machine can do is found out and said, what was found can be had, and what was not is
// refused. That it holds is shown by the drivers' conformance suite.
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
	for what, c := range map[string]struct {
		supported bool
		req       session.Request
	}{
		"runtime":   {false, session.Request{Runtime: "no-such-runtime"}},
		"network":   {slices.Contains(caps.Networks, backend.NetworkBridge), session.Request{Network: backend.NetworkBridge}},
		"root":      {caps.WritableRoot, session.Request{Root: backend.RootWritable, RootSet: true}},
		"memory":    {caps.Memory, session.Request{Limits: backend.Limits{MemoryBytes: 64 << 20}}},
		"workspace": {caps.Workspace != "", session.Request{Limits: backend.Limits{WorkspaceBytes: 8 << 20}}},
		"cpu":       {caps.CPU, session.Request{Limits: backend.Limits{CPUMillis: 500}}},
		"processes": {caps.PIDs, session.Request{Limits: backend.Limits{PIDs: 32}}},
	} {
		c.req.Image = debianImage
		_, _, err := m.Open(t.Context(), session.UserKey(what), c.req)
		if c.supported && err != nil || !c.supported && !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s, which the engine can enforce (%t): %v", what, c.supported, err)
		}
	}
	if w.name == "docker" {
		oldEngine(t)
	}
}

// oldEngine: an engine that is too old to do what is promised is refused for its version.
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
