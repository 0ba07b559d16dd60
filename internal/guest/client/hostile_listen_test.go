//go:build linux

package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// impostor connects to a fake guest agent. It answers each request with the bytes from answer. If hold is true, it
// keeps the stream open.
func impostor(t testing.TB, answer func(wire.Op) (out []byte, hold bool)) *client.Conn {
	t.Helper()
	c, err := client.New(context.Background(), fakeGuest(goodHello, func(guest net.Conn) {
		cfg := yamux.DefaultConfig()
		cfg.LogOutput, cfg.EnableKeepAlive = io.Discard, false
		mux, err := yamux.Server(guest, cfg)
		if err != nil {
			return
		}
		defer mux.Close()
		for {
			st, err := mux.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				defer st.Close()
				f, err := wire.ReadFrame(st, nil)
				var env wire.Envelope
				if err != nil || wire.Decode(f.Head, nil, &env) != nil {
					return
				}
				out, hold := answer(env.Op)
				if _, err := st.Write(out); err == nil && hold {
					_, _ = io.Copy(io.Discard, st)
				}
			}()
		}
	}))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// serving answers listen-v1 like a guest agent, and accept-v1 with the bytes from answer.
func serving(t testing.TB, answer func() (out []byte, hold bool)) *client.Conn {
	t.Helper()
	listened := bytesOf(t, []wire.Frame{answerFrame(t, wire.ListenResult{Address: wire.ToolsSocket})})
	return impostor(t, func(op wire.Op) ([]byte, bool) {
		if op == wire.OpListen {
			return listened, true
		}
		return answer()
	})
}

// listening answers listen-v1 like a guest agent, and accept-v1 with frames.
func listening(t testing.TB, frames ...wire.Frame) *client.Conn {
	out := bytesOf(t, frames)
	return serving(t, func() ([]byte, bool) { return out, true })
}

var goodPeer = wire.Accepted{ConnID: "0123456789abcdef", ExecID: "exec", PID: 7, Program: "python3"}

func TestHostileAddress(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ service, address string }{
		"none":            {"tools", ""},
		"a file":          {"tools", "/run/docker.sock"},
		"another's":       {"tools", "@other"},
		"a long one":      {"tools", "@workcell-" + strings.Repeat("x", 98)},
		"control":         {"tools", "@workcell-\n"},
		"another network": {"tools", "127.0.0.1:80"},
		"no port":         {"model", "127.0.0.1"},
		"another host":    {"model", "192.0.2.1:80"},
		"a name":          {"model", "localhost:80"},
		"no number":       {"model", "127.0.0.1:http"},
		"a socket":        {"model", "@workcell-tools"},
	} {
		answer, err := wire.AppendAnswer(nil, wire.ListenResult{Address: test.address})
		must(t, err)
		c := impostor(t, func(wire.Op) ([]byte, bool) { return answer, true })
		if _, err := c.Listen(testContext(t), wire.ListenRequest{Name: test.service, MaxConns: 1, WaitMillis: 1}); !errors.Is(err, client.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostileListen(t *testing.T) {
	t.Parallel()
	peer := func(change func(*wire.Accepted)) wire.Frame {
		a := goodPeer
		change(&a)
		return answerFrame(t, a)
	}
	data := wire.Frame{Kind: wire.KindData, Channel: wire.ChanConn, Body: []byte("x")}
	for name, frames := range map[string][]wire.Frame{
		"data before the answer": {data, answerFrame(t, goodPeer)},
		"end before the answer":  {{Kind: wire.KindEOF, Channel: wire.ChanConn}},
		"not JSON":               {{Kind: wire.KindAnswer, Head: []byte("{")}},
		"no id":                  {peer(func(a *wire.Accepted) { a.ConnID = "" })},
		"id":                     {peer(func(a *wire.Accepted) { a.ConnID = "0123456789ABCDEF" })},
		"no exec":                {peer(func(a *wire.Accepted) { a.ExecID = "" })},
		"exec":                   {peer(func(a *wire.Accepted) { a.ExecID = "../x" })},
		"no pid":                 {peer(func(a *wire.Accepted) { a.PID = 0 })},
		"program":                {peer(func(a *wire.Accepted) { a.Program = "a\x1b[2J" })},
		"long program":           {peer(func(a *wire.Accepted) { a.Program = strings.Repeat("x", 17) })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen(t, listening(t, frames...), nil)
			if _, err := l.Accept(testContext(t)); !errors.Is(err, client.ErrProtocol) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("listened twice", func(t *testing.T) {
		t.Parallel()
		answer, _ := wire.AppendAnswer(nil, wire.ListenResult{Address: wire.ToolsSocket})
		l := listen(t, impostor(t, func(op wire.Op) ([]byte, bool) {
			if op == wire.OpListen {
				return append(answer, answer...), true
			}
			return nil, true
		}), nil)
		if _, err := l.Accept(testContext(t)); !errors.Is(err, client.ErrProtocol) {
			t.Errorf("got %v", err)
		}
	})
}

// TestHostileConnection verifies that a protocol violation on a connection only ends that connection.
func TestHostileConnection(t *testing.T) {
	t.Parallel()
	data := func(s string) wire.Frame {
		return wire.Frame{Kind: wire.KindData, Channel: wire.ChanConn, Body: []byte(s)}
	}
	end := wire.Frame{Kind: wire.KindEOF, Channel: wire.ChanConn}
	for name, test := range map[string]struct {
		frames []wire.Frame
		want   string
		err    error
	}{
		"answered twice":  {[]wire.Frame{data("x"), answerFrame(t, goodPeer)}, "x", client.ErrProtocol},
		"another channel": {[]wire.Frame{data("x"), {Kind: wire.KindData, Channel: wire.ChanFile, Body: []byte("y")}}, "x", client.ErrProtocol},
		"an error":        {[]wire.Frame{{Kind: wire.KindError, Head: []byte("{}")}}, "", client.ErrProtocol},
		"credit":          {[]wire.Frame{{Kind: wire.KindCredit, Channel: wire.ChanStdin, Body: make([]byte, 4)}}, "", client.ErrProtocol},
		"empty data":      {[]wire.Frame{data(""), data("x"), data(""), end}, "x", nil},
		"end, then data":  {[]wire.Frame{data("x"), end, data("y")}, "x", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := listening(t, append([]wire.Frame{answerFrame(t, goodPeer)}, test.frames...)...)
			l := listen(t, c, nil)
			p := accept(t, l)
			for range 2 {
				b, err := io.ReadAll(p)
				if string(b) != test.want || !errors.Is(err, test.err) {
					t.Errorf("got %q, %v, want %q, %v", b, err, test.want, test.err)
				}
				test.want = ""
			}
			if name != "empty data" {
				eventually(t, "writes fail", func() bool { _, err := p.Write([]byte("x")); return err != nil })
			}
			if accept(t, l); c.Err() != nil {
				t.Errorf("the connection to the guest: %v", c.Err())
			}
		})
	}
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		accepted := bytesOf(t, []wire.Frame{answerFrame(t, goodPeer), data("hello")})
		l := listen(t, serving(t, func() ([]byte, bool) { return accepted[:len(accepted)-2], false }), nil)
		if b, err := io.ReadAll(accept(t, l)); string(b) != "hel" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

// TestAcceptFlood verifies that a guest agent continuously reporting new connections costs the host only the memory for
// accepted connections.
func TestAcceptFlood(t *testing.T) {
	t.Parallel()
	l := listen(t, listening(t, answerFrame(t, goodPeer)), nil)
	ctx, before := testContext(t), 0
	for i := range 100_000 {
		p, err := l.Accept(ctx)
		must(t, err)
		_ = p.Close()
		if i == 1000 {
			before = runtime.NumGoroutine()
		}
	}
	if now := runtime.NumGoroutine(); now > before+1000 {
		t.Errorf("%d goroutines, %d after a thousand connections", now, before)
	}
}

// FuzzAccepted verifies that the host treats any response to accept-v1 as a connection with an identity or as an error.
func FuzzAccepted(f *testing.F) {
	good := bytesOf(f, []wire.Frame{answerFrame(f, goodPeer)})
	f.Add(good)
	f.Add(wire.AppendData(good, wire.ChanConn, []byte("hello")))
	f.Add(good[:len(good)-1])
	f.Add([]byte{byte(wire.KindEOF), byte(wire.ChanConn), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	var says atomic.Pointer[[]byte]
	c := serving(f, func() ([]byte, bool) { return *says.Load(), false })
	f.Fuzz(func(t *testing.T, b []byte) {
		says.Store(&b)
		l := listen(t, c, nil)
		defer l.Close()
		p, err := l.Accept(testContext(t))
		if err != nil {
			var refused *wire.Error
			if !errors.Is(err, client.ErrProtocol) && !errors.Is(err, client.ErrNotListening) && !errors.As(err, &refused) {
				t.Fatal(err)
			}
			return
		}
		defer p.Close()
		if !wire.ValidExecID(p.ExecID) || p.PID <= 0 || len(p.ConnID) != 16 || len(p.Program) > 16 {
			t.Errorf("accepted %+v", p.Accepted)
		}
		if n, err := io.Copy(io.Discard, p); err == nil && n > int64(len(b)) {
			t.Errorf("%d bytes of %d", n, len(b))
		}
	})
}
