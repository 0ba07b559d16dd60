package docker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

// TestNetworkRestarted has the engine restart a bridged sandbox by itself, which takes the rules of its network away. The
// first stream to it must find them set again, from whichever process.
func TestNetworkRestarted(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Network = backend.NetworkBridge
	info := backendtest.Create(t, b, spec)
	now := 0
	if err := engineAPI(t).ContainerRestart(t.Context(), info.ID, container.StopOptions{Timeout: &now}); err != nil {
		t.Fatal(err)
	}
	rw, err := newBackend(t, nil).Connect(t.Context(), info.ID)
	conn := backendtest.Connect(t, rw, err)
	gateway := strings.TrimSpace(backendtest.Sh(t, conn, `set -- $(grep -m1 '00000000' /proc/net/route); printf '%d.%d.%d.%d' 0x${3#??????} 0x$(echo $3 | cut -c5-6) 0x$(echo $3 | cut -c3-4) 0x$(echo $3 | cut -c1-2)`))
	if ip := net.ParseIP(gateway); ip == nil || ip.IsUnspecified() {
		t.Fatalf("gateway %q", gateway)
	}
	rejected := regexp.MustCompile("No route to host|refused|unreachable") // at once, by a rule
	for _, to := range []string{gateway + "/" + port, "169.254.169.254/80", "10.0.0.1/80"} {
		if res := backendtest.Exec(t, conn, "bash", "-c", "exec 3<>/dev/tcp/"+to); res.ExitCode == 0 || !rejected.Match(res.Stderr.Head) {
			t.Errorf("%s: %+v, %s", to, res.ExecStatus, res.Stderr.Head)
		}
	}
}

// TestNetworkTwice: of several networks of one name, which older engines let processes make at once, the first stays, and
// sandboxes start.
func TestNetworkTwice(t *testing.T) {
	t.Parallel()
	b, api := newBackend(t, nil), engineAPI(t)
	create := func() {
		spec := newSpec()
		spec.Network = backend.NetworkBridge
		backendtest.Create(t, b, spec)
	}
	list := func() []network.Summary {
		all, err := api.NetworkList(t.Context(), network.ListOptions{Filters: filters.NewArgs(filters.Arg("name", "^workcell$"))})
		if err != nil || len(all) == 0 {
			t.Fatalf("networks: %v, %v", all, err)
		}
		return all
	}
	create()
	first := list()[0]
	body, err := json.Marshal(map[string]any{"Name": first.Name, "Driver": first.Driver, "Options": first.Options, "Labels": first.Labels})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	made := 0
	wg.Go(func() {
		for range 4 {
			res, err := api.HTTPClient().Post("http://engine/networks/create", "application/json", bytes.NewReader(body)) // its client has it look first
			if err != nil {
				t.Error(err)
				return
			}
			_ = res.Body.Close()
			if res.StatusCode == http.StatusCreated {
				made++
			}
		}
	})
	create()
	wg.Wait()
	if api.ClientVersion() < "1.44" && made == 0 { // later engines refuse
		t.Error("there was never a second one")
	}
	create()
	if left := list(); len(left) != 1 || left[0].ID != first.ID {
		t.Errorf("%d networks are left, the first is %s, was %s", len(left), left[0].ID, first.ID)
	}
}

// TestNetworkUnguarded has a guest that cannot set rules: the sandbox must not come up open.
func TestNetworkUnguarded(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(o *docker.Options) { o.Guest = stubGuest(t) })
	plain := backendtest.Create(t, b, newSpec())
	if plain.State != backend.StateRunning {
		t.Fatalf("the stand-in does not run: %s", plain.State)
	}
	spec := newSpec()
	spec.Network = backend.NetworkBridge
	if _, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("Create: %v, want ErrUnsupported", err)
	}
	nothingLeft(t, spec.ID)
}

// stubGuest is a guest that can only run (testdata/stubguest.go). Its volume goes with the test.
func stubGuest(t *testing.T) *backend.Guest {
	t.Helper()
	version := strings.ToLower(rand.Text())
	api := engineAPI(t)
	t.Cleanup(func() {
		if err := api.VolumeRemove(context.Background(), "workcell-guest-"+version, true); err != nil {
			t.Error(err)
		}
	})
	program := filepath.Join(t.TempDir(), "guest")
	build := exec.Command("go", "build", "-o", program, "testdata/stubguest.go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return &backend.Guest{Version: version, Binary: func(string) ([]byte, error) { return os.ReadFile(program) }}
}
