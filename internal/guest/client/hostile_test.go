//go:build linux

package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

var goodHello = wire.Hello{PID: 1, BootID: "boot", Workdir: "/workspace"}

// fakeGuest answers a handshake with hello and then passes the connection to serve.
func fakeGuest(hello any, serve func(rw net.Conn)) io.ReadWriteCloser {
	host, guest := net.Pipe()
	go func() {
		defer guest.Close()
		version, err := wire.ReadMarker(guest, wire.FromHost)
		if err != nil {
			return
		}
		b, _ := wire.AppendAnswer(wire.AppendMarker(nil, wire.FromGuest, version), hello)
		if _, err := guest.Write(b); err != nil || serve == nil {
			return
		}
		serve(guest)
	}()
	return host
}

func TestHostileHello(t *testing.T) {
	t.Parallel()
	change := func(f func(*wire.Hello)) wire.Hello {
		h := goodHello
		f(&h)
		return h
	}
	for name, hello := range map[string]any{
		"no pid":       change(func(h *wire.Hello) { h.PID = 0 }),
		"no boot id":   change(func(h *wire.Hello) { h.BootID = "" }),
		"no workdir":   change(func(h *wire.Hello) { h.Workdir = "" }),
		"another type": json.RawMessage(`[1,2,3]`),
		"wrong types":  json.RawMessage(`{"pid":"one"}`),
	} {
		if _, err := client.New(testContext(t), fakeGuest(hello, nil)); !errors.Is(err, client.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostileHandshake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, hostileHandshake)
}

func hostileHandshake(t *testing.T) {
	marker := wire.AppendMarker(nil, wire.FromGuest, wire.ProtocolVersion)
	say := func(b []byte) func(net.Conn) { return func(c net.Conn) { _, _ = c.Write(b) } }
	for name, tc := range map[string]struct {
		say  func(net.Conn)
		want error
		text string
	}{
		"silence":       {func(net.Conn) {}, client.ErrNoAnswer, ""},
		"end":           {func(c net.Conn) { _ = c.Close() }, client.ErrConnLost, ""},
		"half a marker": {say(marker[:9]), client.ErrNoAnswer, ""},
		"no hello":      {say(marker), client.ErrNoAnswer, ""},
		"noise":         {say(noise(1 << 20)), client.ErrProtocol, ""},
		"a host":        {say(wire.AppendMarker(nil, wire.FromHost, wire.ProtocolVersion)), client.ErrProtocol, ""},
		// An old guest agent sends a hello with the old version and waits for another host.
		"old guest": {
			say(wire.AppendMarker(nil, wire.FromGuest, 1)), client.ErrProtocol,
			"version 1 of the protocol, this host version 3; remove the sandbox",
		},
	} {
		host, guest := net.Pipe()
		var peer sync.WaitGroup
		peer.Go(func() { _, _ = io.Copy(io.Discard, guest) })
		peer.Go(func() { tc.say(guest) })
		_, err := client.New(testContext(t), host)
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v", name, err)
		}
		_ = guest.Close()
		peer.Wait()
	}
}

// muxHeader returns a frame header of the multiplexer.
func muxHeader(version, kind byte, flags uint16, stream, length uint32) []byte {
	return []byte{version, kind, byte(flags >> 8), byte(flags), byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream),
		byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}
}

// FuzzHostileStream verifies that any data after a hello ends the host's calls and the connection with an error of the
// connection.
func FuzzHostileStream(f *testing.F) {
	f.Add(muxHeader(0, wire.MuxData, 0, 1, 12))
	f.Add(append(muxHeader(0, wire.MuxWindowUpdate, 2, 1, 1<<20), muxHeader(0, wire.MuxGoAway, 0, 0, 0)...))
	f.Add(append(muxHeader(0, wire.MuxPing, 2, 0, 0), 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := client.New(testContext(t), fakeGuest(goodHello, func(guest net.Conn) {
			var read sync.WaitGroup
			read.Go(func() { _, _ = io.Copy(io.Discard, guest) })
			_, _ = guest.Write(b)
			_ = guest.Close()
			read.Wait()
		}))
		must(t, err)
		if _, err := c.Health(testContext(t)); err == nil {
			t.Error("a request was answered")
		}
		<-c.Done()
		if err := c.Err(); !errors.Is(err, client.ErrConnLost) && !errors.Is(err, client.ErrProtocol) {
			t.Errorf("ended with %v", err)
		}
		_ = c.Close()
	})
}

func TestHostileMultiplexer(t *testing.T) {
	t.Parallel()
	for name, frame := range map[string][]byte{
		"opens a stream":    muxHeader(0, wire.MuxWindowUpdate, 1, 2, 0),
		"data with SYN":     muxHeader(0, wire.MuxData, 1, 2, 0),
		"pings":             muxHeader(0, wire.MuxPing, 1, 0, 7),
		"unknown type":      muxHeader(0, 9, 0, 0, 0),
		"wrong version":     muxHeader(3, 0, 0, 0, 0),
		"enormous data":     muxHeader(0, wire.MuxData, 0, 1, 1<<30),
		"data beyond limit": muxHeader(0, wire.MuxData, 0, 1, 1<<20+1),
	} {
		c, err := client.New(testContext(t), fakeGuest(goodHello, func(rw net.Conn) {
			var read sync.WaitGroup
			read.Go(func() { _, _ = io.Copy(io.Discard, rw) })
			_, _ = rw.Write(frame)
			read.Wait()
		}))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		select {
		case <-c.Done():
		case <-time.After(time.Minute):
			t.Errorf("%s: the connection lives on", name)
		}
		if err := c.Err(); !errors.Is(err, client.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		_ = c.Close()
	}
}

// liar connects to a fake guest agent. It answers every request with the same frames.
func liar(t testing.TB, frames ...wire.Frame) *client.Conn {
	t.Helper()
	out := bytesOf(t, frames)
	return impostor(t, func(wire.Op) ([]byte, bool) { return out, false })
}

func bytesOf(t testing.TB, frames []wire.Frame) (out []byte) {
	for _, f := range frames {
		var err error
		out, err = wire.AppendFrame(out, f)
		must(t, err)
	}
	return out
}

func answerFrame(t testing.TB, msg any) wire.Frame {
	t.Helper()
	b, err := wire.AppendAnswer(nil, msg)
	must(t, err)
	f, err := wire.ReadFrame(bytes.NewReader(b), nil)
	must(t, err)
	return f
}

func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	run := sh("true")
	status := wire.ExecStatus{ExecID: run.ExecID, State: wire.ExecCompleted}
	result := func(change func(*wire.RunResult)) *wire.RunResult {
		r := wire.RunResult{ExecStatus: status}
		change(&r)
		return &r
	}
	readResult := func(change func(*wire.ReadResult)) *wire.ReadResult {
		r := wire.ReadResult{Status: status, NextSeq: 5}
		change(&r)
		return &r
	}
	info := wire.FileInfo{Path: "f", Type: wire.TypeFile, Size: 3}
	data := func(s string) wire.Frame {
		return wire.Frame{Kind: wire.KindData, Channel: wire.ChanFile, Body: []byte(s)}
	}
	callRun := func(c *client.Conn) error { _, err := c.Run(testContext(t), run); return err }
	callRead := func(c *client.Conn) error {
		_, err := c.Read(testContext(t), wire.ReadRequest{ExecID: run.ExecID, SinceSeq: 2, MaxChunks: 2})
		return err
	}
	callGet := func(c *client.Conn) error {
		_, err := c.GetFile(testContext(t), wire.FileGetRequest{Path: "f", Length: 2}, io.Discard)
		return err
	}
	callList := func(c *client.Conn) error {
		_, err := c.List(testContext(t), wire.ListRequest{Path: ".", Limit: 1})
		return err
	}
	callDigest := func(c *client.Conn) error {
		_, err := c.Digest(testContext(t), wire.DigestRequest{Paths: []string{"f"}})
		return err
	}
	digests := func(list ...wire.Digest) []wire.Frame {
		return []wire.Frame{answerFrame(t, wire.DigestResult{Digests: list})}
	}
	for name, tc := range map[string]struct {
		call   func(*client.Conn) error
		frames []wire.Frame
	}{
		"nothing":        {callRun, nil},
		"wrong kind":     {callRun, []wire.Frame{{Kind: wire.KindEOF, Channel: wire.ChanFile}}},
		"not JSON":       {callRun, []wire.Frame{{Kind: wire.KindAnswer, Head: []byte("{")}}},
		"bad error":      {callRun, []wire.Frame{{Kind: wire.KindError, Head: []byte("[]")}}},
		"body too short": {callRun, []wire.Frame{{Kind: wire.KindAnswer, Head: []byte("{}"), Body: []byte{0, 0}}}},
		"another exec":   {callRun, []wire.Frame{answerFrame(t, result(func(r *wire.RunResult) { r.ExecID = "other" }))}},
		"unknown state":  {callRun, []wire.Frame{answerFrame(t, result(func(r *wire.RunResult) { r.State = "happy" }))}},
		"exit code":      {callRun, []wire.Frame{answerFrame(t, result(func(r *wire.RunResult) { r.ExitCode = 4711 }))}},
		"negative bytes": {callRun, []wire.Frame{answerFrame(t, result(func(r *wire.RunResult) { r.StdoutBytes = -1 }))}},
		"too much head":  {callRun, []wire.Frame{answerFrame(t, result(func(r *wire.RunResult) { r.Stdout = wire.Output{Head: make([]byte, 5000), Total: 5000} }))}},
		"adds up after an overflow": {callRun, []wire.Frame{answerFrame(t, result(func(r *wire.RunResult) {
			r.Stdout = wire.Output{Head: []byte("x"), Omitted: math.MaxInt64, Total: math.MinInt64}
		}))}},
		"does not add up":  {callRun, []wire.Frame{answerFrame(t, result(func(r *wire.RunResult) { r.Stdout = wire.Output{Head: []byte("x"), Total: 9} }))}},
		"read: old chunk":  {callRead, []wire.Frame{answerFrame(t, readResult(func(r *wire.ReadResult) { r.Chunks = []wire.Chunk{{Seq: 1, Stream: wire.Stdout}} }))}},
		"read: bad stream": {callRead, []wire.Frame{answerFrame(t, readResult(func(r *wire.ReadResult) { r.Chunks = []wire.Chunk{{Seq: 3, Stream: "stdlog"}} }))}},
		"read: not in order": {callRead, []wire.Frame{answerFrame(t, readResult(func(r *wire.ReadResult) {
			r.Chunks = []wire.Chunk{{Seq: 4, Stream: wire.Stdout}, {Seq: 4, Stream: wire.Stdout}}
		}))}},
		"read: too many": {callRead, []wire.Frame{answerFrame(t, readResult(func(r *wire.ReadResult) {
			r.Chunks = []wire.Chunk{{Seq: 3, Stream: wire.Stdout}, {Seq: 4, Stream: wire.Stdout}, {Seq: 5, Stream: wire.Stdout}}
		}))}},
		"read: goes back":    {callRead, []wire.Frame{answerFrame(t, readResult(func(r *wire.ReadResult) { r.NextSeq = 1 }))}},
		"get: too much":      {callGet, []wire.Frame{answerFrame(t, info), data("12"), data("3")}},
		"get: bad type":      {callGet, []wire.Frame{answerFrame(t, wire.FileInfo{Path: "f", Type: "door"})}},
		"get: negative size": {callGet, []wire.Frame{answerFrame(t, wire.FileInfo{Path: "f", Type: wire.TypeFile, Size: -1})}},
		"get: cut":           {callGet, []wire.Frame{answerFrame(t, info), data("1")}},
		"list: too many":     {callList, []wire.Frame{answerFrame(t, wire.ListResult{Entries: []wire.FileInfo{info, info}, Total: 2})}},
		"digest: none":       {callDigest, digests()},
		"digest: too many":   {callDigest, digests(wire.Digest{}, wire.Digest{})},
		"digest: too short":  {callDigest, digests(wire.Digest{SHA256: []byte("x")})},
		"digest: NUL":        {callDigest, digests(wire.Digest{Target: []byte("a\x00")})},
		"digest: too long":   {callDigest, digests(wire.Digest{Target: make([]byte, 5000)})},
		"list: bad total":    {callList, []wire.Frame{answerFrame(t, wire.ListResult{Entries: []wire.FileInfo{info}, Total: 0})}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := tc.call(liar(t, tc.frames...)); !errors.Is(err, client.ErrProtocol) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestHostilePut verifies that PutFile neither succeeds early nor hangs if the guest agent confirms a file before it
// was sent.
func TestHostilePut(t *testing.T) {
	t.Parallel()
	c := liar(t, answerFrame(t, wire.FileInfo{Path: "f", Type: wire.TypeFile}))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write(noise(wire.MaxData)) }()
	if _, err := c.PutFile(ctx, wire.FilePutRequest{Path: "f", Size: -1}, r); err == nil {
		t.Error("a file that was not sent was accepted")
	}
}
