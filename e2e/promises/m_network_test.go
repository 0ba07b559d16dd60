//go:build linux

package promises

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

func bridged(cfg tools.Sandbox) tools.Sandbox {
	cfg.Network = frontmatter.Network{Enabled: new(true)}
	return cfg
}

// eachNetwork runs a test in sandboxes without and with a network, of an unprivileged user and of root.
func eachNetwork(t *testing.T, f func(t *testing.T, b *testSandbox)) {
	t.Helper()
	each(t, f)
	if w.bridgedUser == nil {
		refuses(t, "a network", bridged(pythonSandbox()), toolspec.CodeUnsupported)
		return
	}
	eachOf(t, map[string]*testSandbox{"user, bridged": w.bridgedUser, "root, bridged": w.bridgedRoot}, f)
}

// target is a network target and the result of a connection attempt.
type target struct {
	Kind    string  `json:"kind"`
	Host    string  `json:"host"`
	Port    int     `json:"port"`
	Result  string  `json:"result"`
	Seconds float64 `json:"seconds"`
}

func probe(t *testing.T, b *testSandbox, targets []target) []target {
	t.Helper()
	list, err := json.Marshal(targets)
	must(t, err)
	text := b.exec(t, sandbox.ExecRequest{Argv: []string{"python3", "-c", program(t, "probe.py")}, Stdin: list, Env: map[string]string{"RES_OPTIONS": "timeout:1 attempts:1"}})
	var out []target
	must(t, json.Unmarshal([]byte(text), &out))
	return out
}

// refused verifies that each target is refused immediately. A target that is only missing would time out after three
// seconds each time.
func refused(t *testing.T, b *testSandbox, targets []target) {
	t.Helper()
	at := []string{"ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EACCES", "EPERM", "EADDRNOTAVAIL", "EAFNOSUPPORT"}
	if onCluster() { // network policies drop packets silently
		at = append(at, "timeout")
	}
	for try := 0; len(targets) > 0; try++ {
		targets = slices.DeleteFunc(probe(t, b, targets), func(p target) bool {
			ok, slow := slices.Contains(at, p.Result), p.Seconds > 2 && !onCluster()
			if !ok || slow && try == 4 {
				t.Errorf("%s to %s, port %d: %s after %.2f s, want a refusal at once", p.Kind, p.Host, p.Port, p.Result, p.Seconds)
			}
			return !ok || !slow
		})
		if try == 4 {
			return
		}
	}
}

// hostServices listens on the engine's host in every way reachable from a sandbox.
type hostServices struct {
	tcp, loopback, udp int
	abstract           string
	got                buffertest.Buffer // received data
}

func newHostServices(t *testing.T) *hostServices {
	t.Helper()
	h := &hostServices{abstract: "promises-" + record.NewID()}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after the closes below
	accept := func(network, address string) net.Addr {
		l, err := net.Listen(network, address)
		must(t, err)
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(&h.got, address, "from", c.RemoteAddr())
				_ = c.Close() // only the connection attempt matters
			}
		})
		t.Cleanup(func() { _ = l.Close() })
		return l.Addr()
	}
	h.tcp, h.loopback = accept("tcp", ":0").(*net.TCPAddr).Port, accept("tcp", "127.0.0.1:0").(*net.TCPAddr).Port
	accept("unix", "@"+h.abstract)
	u, err := net.ListenUDP("udp", &net.UDPAddr{})
	must(t, err)
	h.udp = u.LocalAddr().(*net.UDPAddr).Port
	wg.Go(func() {
		buf := make([]byte, 100)
		for n, from, err := u.ReadFromUDP(buf); err == nil; n, from, err = u.ReadFromUDP(buf) {
			fmt.Fprintf(&h.got, "UDP %q from %s\n", buf[:n], from)
		}
	})
	t.Cleanup(func() { _ = u.Close() })
	return h
}

// targets returns the services at every address of the host, and the addresses themselves for pings.
func (h *hostServices) targets(t *testing.T) (list []target) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	must(t, err)
	for _, addr := range addrs {
		ip := addr.(*net.IPNet).IP
		a := ip.String()
		list = append(list, target{Kind: "tcp", Host: a, Port: h.tcp}, target{Kind: "tcp", Host: a, Port: h.loopback},
			target{Kind: "udp", Host: a, Port: h.udp}, target{Kind: "tcp", Host: a, Port: 22})
		if ip.To4() != nil && !ip.IsLoopback() {
			list = append(list, target{Kind: "icmp", Host: a})
		}
	}
	return list
}

// addressOf returns the address of a bridged sandbox and the address of the network's gateway.
func addressOf(t *testing.T, b *testSandbox) (own, gateway string) {
	t.Helper()
	f := strings.Fields(b.exec(t, sandbox.ExecRequest{Argv: []string{"python3", "-c", `
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("192.0.2.1", 9))  # sends nothing
routes = [line.split() for line in open("/proc/net/route")]
print(s.getsockname()[0], [socket.inet_ntoa(struct.pack("<L", int(r[2], 16))) for r in routes if r[1] == "00000000"][0])
`}}))
	return f[0], f[1]
}

// TestM2Closed: private targets of the host, the cloud, and other sandboxes are refused with and without a network.
func TestM2Closed(t *testing.T) {
	t.Parallel()
	h := newHostServices(t)
	other, gateway := "10.1.2.4", "10.1.2.1"
	if w.bridgedUser != nil {
		neighbour := newSandbox(t, bridged(pythonSandbox()))
		other, gateway = addressOf(t, neighbour)
		neighbour.background(t, "listen.py")
		control(t, gateway, target{Kind: "tcp", Host: other, Port: 9000})
		if got := probe(t, neighbour, []target{{Kind: "tcp", Host: other, Port: 9000}})[0]; got.Result != "reached" {
			t.Errorf("from the neighbour to its own port: %+v", got)
		}
	}
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		list := h.targets(t)
		if onCluster() && b == w.bridgedUser { // may connect to public addresses, including addresses of nodes
			list = slices.DeleteFunc(list, func(p target) bool {
				a, err := netip.ParseAddr(p.Host)
				return err == nil && a.IsGlobalUnicast() && !a.IsPrivate()
			})
		}
		for _, host := range []string{
			"169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fe80::1", gateway,
			"172.17.0.1", "10.1.2.3", "192.168.0.1", "172.31.255.255", "100.64.0.1", "0.0.0.0", "255.255.255.255", "::ffff:169.254.169.254",
		} {
			list = append(list, target{Kind: "tcp", Host: host, Port: 80}, target{Kind: "tcp", Host: host, Port: h.tcp})
		}
		list = append(list, target{Kind: "udp", Host: gateway, Port: h.udp}, target{Kind: "icmp", Host: gateway})
		list = append(list, target{Kind: "tcp", Host: other, Port: 9000}, target{Kind: "udp", Host: other, Port: 9001}, target{Kind: "icmp", Host: other})
		refused(t, b, list)
	})
	t.Cleanup(func() { // after the parallel tests
		if calls := h.got.String(); calls != "" {
			t.Errorf("the host was reached: %s", calls)
		}
	})
}

// control verifies that the same probe can reach only an allowed host.
func control(t *testing.T, gateway string, neighbour target) {
	t.Helper()
	h := newHostServices(t)
	m := newManager(t, newDriver(t, connection{allowNets: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(gateway), 32)}}), session.Options{})
	b, err := openSandbox(t.Context(), m, &tools.Plugin{Manager: m}, bridged(pythonSandbox()))
	must(t, err)
	eventually(t, "the gateway, which is let through, is reached", func() bool {
		// A cluster's network learns of a pod after the start.
		return probe(t, b, []target{{Kind: "tcp", Host: gateway, Port: h.tcp}})[0].Result == "reached"
	})
	eventually(t, "the host heard the call that was let through", func() bool { return h.got.String() != "" })
	refused(t, b, []target{{Kind: "tcp", Host: "172.17.0.1", Port: h.tcp}, {Kind: "tcp", Host: "169.254.169.254", Port: 80}, neighbour})
}

// TestM3AbstractSockets: the host's abstract sockets are in another network namespace.
func TestM3AbstractSockets(t *testing.T) {
	t.Parallel()
	h := newHostServices(t)
	c, err := net.DialTimeout("unix", "@"+h.abstract, patience)
	must(t, err)
	_, _ = io.ReadAll(c) // until the host received it
	must(t, c.Close())
	heard := h.got.String()
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		if got := b.sh(t, "grep -c promises- /proc/net/unix; true"); got != "0\n" {
			t.Errorf("%s of the host's sockets are visible", strings.TrimSpace(got))
		}
		refused(t, b, []target{{Kind: "unix", Host: h.abstract}})
	})
	t.Cleanup(func() {
		if calls := h.got.String(); calls != heard {
			t.Errorf("the host was reached: %s", calls)
		}
	})
}

// TestM4SocketKinds: no socket can be created for reading or forging packets, leaving the network, or changing it.
func TestM4SocketKinds(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		var got map[string]string
		must(t, json.Unmarshal([]byte(b.python(t, "sockets.py")), &got))
		if len(got) < 18 {
			t.Errorf("only %d attempts: %v", len(got), got)
		}
		for what, outcome := range got {
			if strings.HasPrefix(what, "socketcall") && outcome != "EPERM" && outcome != "ENOSYS" {
				// The result comes from the filter, not from the kernel.
				t.Errorf("%s: %s", what, outcome)
			}
			switch outcome {
			case "EPERM", "EACCES", "EAFNOSUPPORT", "ENOSYS", "ESOCKTNOSUPPORT":
			default:
				t.Errorf("%s: %s", what, outcome)
			}
		}
		if info := b.sh(t, "cat /proc/net/dev"); strings.Contains(info, "evil") || !strings.Contains(info, "lo:") {
			t.Errorf("interfaces: %q", info)
		}
	})
}
