package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/forward"
)

// pythonForward is a server. The first byte of a connection selects the behavior: echo, send endlessly, or read until
// the end.
const pythonForward = `
import socket, threading
def handle(c):
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    what, zeros, room = c.recv(1), bytes(1 << 18), bytearray(1 << 18)
    try:
        while what == b"e" and (data := c.recv(64)): c.sendall(data)
        while what == b"s": c.sendall(zeros)
        while what == b"t" and c.recv_into(room): pass
        if what == b"t": c.sendall(b"k")
    except OSError: pass
    c.close()
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True: threading.Thread(target=handle, args=(s.accept()[0],), daemon=True).start()
`

// measureForward measures round trips and streams through a forwarded port, in turns with the same server directly on
// the host.
func (c *contest) measureForward(ctx context.Context) (err error) {
	addresses := map[*contender]string{}
	ctx, cancel := context.WithCancel(ctx)
	var ends []func() error
	defer func() {
		cancel()
		for _, end := range ends {
			err = errors.Join(err, end())
		}
	}()
	return c.addedTo("forward_rtt_ms", "forward_added_ms", func(b *contender) (map[string]float64, error) {
		if addresses[b] == "" {
			address, end, err := serveForward(ctx, b.session)
			if err != nil {
				return nil, err
			}
			addresses[b], ends = address, append(ends, end)
		}
		return c.forwarded(addresses[b])
	})
}

// serveForward starts the server in a sandbox, or directly on the host if s is nil. It returns the address on the host.
func serveForward(ctx context.Context, s *session.Session) (address string, end func() error, err error) {
	if s == nil {
		cmd := exec.CommandContext(ctx, "python3", "-c", pythonForward)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return "", nil, err
		}
		port, err := bufio.NewReader(out).ReadString('\n')
		// The process is killed.
		return "127.0.0.1:" + strings.TrimSpace(port), func() error { _ = cmd.Wait(); return nil }, err
	}
	res, err := s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"python3", "-c", pythonForward}, Background: true, Timeout: time.Hour})
	if err != nil {
		return "", nil, err
	}
	read, err := s.Command(res.ExecID).Read(ctx, sandbox.ReadRequest{Wait: time.Minute})
	if err != nil || len(read.Chunks) == 0 {
		return "", nil, fmt.Errorf("no output from the server in the sandbox: %w", err)
	}
	port, err := strconv.ParseUint(strings.TrimSpace(string(read.Chunks[0].Data)), 10, 16)
	if err != nil {
		return "", nil, err
	}
	f, err := forward.Listen(s.Sandbox, []forward.Port{{Sandbox: uint16(port)}}, nil)
	if err != nil {
		return "", nil, err
	}
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	return f.Addrs()[0].String(), func() error { return <-served }, nil
}

// forwarded measures one server.
func (c *contest) forwarded(address string) (map[string]float64, error) {
	echo, err := say(address, "e")
	if err != nil {
		return nil, err
	}
	defer echo.Close()
	buf := make([]byte, 1)
	trip := func() error {
		if _, err := echo.Write(buf); err != nil {
			return err
		}
		_, err := io.ReadFull(echo, buf)
		return err
	}
	if _, err := series(50, trip); err != nil { // warm up
		return nil, err
	}
	s, err := series(max(2000*c.opts.scale/100, 20), trip)
	if err != nil {
		return nil, err
	}
	size := int64(max(300*c.opts.scale/100, 20)) << 20
	read, err := rate(size, func() error {
		conn, err := say(address, "s")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = io.CopyN(io.Discard, struct{ io.Reader }{conn}, size)
		return err
	})
	if err != nil {
		return nil, err
	}
	write, err := rate(size, func() error {
		conn, err := say(address, "t")
		if err != nil {
			return err
		}
		defer conn.Close()
		data := make([]byte, 1<<18)
		for sent := int64(0); sent < size; sent += int64(len(data)) {
			if _, err := conn.Write(data); err != nil {
				return err
			}
		}
		if err := conn.CloseWrite(); err != nil {
			return err
		}
		_, err = io.ReadFull(conn, data[:1]) // received when all data has arrived
		return err
	})
	return map[string]float64{
		"forward_rtt_ms": millis(s.quantile(.5)), "forward_read_mb_s": read, "forward_write_mb_s": write,
	}, err
}

// say connects and sends the selection byte.
func say(address, what string) (*net.TCPConn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	_, err = io.WriteString(conn, what)
	return conn.(*net.TCPConn), err // always a TCP connection
}

// rate returns the speed of f in MB per second. f transfers size bytes.
func rate(size int64, f func() error) (float64, error) {
	start := time.Now()
	err := f()
	return float64(size) / 1e6 / time.Since(start).Seconds(), err
}
