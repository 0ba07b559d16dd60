package docker_test

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/guest/client"
)

//go:embed testdata/network.py
var networkScript string

type reached struct {
	Result  string
	Seconds float64
}

// reach tries destinations ("tcp:192.0.2.1:80", "dns:example.com:0") from inside.
func reach(t *testing.T, conn *client.Conn, destinations ...string) map[string]reached {
	t.Helper()
	var out map[string]reached
	text := output(t, conn, append([]string{"python3", "-c", networkScript}, destinations...)...)
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// forbidden are destinations that no sandbox may reach, whatever its network.
func forbidden(extra ...string) []string {
	return append([]string{
		"tcp:169.254.169.254:80", "udp:169.254.169.254:53", "tcp:169.254.170.2:80", "tcp:100.100.100.200:80", "tcp:168.63.129.16:80",
		"tcp:fd00:ec2::254:80", "udp:fd00:ec2::254:53", "tcp:fe80::1:80", "tcp:10.0.0.1:22", "tcp:172.17.0.1:22", "udp:172.17.0.1:53",
		"tcp:192.168.0.1:80", "udp:224.0.0.1:5353",
	}, extra...)
}

// hostService listens on every address of this machine, where the engine runs too.
func hostService(t *testing.T) (port string, addresses []string) {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ifs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range ifs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			addresses = append(addresses, n.IP.String())
		}
	}
	return port, addresses
}

func TestNetworkNone(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Image = pythonImage
	conn := dial(t, b, create(t, b, spec).ID)
	port, addrs := hostService(t)
	dests := forbidden("dns:example.com:0", "tcp:1.1.1.1:443", "udp:8.8.8.8:53", "tcp:127.0.0.1:"+port)
	for _, a := range addrs {
		dests = append(dests, "tcp:"+a+":"+port)
	}
	for dest, r := range reach(t, conn, dests...) {
		if r.Result == "ok" || r.Result == "timeout" || r.Seconds > 4 {
			t.Errorf("%s: %s after %.1f s", dest, r.Result, r.Seconds)
		}
	}
}

// TestHostAbstractSockets has the host listen on an abstract Unix socket, which network namespaces hide.
func TestHostAbstractSockets(t *testing.T) {
	t.Parallel()
	name := "workcelltest-" + instance
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for _, mode := range []backend.NetworkMode{backend.NetworkNone, backend.NetworkBridge} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			b := newBackend(t, nil)
			spec := newSpec()
			spec.Image, spec.Network = pythonImage, mode
			conn := dial(t, b, create(t, b, spec).ID)
			if got := sh(t, conn, "cat /proc/net/unix"); strings.Contains(got, name) {
				t.Error("the socket is visible")
			}
			script := fmt.Sprintf("import socket; socket.socket(socket.AF_UNIX).connect('\\0%s')", name)
			if res := run(t, conn, "python3", "-c", script); res.ExitCode == 0 {
				t.Error("the socket answers")
			}
		})
	}
}

func TestNetworkBridge(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Image, spec.Network = pythonImage, backend.NetworkBridge
	info := create(t, b, spec)
	peerSpec := newSpec()
	peerSpec.Network = backend.NetworkBridge
	peer := create(t, b, peerSpec)
	port, addrs := hostService(t)

	check := func(t *testing.T, conn *client.Conn) {
		t.Helper()
		dests := forbidden("tcp:"+addressOf(t, peer.ID)+":80", "udp:"+addressOf(t, peer.ID)+":80", "tcp:127.0.0.1:"+port)
		for _, a := range addrs {
			dests = append(dests, "tcp:"+a+":"+port, "udp:"+a+":"+port)
		}
		for dest, r := range reach(t, conn, dests...) {
			if r.Result == "ok" || r.Result == "timeout" {
				t.Errorf("%s: %s after %.1f s", dest, r.Result, r.Seconds)
			}
		}
	}
	conn := dial(t, b, info.ID)
	check(t, conn)

	t.Run("public addresses are open", func(t *testing.T) {
		for dest, r := range reach(t, conn, "udp:192.0.2.1:9", "udp:1.1.1.1:53") {
			if r.Result != "ok" {
				t.Errorf("%s: %s", dest, r.Result)
			}
		}
	})
	t.Run("names resolve where the host's do", func(t *testing.T) {
		const name = "deb.debian.org"
		_, err := net.DefaultResolver.LookupHost(t.Context(), name)
		if got := reach(t, conn, "dns:"+name+":0")["dns:"+name+":0"]; (got.Result == "ok") != (err == nil) {
			t.Errorf("%s in the sandbox, on the host: %v", got.Result, err)
		}
	})
	t.Run("posture", func(t *testing.T) {
		p := lookAround(t, conn)
		if strings.Trim(p.Status["CapBnd"]+p.Status["CapEff"], "0") != "" || p.Net.Raw == "ok" || p.Net.Packet == "ok" || p.Net.VSock == "ok" {
			t.Errorf("capabilities %s, sockets %+v", p.Status["CapBnd"], p.Net)
		}
		if p.Calls["unshare net"] == "ok" || p.Calls["unshare user"] == "ok" {
			t.Errorf("calls %v", p.Calls)
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		if err := b.Stop(t.Context(), info.ID); err != nil {
			t.Fatal(err)
		}
		if err := b.Start(t.Context(), info.ID); err != nil {
			t.Fatal(err)
		}
		check(t, dial(t, b, info.ID))
	})
	t.Run("after a restart behind our back", func(t *testing.T) {
		now := 0
		if err := engineAPI(t).ContainerRestart(t.Context(), info.ID, container.StopOptions{Timeout: &now}); err != nil {
			t.Fatal(err)
		}
		rw, err := newBackend(t, nil).Connect(t.Context(), info.ID)
		check(t, connect(t, rw, err))
	})
}

func TestNetworkAllowed(t *testing.T) {
	t.Parallel()
	port, addrs := hostService(t)
	if len(addrs) == 0 {
		t.Fatal("this machine has no address")
	}
	b := newBackend(t, func(o *docker.Options) {
		for _, a := range addrs {
			o.AllowNets = append(o.AllowNets, netip.MustParsePrefix(a+"/32"))
		}
	})
	spec := newSpec()
	spec.Image, spec.Network = pythonImage, backend.NetworkBridge
	conn := dial(t, b, create(t, b, spec).ID)
	ok := 0
	dests := []string{"tcp:169.254.169.254:80"}
	for _, a := range addrs {
		dests = append(dests, "tcp:"+a+":"+port)
	}
	for dest, r := range reach(t, conn, dests...) {
		switch {
		case strings.Contains(dest, "169.254.169.254"):
			if r.Result == "ok" {
				t.Errorf("%s was not allowed", dest)
			}
		case r.Result == "ok":
			ok++
		}
	}
	if ok == 0 {
		t.Error("nothing that was allowed can be reached")
	}
}

func addressOf(t *testing.T, id string) string {
	t.Helper()
	res, err := engineAPI(t).ContainerInspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range res.NetworkSettings.Networks {
		return n.IPAddress
	}
	t.Fatal("no network")
	return ""
}

// TestNetworkUnguarded has a guest that cannot set rules: the sandbox must not come up open.
func TestNetworkUnguarded(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(o *docker.Options) { o.Guest = stubGuest(t) })
	plain := create(t, b, newSpec())
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

// stubGuest is a guest that runs in the Debian image, where there is a shell, and nowhere else. Its volume goes with the
// test.
func stubGuest(t *testing.T) *docker.Guest {
	t.Helper()
	version := strings.ToLower(rand.Text())
	api := engineAPI(t)
	t.Cleanup(func() {
		if err := api.VolumeRemove(context.Background(), "workcell-guest-"+version, true); err != nil {
			t.Error(err)
		}
	})
	script := "#!/bin/sh\n[ $# = 0 ] || exit 7\nexec sleep 1000\n"
	return &docker.Guest{Version: version, Binary: func(string) ([]byte, error) { return []byte(script), nil }}
}
