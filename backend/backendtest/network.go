package backendtest

import (
	_ "embed"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
)

func networkChecks() []check {
	return []check{
		{"none", (*suite).networkNone},
		{"bridge", (*suite).networkBridge},
		{"allowed", (*suite).networkAllowed},
	}
}

//go:embed testdata/network.py
var networkScript string

type reached struct {
	Result  string
	Seconds float64
}

// reach tries to connect from inside a sandbox to destinations, for example "tcp:192.0.2.1:80" or "dns:example.com:0".
func reach(t *testing.T, conn *client.Conn, destinations ...string) map[string]reached {
	t.Helper()
	var out map[string]reached
	text := Output(t, conn, append([]string{"python3", "-c", networkScript}, destinations...)...)
	must(t, json.Unmarshal([]byte(text), &out))
	return out
}

// forbidden returns the forbidden destinations of all sandboxes, in any network mode.
func forbidden() []string {
	return []string{
		"tcp:169.254.169.254:80", "udp:169.254.169.254:53", "tcp:169.254.170.2:80", "tcp:100.100.100.200:80", "tcp:168.63.129.16:80",
		"tcp:fd00:ec2::254:80", "udp:fd00:ec2::254:53", "tcp:fe80::1:80", "tcp:10.0.0.1:22", "tcp:172.17.0.1:22", "udp:172.17.0.1:53",
		"tcp:192.168.0.1:80", "udp:224.0.0.1:5353",
	}
}

// hostService listens on every address of this host, which is also the engine's host. It returns the addresses of the
// service. The test fails if a datagram arrives.
func hostService(t *testing.T) (port string, addresses []string) {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	_, port, err = net.SplitHostPort(l.Addr().String())
	must(t, err)
	datagrams, err := net.ListenPacket("udp", ":"+port)
	must(t, err)
	t.Cleanup(func() { _ = datagrams.Close() })
	go func() { // ends when the socket is closed
		if _, from, err := datagrams.ReadFrom(make([]byte, 1)); err == nil {
			t.Errorf("a datagram came from %v", from)
		}
	}()
	ifs, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range ifs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			addresses = append(addresses, n.IP.String())
		}
	}
	return port, addresses
}

// hostDestinations returns the destinations of a host service. For a cluster, it omits public addresses, because the
// cluster does not know the nodes' addresses.
func (s *suite) hostDestinations(t *testing.T) []string {
	t.Helper()
	port, addrs := hostService(t)
	dests := []string{"tcp:127.0.0.1:" + port}
	for _, a := range addrs {
		if s.h.Cluster && !netip.MustParseAddr(a).IsPrivate() {
			continue
		}
		dests = append(dests, "tcp:"+a+":"+port, "udp:"+a+":"+port)
	}
	return dests
}

// arrived reports whether a packet to a destination left the sandbox. On a cluster, packets dropped by the network have
// also left the sandbox.
func (s *suite) arrived(dest string, r reached) bool {
	if s.h.Cluster {
		return r.Result == "ok" && !strings.HasPrefix(dest, "udp:")
	}
	return r.Result == "ok" || r.Result == "timeout"
}

func (s *suite) networkNone(t *testing.T) {
	_, conn := s.inPython(t)
	dests := append(forbidden(), "dns:example.com:0", "tcp:1.1.1.1:443", "udp:8.8.8.8:53")
	s.closed(t, conn, append(dests, s.hostDestinations(t)...))
}

// closed verifies that no packet to these destinations leaves a sandbox.
func (s *suite) closed(t *testing.T, conn *client.Conn, dests []string) {
	t.Helper()
	for dest, r := range reach(t, conn, dests...) {
		if s.arrived(dest, r) {
			t.Errorf("%s: %s after %.1f s", dest, r.Result, r.Seconds)
		}
	}
}

// bridges reports whether the driver supports bridged sandboxes. If not, modes expects an error for a request.
func (s *suite) bridges() bool {
	return slices.Contains(s.caps.Networks, backend.NetworkBridge)
}

// networkBridge verifies the blocked destinations of a sandbox with a network.
func (s *suite) networkBridge(t *testing.T) {
	if !s.bridges() {
		return
	}
	bridged := func(image string) (backend.Info, *client.Conn) {
		spec := s.spec()
		spec.Image, spec.Network = image, backend.NetworkBridge
		info := s.create(t, spec)
		return info, s.dial(t, info.ID)
	}
	info, conn := bridged(s.h.Python)
	_, peer := bridged(s.h.Debian)
	dests := append(forbidden(), s.hostDestinations(t)...)
	for _, a := range addressesIn(t, peer) {
		dests = append(dests, "tcp:"+a+":80", "udp:"+a+":80")
	}
	s.closed(t, conn, dests)
	if s.h.Cluster { // the cluster's network learns about a sandbox after the start
		Eventually(t, "the network", func() bool { return reach(t, conn, "udp:1.1.1.1:53")["udp:1.1.1.1:53"].Result == "ok" })
	}
	for dest, r := range reach(t, conn, "udp:192.0.2.1:9", "udp:1.1.1.1:53") {
		if r.Result != "ok" {
			t.Errorf("public %s: %s", dest, r.Result)
		}
	}
	const name = "deb.debian.org"
	_, err := net.DefaultResolver.LookupHost(t.Context(), name)
	// A cluster's resolver may know other names.
	if got := reach(t, conn, "dns:"+name+":0")["dns:"+name+":0"]; (got.Result == "ok") != (err == nil) && !s.h.Cluster {
		t.Errorf("a name: %s in the sandbox, on the host: %v", got.Result, err)
	}
	s.privileges(t, conn)
	must(t, s.b.Stop(t.Context(), info.ID))
	must(t, s.b.Start(t.Context(), info.ID))
	s.closed(t, s.dial(t, info.ID), dests)
}

// addressesIn returns the addresses of a sandbox, as seen from inside.
func addressesIn(t *testing.T, conn *client.Conn) []string {
	t.Helper()
	var out []string
	text := Sh(t, conn, `sed -n 's/.*|-- \(.*\)/\1/p' /proc/net/fib_trie | sort -u`)
	for line := range strings.Lines(text) {
		a, err := netip.ParseAddr(strings.TrimSpace(line))
		if err == nil && !a.IsLoopback() && !a.IsUnspecified() && !strings.HasSuffix(line, ".255\n") && !strings.HasSuffix(line, ".0\n") {
			out = append(out, a.String())
		}
	}
	if len(out) == 0 {
		t.Fatal("the sandbox has no address")
	}
	return out
}

// networkAllowed verifies that NewAllowing opens the addresses of this host and no other destinations.
func (s *suite) networkAllowed(t *testing.T) {
	if !s.bridges() {
		return
	}
	if s.h.NewAllowing == nil {
		t.Fatal("the harness of a driver with bridges lacks NewAllowing")
	}
	port, addrs := hostService(t)
	if len(addrs) == 0 {
		t.Fatal("this machine has no address")
	}
	var nets []netip.Prefix
	dests := []string{"tcp:169.254.169.254:80"}
	for _, a := range addrs {
		nets = append(nets, netip.MustParsePrefix(a+"/32"))
		dests = append(dests, "tcp:"+a+":"+port)
	}
	b := s.h.NewAllowing(t, nets)
	defer func() { must(t, b.Close()) }()
	spec := s.spec()
	spec.Image, spec.Network = s.h.Python, backend.NetworkBridge
	info, err := b.Create(t.Context(), spec)
	must(t, err)
	defer Remove(t, s.b, info.ID)
	ok := 0
	for dest, r := range reach(t, Dial(t, b, info.ID), dests...) {
		switch {
		case r.Result != "ok":
		case strings.Contains(dest, "169.254.169.254"):
			t.Errorf("%s was not allowed", dest)
		default:
			ok++
		}
	}
	if ok == 0 {
		t.Error("nothing that was allowed can be reached")
	}
}
