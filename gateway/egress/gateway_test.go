package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
)

const id = "sbx_a"

// rig is a gateway to in-memory hosts.
type rig struct {
	t   testing.TB
	g   *egress.Gateway
	ctx context.Context
	end func() // ends the sandbox's access

	mu     sync.Mutex // guards dialed
	dialed []string
	wg     sync.WaitGroup
}

// names returns the rig's resolver.
func names() egress.Names {
	addr := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	return egress.Names{
		"good.example": addr("1.1.1.1"), "two.example": addr("1.0.0.9", "1.1.1.1"), "mixed.example": addr("1.1.1.1", "10.0.0.1"), "inner.example": addr("10.0.0.1"),
		"git.example": addr("1.1.1.2"), "down.example": addr("1.0.0.9"),
	}
}

// newRig returns a gateway whose hosts handle every connection with handle.
func newRig(t testing.TB, o egress.Options, handle func(net.Conn)) *rig {
	t.Helper()
	o.Resolver = names()
	g, err := egress.New(&o)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &rig{t: t, g: g, ctx: ctx}
	g.SetDial(func(_ context.Context, _, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "1.0.0.9:") {
			return nil, errors.New("no route")
		}
		near, far := net.Pipe()
		r.mu.Lock()
		r.dialed = append(r.dialed, address)
		r.mu.Unlock()
		r.wg.Go(func() { handle(far); _ = far.Close() })
		return near, nil
	})
	_, r.end, err = g.Open(id, sandbox.Egress{
		Allow: []string{"good.example", "two.example", "mixed.example", "inner.example", "down.example", "unknown.example", "git.example:22", "1.1.1.1:443", "10.0.0.1", "*.sub.example"},
		Deny:  []string{"bad.good.example"},
	})
	must(t, err)
	t.Cleanup(func() { cancel(); r.wg.Wait() })
	return r
}

var must = checktest.Must

// conn returns a connection of code in the sandbox.
func (r *rig) conn() net.Conn {
	near, far := net.Pipe()
	r.wg.Go(func() { r.g.Serve(r.ctx, id, far); _ = far.Close() })
	r.t.Cleanup(func() { _ = near.Close() })
	return near
}

func (r *rig) dials() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.dialed, " ")
}

// talk sends a text and returns the complete answer.
func (r *rig) talk(text string) string {
	c := r.conn()
	go func() { _, _ = io.WriteString(c, text) }()
	got, _ := io.ReadAll(c)
	return string(got)
}

// web answers one HTTP request with a description of the request.
func web(c net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body := fmt.Sprintf("%s %s %s %v", req.Method, req.Host, req.RequestURI, req.Header)
	_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
}

func TestRules(t *testing.T) {
	t.Parallel()
	get := func(url string) string {
		host := strings.TrimPrefix(strings.TrimSuffix(url, "/"), "http://")
		return "GET " + url + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	connect := func(to string) string { return "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n\r\n" }
	tunnelled := func(to, request string) string { return connect(to) + request }
	inner := func(host string) string { return "GET /x HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n" }
	for _, tt := range []struct {
		name, send, want string
		dials            string
		rule             string // rule of the refusal
	}{
		{"a request", get("http://good.example/"), "GET good.example / ", "1.1.1.1:80", ""},
		{"semicolons", strings.Replace(get("http://good.example/"), "/ H", "/?a=1;b=2 H", 1), "/?a=1;b=2 ", "1.1.1.1:80", ""},
		{"the next address", get("http://two.example/"), "GET two.example / ", "1.1.1.1:80", ""},
		{"a capital and a dot", get("http://Good.Example./"), "GET good.example / ", "1.1.1.1:80", ""},
		{"another host", get("http://evil.example/"), " 403 ", "", "network.allow does not name it"},
		{"a denied host", get("http://bad.good.example/"), " 403 ", "", "network.deny: bad.good.example"},
		{"another port", get("http://good.example:8080/"), " 403 ", "", "network.allow does not name port 8080 of it"},
		{"a private address", get("http://inner.example/"), "error=destination_ip_prohibited", "", "address: private"},
		{"an address of several", get("http://mixed.example/"), " 403 ", "", "address: private"},
		{"an IP address", get("http://10.0.0.1/"), " 403 ", "", "address: private"},
		{"an address in disguise", get("http://[::ffff:10.0.0.1]/"), " 403 ", "", "address: private"},
		{"an old notation", get("http://167772161/"), " 400 ", "", ""},
		{"no such name", get("http://unknown.example/"), "error=dns_error", "", ""},
		{"no answer", get("http://down.example/"), "error=destination_unavailable", "", ""},
		{"no proxy's request", "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n", " 400 ", "", ""},
		{"https without a tunnel", get("https://good.example/"), " 400 ", "", ""},
		{"an upgrade", strings.Replace(get("http://good.example/"), "Connection: close", "Connection: close, Upgrade\r\nUpgrade: h2c\r\nProxy-Authorization: Basic eDp5", 1), "map[", "1.1.1.1:80", ""},
		{"a tunnel to another host", connect("evil.example:443"), " 403 ", "", "network.allow does not name it"},
		{"a tunnel without a port", connect("good.example"), " 400 ", "", ""},
		{"HTTP in a tunnel", tunnelled("good.example:80", inner("good.example")), "GET good.example /x ", "1.1.1.1:80", ""},
		{"another host in a tunnel", tunnelled("good.example:80", inner("evil.example")), " 403 ", "", "http: Host"},
		{"another allowed host in a tunnel", tunnelled("good.example:80", inner("two.example")), " 403 ", "", "http: Host"},
		{"a proxy in a tunnel", tunnelled("good.example:80", get("http://good.example/")), " 400 ", "", ""},
		{"a tunnel in a tunnel", tunnelled("good.example:80", connect("good.example:443")), " 400 ", "", ""},
		{"HTTP on port 443", tunnelled("good.example:443", inner("good.example")), "\x15\x03\x03\x00\x02\x02\x31", "1.1.1.1:443", "tls: required"},
		{"a request to port 443", get("http://good.example:443/"), "error=tls_protocol_error", "", "tls: required"},
		{"half a ClientHello", tunnelled("good.example:443", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"), "\x15\x03\x03", "1.1.1.1:443", "tls: no ClientHello"},
		{"a listed port", tunnelled("git.example:22", inner("whatever")), "GET whatever /x ", "1.1.1.2:22", ""},
		{"SOCKS5", "\x05\x01\x00\x05\x01\x00\x03\x0cgood.example\x00\x50", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, egress.Options{}, web)
			if got := r.talk(tt.send); !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			} else if strings.Contains(got, "Upgrade") || strings.Contains(got, "Proxy-Auth") {
				t.Errorf("passed on: %q", got)
			}
			if got := r.dials(); got != tt.dials {
				t.Errorf("connected to %q, want %q", got, tt.dials)
			}
			refused := r.g.Refused(id, time.Time{})
			if tt.rule == "" && len(refused) > 0 || tt.rule != "" && (len(refused) != 1 || refused[0].Rule != tt.rule || refused[0].Hint == "") {
				t.Errorf("refused %+v, want %q", refused, tt.rule)
			}
		})
	}
}

// hello returns a client's ClientHello.
func hello(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	var b bytes.Buffer
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(near, c).Handshake() // fails, because there is no server
	}()
	head := make([]byte, 5)
	_, err := io.ReadFull(far, head)
	must(t, err)
	b.Write(head)
	_, err = io.CopyN(&b, far, int64(head[3])<<8|int64(head[4]))
	must(t, err)
	_ = far.Close()
	<-done
	return b.Bytes()
}

func named(name string) *tls.Config {
	return &tls.Config{ServerName: name, InsecureSkipVerify: true} //nolint:gosec // nothing is agreed on
}

// encrypted returns a ClientHello with the ECH extension.
func encrypted(t testing.TB) []byte {
	t.Helper()
	b := hello(t, named("good.example"))
	// Append a meaningless extension after the others. The three enclosing lengths grow by its size.
	ext := []byte{0xfe, 0x0d, 0x00, 0x0c, 0, 0, 1, 0, 1, 7, 0, 1, 9, 0, 1, 5}
	grow := func(at, size int) {
		n := 0
		for _, c := range b[at : at+size] {
			n = n<<8 | int(c)
		}
		n += len(ext)
		for i := size - 1; i >= 0; i-- {
			b[at+i] = byte(n)
			n >>= 8
		}
	}
	at := 5 + 4 + 2 + 32                   // record, handshake, version, random
	at += 1 + int(b[at])                   // session
	at += 2 + int(b[at])<<8 + int(b[at+1]) // ciphers
	at += 1 + int(b[at])                   // compression
	grow(3, 2)
	grow(6, 3)
	grow(at, 2)
	return append(b, ext...)
}

func TestServerName(t *testing.T) {
	t.Parallel()
	good := hello(t, named("good.example"))
	for _, tt := range []struct {
		name, to string
		send     []byte
		passes   bool
		rule     string
	}{
		{"the host", "good.example:443", good, true, ""},
		{"the host on port 80", "good.example:80", good, true, ""},
		{"the host in capitals", "good.example:443", hello(t, named("Good.Example")), true, ""},
		{"another host", "good.example:443", hello(t, named("evil.example")), false, "tls: server name"},
		{"another allowed host", "good.example:443", hello(t, named("two.example")), false, "tls: server name"},
		{"another host on a named port", "git.example:22", hello(t, named("evil.example")), false, "tls: server name"},
		{"no host", "good.example:443", hello(t, named("")), false, "tls: no server name"},
		{"encrypted", "good.example:443", encrypted(t), false, "tls: encrypted ClientHello"},
		{"an address", "1.1.1.1:443", hello(t, named("")), true, ""},
		{"an address with a name", "1.1.1.1:443", good, false, "tls: server name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			passed := make(chan []byte, 1)
			r := newRig(t, egress.Options{}, func(c net.Conn) {
				got := make([]byte, len(tt.send))
				n, _ := io.ReadFull(c, got)
				passed <- got[:n]
			})
			got := r.talk("CONNECT " + tt.to + " HTTP/1.1\r\n\r\n" + string(tt.send))
			if !strings.Contains(got, " 200 ") {
				t.Errorf("got %q", got)
			}
			var host []byte
			if r.dials() != "" {
				host = <-passed
			}
			if tt.passes != bytes.Equal(host, tt.send) || !tt.passes && len(host) > 0 {
				t.Errorf("the host got %d bytes of %d", len(host), len(tt.send))
			}
			if refused := r.g.Refused(id, time.Time{}); tt.passes != (len(refused) == 0) || !tt.passes && refused[0].Rule != tt.rule {
				t.Errorf("refused %+v, want %q", refused, tt.rule)
			}
		})
	}
}

// TestHostSpeaksFirst verifies that on a named port, the host may send first.
func TestHostSpeaksFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, egress.Options{}, func(c net.Conn) {
		_, _ = io.WriteString(c, "SSH-2.0-host\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		_, _ = io.WriteString(c, "heard "+line)
	})
	c := r.conn()
	_, err := io.WriteString(c, "CONNECT git.example:22 HTTP/1.1\r\n\r\n")
	must(t, err)
	br := bufio.NewReader(c)
	var got []string
	for range 4 {
		line, err := br.ReadString('\n')
		must(t, err)
		got = append(got, strings.TrimSpace(line))
		if strings.HasPrefix(line, "SSH") {
			_, err = io.WriteString(c, "SSH-2.0-client\n")
			must(t, err)
		}
	}
	if last := got[len(got)-1]; last != "heard SSH-2.0-client" {
		t.Errorf("%q", got)
	}
}

// TestHalfClose verifies that an upload continues after the host has ended its direction of a tunnel.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, egress.Options{}, nil)
	pair := func() (near, far *net.TCPConn) {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		must(t, err)
		defer l.Close()
		to, _ := l.Addr().(*net.TCPAddr)
		near, err = net.DialTCP("tcp", nil, to)
		must(t, err)
		far, err = l.AcceptTCP()
		must(t, err)
		t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
		return near, far
	}
	dialed, host := pair()
	c, inside := pair()
	r.g.SetDial(func(context.Context, string, string) (net.Conn, error) { return dialed, nil })
	r.wg.Go(func() { r.g.Serve(r.ctx, id, inside) })
	_, err := io.WriteString(c, "CONNECT git.example:22 HTTP/1.1\r\n\r\n")
	must(t, err)
	must(t, host.CloseWrite())
	if got, err := io.ReadAll(c); err != nil || !strings.Contains(string(got), " 200 ") {
		t.Fatalf("%q, %v", got, err)
	}
	_, err = io.WriteString(c, "upload")
	must(t, err)
	must(t, c.CloseWrite())
	if got, err := io.ReadAll(host); err != nil || string(got) != "upload" {
		t.Errorf("the host got %q, %v", got, err)
	}
}

// TestLimits verifies that connections end if they are idle, open, or transferring for too long.
func TestLimits(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limits egress.Limits
		host   func(net.Conn)
		after  time.Duration
	}{
		"idle":  {egress.Limits{Idle: time.Minute}, once, 90 * time.Second},
		"time":  {egress.Limits{Time: time.Hour}, drip, time.Hour},
		"bytes": {egress.Limits{Bytes: 100}, drip, 100 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, egress.Options{Limits: tt.limits}, tt.host)
				began := time.Now()
				r.talk("CONNECT git.example:22 HTTP/1.1\r\n\r\n")
				if took := time.Since(began); took < tt.after || took > tt.after+2*time.Second {
					t.Errorf("it ended after %v, want %v", took, tt.after)
				}
				if name != "bytes" {
					return
				}
				if got := r.talk("CONNECT git.example:22 HTTP/1.1\r\n\r\n"); !strings.Contains(got, "limits.bytes") {
					t.Errorf("got %q", got)
				}
			})
		})
	}
	_, err := egress.New(&egress.Options{Limits: egress.Limits{Conns: 129}})
	if !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// TestOneConnectionTooMany verifies that a connection above the limit gets an answer, and it is recorded.
func TestOneConnectionTooMany(t *testing.T) {
	t.Parallel()
	r := newRig(t, egress.Options{Limits: egress.Limits{Conns: 1}}, web)
	first := r.conn()
	_, err := io.WriteString(first, "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n")
	must(t, err)
	for _, send := range []string{
		"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"CONNECT good.example:80 HTTP/1.1\r\n\r\n", "CONNECT good.example:443 HTTP/1.1\r\n\r\n",
	} {
		began := time.Now()
		got := r.talk(send)
		if refused := r.g.Refused(id, began); !strings.Contains(got, " 503 ") || len(refused) != 1 || refused[0].Rule != "limits.conns" {
			t.Errorf("%.30s: %q, refused %v", send, got, refused)
		}
	}
	go func() { _, _ = io.WriteString(first, "Connection: close\r\n\r\n") }()
	if got, _ := io.ReadAll(first); !strings.Contains(string(got), " 200 ") {
		t.Errorf("the first: %q", got)
	}
	if got := r.dials(); got != "1.1.1.1:80" {
		t.Errorf("dialed %s", got)
	}
}

// TestManyRefusals verifies that the records of refusals are limited, and that later allowed connections are recorded.
func TestManyRefusals(t *testing.T) {
	t.Parallel()
	logged := &buffertest.Buffer{}
	r := newRig(t, egress.Options{Log: slog.New(slog.NewTextHandler(logged, nil))}, web)
	file := filepath.Join(t.TempDir(), "audit")
	l, err := audit.Open(file, audit.Options{})
	must(t, err)
	r.ctx = audit.NewContext(r.ctx, l)
	r.talk(strings.Repeat("GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", audit.MaxRefused+50) +
		"GET http://good.example/ HTTP/1.0\r\n\r\n")
	must(t, l.Close())
	text, err := os.ReadFile(file)
	must(t, err)
	lines, messages := strings.Count(string(text), "\n"), strings.Count(logged.String(), "egress: refused")
	warnings := strings.Count(logged.String(), "further refusals")
	if lines != audit.MaxRefused+1 || messages != audit.MaxRefused || !strings.Contains(string(text), "allowed") ||
		warnings != 1 {
		t.Errorf("%d lines, %d messages, %d warnings", lines, messages, warnings)
	}
}

// once sends one byte after half a minute.
func once(c net.Conn) {
	time.Sleep(30 * time.Second)
	_, _ = c.Write([]byte{1})
	_, _ = io.Copy(io.Discard, c)
}

// drip sends a byte each second.
func drip(c net.Conn) {
	for {
		if _, err := c.Write([]byte{1}); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// TestGrants verifies that additional hosts apply from the next connection on until they are dropped, even if another
// process serves the hosts for a time.
func TestGrants(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRig(t, egress.Options{Grants: dir}, web)
	ask := "CONNECT 1.1.1.1:8443 HTTP/1.1\r\n\r\n"
	if got := r.talk(ask); !strings.Contains(got, " 403 ") {
		t.Errorf("got %q", got)
	}
	if err := egress.Allow(dir, id, "https://x"); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("%v", err)
	}
	must(t, egress.Allow(dir, id, "1.1.1.1:8443", "bad.good.example"))
	many := slices.Repeat([]string{strings.Repeat("a", 60) + ".example"}, 250)
	var err error
	for range 5 {
		err = errors.Join(err, egress.Allow(dir, id, many...))
	}
	if !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("more than 64 KiB: %v", err)
	}
	request := "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	if got := r.talk(ask + request); !strings.Contains(got, " 200 ") {
		t.Errorf("got %q", got)
	}
	if got := r.talk("CONNECT bad.good.example:443 HTTP/1.1\r\n\r\n"); !strings.Contains(got, "network.deny") {
		t.Errorf("got %q", got)
	}
	list := sandbox.Egress{Allow: []string{"good.example"}}
	must(t, os.Chtimes(filepath.Join(dir, id), time.Time{}, time.Now().Add(-time.Hour)))
	other, err := egress.New(&egress.Options{Grants: dir})
	must(t, err)
	_, end, err := other.Open(id, list)
	must(t, err)
	end()
	_, _, err = r.g.Open(id, list)
	must(t, err)
	r.end() // called late, after the sandbox was opened again
	if got := r.talk(ask + request); !strings.Contains(got, " 200 ") {
		t.Errorf("got %q", got)
	}
	r.g.DropGrants(id)
	if got := r.talk(ask); !strings.Contains(got, " 403 ") {
		t.Errorf("got %q", got)
	}
}
