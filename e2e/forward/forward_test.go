package forward

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/forward"
)

// web is a server with a page, the page's resources, and a WebSocket echo.
const web = `
import base64, hashlib, http.server, os
PAGE = b"""<!doctype html><script>
const ws = new WebSocket("ws://" + location.host + "/socket")
ws.onopen = () => ws.send("from the page")
ws.onmessage = async m => {
  const data = await (await fetch("/data")).text()
  await fetch("/seen", {method: "POST", body: m.data + ", " + data})
}
</script>"""
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        if self.path == "/socket": return self.socket()
        body = PAGE if self.path == "/" else b"from the sandbox"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        n, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        if self.path == "/seen":
            open("seen.part", "wb").write(self.rfile.read(n))
            os.rename("seen.part", "seen")
            n = 0
        while n > 0:
            data = self.rfile.read(min(n, 1 << 16))
            if not data: return
            n -= len(data)
            digest.update(data)
        body = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True: # frames of less than 126 bytes
            head = self.rfile.read(6)
            if len(head) < 6: return
            data = bytes(b ^ head[2 + i % 4] for i, b in enumerate(self.rfile.read(head[1] & 127)))
            self.wfile.write(bytes([head[0], len(data)]) + data)
            if head[0] & 15 == 8: return
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(s.server_address[1], flush=True)
s.serve_forever()
`

// TestHTTP verifies the standard library's client and a WebSocket, with DialContext and with a forwarded port.
func TestHTTP(t *testing.T) {
	on(t, func(x *box) {
		t, port := x.t, x.server(web)
		inside := &http.Client{Transport: &http.Transport{DialContext: x.DialContext}}
		defer inside.CloseIdleConnections()
		outside := &http.Client{Transport: &http.Transport{}}
		defer outside.CloseIdleConnections()
		data := bytes.Repeat([]byte("0123456789"), 1<<20)
		for _, way := range []struct {
			client  *http.Client
			dial    func(ctx context.Context, network, address string) (net.Conn, error)
			address string
		}{{inside, x.DialContext, "127.0.0.1:" + port}, {outside, new(net.Dialer).DialContext, x.forward(port)}} {
			for range 20 {
				res, err := way.client.Get("http://" + way.address + "/data")
				must(t, err)
				body, err := io.ReadAll(res.Body)
				if _ = res.Body.Close(); err != nil || string(body) != "from the sandbox" {
					t.Fatalf("%q, %v", body, err)
				}
			}
			res, err := way.client.Post("http://"+way.address+"/", "text/plain", bytes.NewReader(data))
			must(t, err)
			body, err := io.ReadAll(res.Body)
			if _ = res.Body.Close(); err != nil || string(body) != fmt.Sprintf("%x", sha256.Sum256(data)) {
				t.Errorf("an upload: %q, %v", body, err)
			}
			conn, err := way.dial(t.Context(), "tcp", way.address)
			must(t, err)
			config, err := websocket.NewConfig("ws://"+way.address+"/socket", "http://localhost")
			must(t, err)
			ws, err := websocket.NewClient(config, conn)
			must(t, err)
			for i := range 20 {
				text, got := fmt.Sprintf("message %d", i), ""
				must(t, websocket.Message.Send(ws, text))
				if err := websocket.Message.Receive(ws, &got); err != nil || got != text {
					t.Fatalf("%q, %v", got, err)
				}
			}
			must(t, ws.Close())
		}
	})
}

// TestBrowser: a real browser opens a page in the sandbox, whose script sends requests and uses a WebSocket.
func TestBrowser(t *testing.T) {
	path, err := exec.Command(filepath.Join("..", "..", "hack", "tool.sh"), "chromium").Output()
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		t.Fatalf("hack/tool.sh chromium: %v: %s", err, exit.Stderr)
	}
	on(t, func(x *box) {
		cmd := exec.CommandContext(x.t.Context(), strings.TrimSpace(string(path)), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
			"--no-first-run", "--no-proxy-server", "--remote-debugging-port=0", "--user-data-dir="+x.t.TempDir(), "http://"+x.forward(x.server(web))+"/")
		// A killed browser leaves its files; they include sockets, whose paths have limited length.
		tmp, err := os.MkdirTemp("", "")
		must(x.t, err)
		x.t.Cleanup(func() { must(x.t, os.RemoveAll(tmp)) })
		cmd.Env = append(os.Environ(), "HOME="+x.t.TempDir(), "TMPDIR="+tmp)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		must(x.t, cmd.Start())
		if got := x.sh("until [ -e seen ]; do sleep 0.1; done; cat seen"); got != "0: from the page, from the sandbox" {
			x.t.Errorf("the page was not seen in full: %s", got)
		}
		must(x.t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			x.t.Logf("the browser: %v\n%s", err, errs.Bytes())
		}
	})
}

// TestHalfClose: each direction of a raw connection ends separately, including forwarded ports.
func TestHalfClose(t *testing.T) {
	on(t, func(x *box) {
		port := x.server("\ndef whole(c):\n    with c:\n        data = b''\n        while part := c.recv(65536): data += part\n        c.sendall(data[::-1])\nserve(whole)\n")
		direct := x.dial(port)
		host, err := net.Dial("tcp", x.forward(port))
		must(x.t, err)
		defer host.Close()
		data := bytes.Repeat([]byte("0123456789"), 1<<17)
		for name, c := range map[string]net.Conn{"DialContext": direct, "a port of the host": host} {
			_, err := c.Write(append(data, 'e'))
			must(x.t, err)
			must(x.t, c.(interface{ CloseWrite() error }).CloseWrite())
			got, err := io.ReadAll(c)
			if err != nil || len(got) != len(data)+1 || got[0] != 'e' {
				x.t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	})
}

// TestReset: a reset on either side is a reset on the other side, and never a normal end.
func TestReset(t *testing.T) {
	on(t, func(x *box) {
		t, port := x.t, x.server(`
import struct
def reset(c):
    if c.recv(5) != b"hello":
        return
    c.sendall(b"half")
    c.recv(4)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
serve(reset)
`)
		host, err := net.Dial("tcp", x.forward(port))
		must(t, err)
		defer host.Close()
		for _, c := range []net.Conn{x.dial(port), host} {
			_, err := io.WriteString(c, "hello")
			must(t, err)
			_, err = io.ReadFull(c, make([]byte, 4))
			must(t, err)
			_, err = io.WriteString(c, "more")
			must(t, err)
			if got, err := io.ReadAll(c); err == nil {
				t.Errorf("a server that resets: %q and an end", got)
			}
		}
		port = x.server(`
def read(c):
    try:
        while c.recv(65536): pass
        how = "ended"
    except ConnectionResetError:
        how = "reset"
    open("how", "w").write(how)
serve(read)
`)
		victim, err := net.Dial("tcp", x.forward(port))
		must(t, err)
		_, err = io.WriteString(victim, "half")
		must(t, err)
		must(t, victim.(*net.TCPConn).SetLinger(0))
		must(t, victim.Close())
		if got := x.sh("while ! [ -s how ]; do sleep 0.05; done; cat how"); got != "0: reset" {
			t.Errorf("a client that resets: %s", got)
		}
		c, err := net.Dial("tcp", x.forward("1")) // no listener
		if err != nil {
			return // it was already reset
		}
		defer c.Close()
		if got, err := io.ReadAll(c); err == nil {
			t.Errorf("a port that nothing listens on: %q and an end", got)
		}
	})
}

// TestConnections opens many concurrent connections. Connections above the limit wait.
func TestConnections(t *testing.T) {
	on(t, func(x *box) {
		address := x.forward(x.server(echo))
		var tasks sync.WaitGroup
		for i := range 2 * forward.DefaultMaxConns {
			tasks.Go(func() {
				c, err := net.Dial("tcp", address)
				if err != nil {
					x.t.Error(err)
					return
				}
				defer c.Close()
				data := bytes.Repeat([]byte{byte(i)}, 64<<10)
				go func() { _, _ = c.Write(data) }()
				got := make([]byte, len(data))
				if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
					x.t.Errorf("connection %d: %v", i, err)
				}
			})
		}
		tasks.Wait()
	})
}

// TestOnlyLoopback: only loopback addresses can be reached, even if the sandbox has other addresses.
func TestOnlyLoopback(t *testing.T) {
	on(t, func(x *box) {
		for address, want := range map[string]error{
			"169.254.169.254:80": backend.ErrPermission, "0.0.0.0:80": backend.ErrPermission, "[::]:80": backend.ErrPermission,
			"host.docker.internal:80": backend.ErrInvalid, "127.0.0.1:0": backend.ErrInvalid, "127.0.0.1:1": backend.ErrNotFound,
		} {
			if c, err := x.DialContext(x.t.Context(), "tcp", address); !errors.Is(err, want) {
				x.t.Errorf("%s: %v, %v", address, c, err)
			}
		}
		for _, network := range []string{"udp", "unix", "tcp4", ""} {
			if _, err := x.DialContext(x.t.Context(), network, "127.0.0.1:80"); !errors.Is(err, backend.ErrUnsupported) {
				x.t.Errorf("network %q: %v", network, err)
			}
		}
		// Must not be reachable, because the sandbox has another loopback interface.
		host, err := net.Listen("tcp", "127.0.0.1:0")
		must(x.t, err)
		defer host.Close()
		if _, err := x.DialContext(x.t.Context(), "tcp", host.Addr().String()); !errors.Is(err, backend.ErrNotFound) {
			x.t.Errorf("a port of the host: %v", err)
		}
		ctx, cancel := context.WithCancel(x.t.Context())
		cancel()
		if _, err := x.DialContext(ctx, "tcp", "127.0.0.1:80"); !errors.Is(err, context.Canceled) {
			x.t.Errorf("cancelled: %v", err)
		}
	})
}

// TestOutlives: a connection ends with an error if the sandbox is removed or the session is closed. A forwarder ends
// with an error at the next connection.
func TestOutlives(t *testing.T) {
	on(t, func(x *box) {
		t, port := x.t, x.server(echo)
		f, err := forward.Listen(x.Session.Sandbox, []forward.Port{{Sandbox: 80}}, nil)
		must(t, err)
		served := make(chan error, 1)
		go func() { served <- f.Serve(context.Background()) }()
		c := x.dial(port)
		// Outside of the session.
		must(t, x.b.Remove(t.Context(), x.Info().EngineID, backend.RemoveOptions{Volumes: true}))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, backend.ErrLost) && !errors.Is(err, backend.ErrUnavailable) {
			// An engine may be slow to detect it.
			t.Errorf("of a sandbox that was removed: %v", err)
		}
		if _, err := c.Write([]byte("x")); err == nil {
			t.Error("a write into a sandbox that was removed")
		}
		for over := false; !over; {
			if late, err := net.Dial("tcp", f.Addrs()[0].String()); err == nil { // it may already be reset
				defer late.Close()
			}
			select {
			case err := <-served:
				if over = true; !errors.Is(err, backend.ErrLost) {
					t.Errorf("Serve: %v", err)
				}
			case <-time.After(time.Second): // try again, because an engine may be slow to detect it
			}
		}

		s, _, err := x.m.Open(t.Context(), session.UserKey("other"), session.Request{Image: pythonImage})
		must(t, err)
		y := &box{s, t, x.m, x.b}
		c = y.dial(y.server(echo))
		must(t, s.Close(t.Context()))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, backend.ErrClosed) {
			t.Errorf("of a session that was closed: %v", err)
		}
		if _, err := s.DialContext(t.Context(), "tcp", "127.0.0.1:80"); !errors.Is(err, backend.ErrClosed) {
			t.Errorf("in a session that was closed: %v", err)
		}
	})
}
