package docker_test

import (
	"context"
	"crypto/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

// TestNetworkRestarted verifies that the rules of a bridged sandbox are set again before the first stream, in any
// process, after the engine restarted the sandbox. The restart removes the rules.
func TestNetworkRestarted(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", ":0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Network = backend.NetworkBridge
	info := backendtest.Create(t, b, spec)
	now := 0
	must(t, engineAPI(t).ContainerRestart(t.Context(), info.ID, container.StopOptions{Timeout: &now}))
	conn := backendtest.Dial(t, newBackend(t, nil), info.ID)
	gateway := strings.TrimSpace(backendtest.Sh(t, conn, `set -- $(grep -m1 '00000000' /proc/net/route); printf '%d.%d.%d.%d' 0x${3#??????} 0x$(echo $3 | cut -c5-6) 0x$(echo $3 | cut -c3-4) 0x$(echo $3 | cut -c1-2)`))
	if ip := net.ParseIP(gateway); ip == nil || ip.IsUnspecified() {
		t.Fatalf("gateway %q", gateway)
	}
	rejected := regexp.MustCompile("No route to host|refused|unreachable") // immediately, because of a rule
	for _, to := range []string{gateway + "/" + port, "169.254.169.254/80", "10.0.0.1/80"} {
		if res := backendtest.Exec(t, conn, "bash", "-c", "exec 3<>/dev/tcp/"+to); res.ExitCode == 0 || !rejected.Match(res.Stderr.Head) {
			t.Errorf("%s: %+v, %s", to, res.ExecStatus, res.Stderr.Head)
		}
	}
}

// TestNetworkUnguarded verifies that a sandbox is not created with an open network if the guest agent cannot set the
// rules.
func TestNetworkUnguarded(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(o *docker.Options) { o.Guest = stubGuest(t) })
	plain := backendtest.Create(t, b, newSpec())
	if plain.State != backend.StateRunning {
		t.Fatalf("the stand-in does not run: %s", plain.State)
	}
	spec := newSpec()
	spec.Network = backend.NetworkBridge
	backendtest.Fails(t, "Create", second(b.Create(t.Context(), spec)), backend.ErrUnsupported)
}

// stubGuest returns a guest agent without any features (testdata/stubguest.go). The end of the test removes the volume.
func stubGuest(t *testing.T) *backend.Guest {
	t.Helper()
	version := strings.ToLower(rand.Text())
	api := engineAPI(t)
	t.Cleanup(func() { must(t, api.VolumeRemove(context.Background(), "workcell-guest-"+version, true)) })
	program := filepath.Join(t.TempDir(), "guest")
	build := exec.Command("go", "build", "-o", program, "testdata/stubguest.go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return &backend.Guest{Version: version, Binary: func(string) ([]byte, error) { return os.ReadFile(program) }}
}
