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
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

func bridged(cfg tools.Sandbox) tools.Sandbox {
	cfg.Network = frontmatter.Network{Enabled: new(true)}
	return cfg
}

// eachNetwork runs a test in sandboxes without and with a network, of an ordinary user and of root.
func eachNetwork(t *testing.T, f func(t *testing.T, b *box)) {
	t.Helper()
	each(t, f)
	if w.bridgedUser == nil {
		refuses(t, "a network", bridged(pythonBox()))
		return
	}
	for name, b := range map[string]*box{"user, bridged": w.bridgedUser, "root, bridged": w.bridgedRoot} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, b)
			b.alive(t)
		})
	}
}

// target is something to reach, and what came of trying.
type target struct {
	Kind    string  `json:"kind"`
	Host    string  `json:"host"`
	Port    int     `json:"port"`
	Result  string  `json:"result"`
	Seconds float64 `json:"seconds"`
}

func probe(t *testing.T, b *box, targets []target) []target {
	t.Helper()
	list, err := json.Marshal(targets)
	must(t, err)
	text := b.exec(t, session.ExecRequest{Argv: []string{"python3", "-c", program(t, "probe.py")}, Stdin: list, Env: map[string]string{"RES_OPTIONS": "timeout:1 attempts:1"}})
	var out []target
	must(t, json.Unmarshal([]byte(text), &out))
	return out
}

// refused checks that nothing can be reached, and that each is refused at once and does not just happen to be absent:
// what is absent is found so after three seconds, every time.
func refused(t *testing.T, b *box, targets []target) {
	t.Helper()
	at := []string{"ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EACCES", "EPERM", "EADDRNOTAVAIL", "EAFNOSUPPORT"}
	for try := 0; len(targets) > 0; try++ {
		targets = slices.DeleteFunc(probe(t, b, targets), func(p target) bool {
			ok := slices.Contains(at, p.Result)
			if !ok || p.Seconds > 2 && try == 4 {
				t.Errorf("%s to %s, port %d: %s after %.2f s, want a refusal at once", p.Kind, p.Host, p.Port, p.Result, p.Seconds)
			}
			return !ok || p.Seconds <= 2
		})
		if try == 4 {
			return
		}
	}
}

// hostServices listens on the machine of the engine in every way that a sandbox could try.
type hostServices struct {
	tcp, loopback, udp int
	abstract           string
	addresses          []string // of this machine

	mu  sync.Mutex
	got []string // who was heard on the TCP and UDP ports
}

func newHostServices(t *testing.T) *hostServices {
	t.Helper()
	h := &hostServices{abstract: "promises-" + session.NewID()}
	accept := func(network, address string) int {
		l, err := net.Listen(network, address)
		must(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				h.heard(fmt.Sprintf("%s from %s", address, c.RemoteAddr()))
				_ = c.Close() // it was only to be heard
			}
		})
		t.Cleanup(func() {
			_ = l.Close()
			wg.Wait()
		})
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			return a.Port
		}
		return 0
	}
	h.tcp, h.loopback = accept("tcp", ":0"), accept("tcp", "127.0.0.1:0")
	accept("unix", "@"+h.abstract)
	u, err := net.ListenUDP("udp", &net.UDPAddr{})
	must(t, err)
	h.udp = u.LocalAddr().(*net.UDPAddr).Port
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 100)
		for {
			n, from, err := u.ReadFromUDP(buf)
			if err != nil {
				return
			}
			h.heard(fmt.Sprintf("UDP %q from %s", buf[:n], from))
		}
	})
	t.Cleanup(func() {
		_ = u.Close()
		wg.Wait()
	})
	addrs, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok {
			h.addresses = append(h.addresses, ip.IP.String())
		}
	}
	return h
}

func (h *hostServices) heard(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, what)
}

func (h *hostServices) calls() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.got)
}

// targets lists the services by every address of the machine, and the addresses themselves for pings.
func (h *hostServices) targets() []target {
	var list []target
	for _, a := range h.addresses {
		list = append(list, target{Kind: "tcp", Host: a, Port: h.tcp}, target{Kind: "tcp", Host: a, Port: h.loopback},
			target{Kind: "udp", Host: a, Port: h.udp}, target{Kind: "tcp", Host: a, Port: 22})
		if !strings.Contains(a, ":") && !strings.HasPrefix(a, "127.") {
			list = append(list, target{Kind: "icmp", Host: a})
		}
	}
	return list
}

// addressOf gives the address of a bridged sandbox and of its network's gateway.
func addressOf(t *testing.T, b *box) (own, gateway string) {
	t.Helper()
	own, gateway, err := w.engine.(networked).address(t.Context(), b.s.Info().EngineID)
	must(t, err)
	return own, gateway
}

// TestM1NoNetwork: without a network there is a loopback interface and nothing else.
func TestM1NoNetwork(t *testing.T) {
	t.Parallel()
	others := []string{"1.1.1.1", "8.8.8.8", "10.0.0.1", "172.17.0.1", "192.168.1.1", "2606:4700::1111"}
	if w.bridgedUser != nil {
		other, gateway := addressOf(t, w.bridgedUser)
		others = append(others, other, gateway)
	}
	each(t, func(t *testing.T, b *box) {
		if got := b.sh(t, "sed -n '3,$s/:.*//p' /proc/net/dev | tr -d ' '; tail -n +2 /proc/net/route; grep -v ' lo$' /proc/net/ipv6_route; true"); got != "lo\n" {
			t.Errorf("interfaces and routes: %q", got)
		}
		var list []target
		for _, host := range others {
			list = append(list, target{Kind: "tcp", Host: host, Port: 443}, target{Kind: "udp", Host: host, Port: 53})
			if !strings.Contains(host, ":") {
				list = append(list, target{Kind: "icmp", Host: host})
			}
		}
		refused(t, b, list)
		for _, p := range probe(t, b, []target{{Kind: "dns", Host: "example.com"}, {Kind: "dns", Host: "host.docker.internal"}, {Kind: "dns", Host: "metadata.google.internal"}}) {
			if !strings.HasPrefix(p.Result, "gaierror") || p.Seconds > 30 {
				t.Errorf("DNS for %s: %s after %.2f s", p.Host, p.Result, p.Seconds)
			}
		}
	})
}

// TestM2Closed: what is private to the machine, its cloud or other sandboxes is refused with a network as without one.
func TestM2Closed(t *testing.T) {
	t.Parallel()
	h := newHostServices(t)
	var neighbour *box
	other, gateway := "10.1.2.4", "10.1.2.1"
	if w.bridgedUser != nil {
		neighbour = newBox(t, bridged(pythonBox()))
		other, gateway = addressOf(t, neighbour)
		neighbour.background(t, "listen.py")
	}
	eachNetwork(t, func(t *testing.T, b *box) {
		list := h.targets()
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
	t.Cleanup(func() { // after the parallel ones
		if calls := h.calls(); len(calls) != 0 {
			t.Errorf("the host was reached: %v", calls)
		}
	})
	if neighbour == nil {
		return
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		// The same probe does reach a host that is let through, and then only that.
		c := newHostServices(t)
		open := netip.MustParseAddr(gateway)
		m := newManager(t, newDriver(t, connection{allowNets: []netip.Prefix{netip.PrefixFrom(open, 32)}}), session.Options{})
		b, err := openBox(t.Context(), m, &tools.Plugin{Manager: m}, bridged(pythonBox()))
		must(t, err)
		if got := probe(t, b, []target{{Kind: "tcp", Host: open.String(), Port: c.tcp}})[0]; got.Result != "reached" {
			t.Errorf("the gateway, which is let through: %+v", got)
		}
		eventually(t, "the host heard the call that was let through", func() bool { return len(c.calls()) == 1 })
		refused(t, b, []target{{Kind: "tcp", Host: "172.17.0.1", Port: c.tcp}, {Kind: "tcp", Host: "169.254.169.254", Port: 80}, {Kind: "tcp", Host: other, Port: 9000}})
		// And the neighbour does listen.
		if got := probe(t, neighbour, []target{{Kind: "tcp", Host: other, Port: 9000}})[0]; got.Result != "reached" {
			t.Errorf("the neighbour by itself: %+v", got)
		}
	})
}

// TestM3AbstractSockets: the host's sockets without a file are in another network.
func TestM3AbstractSockets(t *testing.T) {
	t.Parallel()
	h := newHostServices(t)
	if c, err := net.DialTimeout("unix", "@"+h.abstract, patience); err != nil {
		t.Fatalf("the socket does not listen: %v", err)
	} else {
		_, _ = io.ReadAll(c) // until it was heard
		_ = c.Close()
	}
	heard := len(h.calls())
	eachNetwork(t, func(t *testing.T, b *box) {
		if got := b.sh(t, "grep -c promises- /proc/net/unix; true"); got != "0\n" {
			t.Errorf("%s of the host's sockets are visible", strings.TrimSpace(got))
		}
		refused(t, b, []target{{Kind: "unix", Host: h.abstract}})
	})
	t.Cleanup(func() {
		if calls := h.calls(); len(calls) != heard {
			t.Errorf("the host was reached: %v", calls)
		}
	})
}

// TestM4SocketKinds: no socket that could see or forge packets, leave the network, or change it.
func TestM4SocketKinds(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, b *box) {
		var got map[string]string
		must(t, json.Unmarshal([]byte(b.python(t, "sockets.py")), &got))
		if len(got) < 18 {
			t.Errorf("only %d attempts: %v", len(got), got)
		}
		for what, outcome := range got {
			if strings.HasPrefix(what, "socketcall") && outcome != "EPERM" && outcome != "ENOSYS" { // from the filter, not the kernel
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
