// Package client implements the host side of the guest protocol (docs/contributing/guest-protocol.md).
//
// A [Conn] needs an unshared stream to a guest agent. It does not trust the guest agent: it validates every size, ID,
// and state in a response before it uses them.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Timeouts of a connection. If a guest agent does not answer a heartbeat within heartbeatTimeout, the connection is
// lost.
const (
	handshakeTimeout  = 10 * time.Second
	heartbeatInterval = 10 * time.Second
	heartbeatTimeout  = 15 * time.Second
	closeTimeout      = 3 * time.Second
	streamCloseTime   = 30 * time.Second
	receiveWindow     = 1 << 20
	streamOpenTime    = 30 * time.Second
)

// Conn is a connection to a guest agent. It is safe for concurrent use. If the context of a call ends, the call returns
// immediately with the context's error. If the stream is stuck, or the guest agent has 256 unanswered requests, the
// call returns within 30 seconds.
type Conn struct {
	link    *hostLink
	session *yamux.Session
	hello   wire.Hello

	closing sync.Once
}

// New takes ownership of rw and reads the guest agent's hello, for at most 10 seconds. If New fails, it closes rw. The
// Conn's goroutines end with Close or when the stream ends.
func New(ctx context.Context, rw io.ReadWriteCloser) (*Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout,
		fmt.Errorf("%w within %v", ErrNoAnswer, handshakeTimeout))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = rw.Close() }) // unblocks the handshake, which reports the cause
	c, err := handshake(rw)
	if !stop() || err != nil {
		_ = rw.Close() // the error below contains more information
		if c != nil {
			_ = c.Close()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("guest handshake: %w", err)
	}
	return c, nil
}

func handshake(rw io.ReadWriteCloser) (*Conn, error) {
	if _, err := rw.Write(wire.AppendMarker(nil, wire.FromHost, wire.ProtocolVersion)); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrConnLost, err)
	}
	link := newHostLink(rw)
	if err := link.awaitAck(); err != nil {
		return nil, err
	}
	hello, err := readHello(link)
	if err != nil {
		return nil, err
	}
	link.guarded = true
	session, err := yamux.Client(link, muxConfig())
	if err != nil {
		return nil, err
	}
	return &Conn{link: link, session: session, hello: hello}, nil
}

func readHello(link *hostLink) (wire.Hello, error) {
	var hello wire.Hello
	f, err := wire.ReadFrame(link, nil)
	if err != nil {
		link.fail(protocolErrorf("%v", err)) // unless the stream failed
		return hello, link.reason()
	}
	if f.Kind != wire.KindAnswer {
		return hello, protocolErrorf("frame kind %d instead of a hello", f.Kind)
	}
	if err := wire.Decode(f.Head, f.Body, &hello); err != nil {
		return hello, protocolErrorf("hello: %v", err)
	}
	if hello.PID <= 0 || hello.BootID == "" || len(hello.BootID) > 64 || hello.Workdir == "" {
		return hello, protocolErrorf("hello without identity")
	}
	return hello, nil
}

func muxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.KeepAliveInterval = heartbeatInterval
	cfg.ConnectionWriteTimeout = heartbeatTimeout
	cfg.StreamCloseTimeout = streamCloseTime
	// A guest agent answering heartbeats but no requests is also lost. The multiplexer opens 256 streams without a
	// response and then waits, regardless of the caller's context.
	cfg.StreamOpenTimeout = streamOpenTime
	cfg.MaxStreamWindowSize = receiveWindow
	return cfg
}

// Hello returns the guest agent's hello, which describes the state at the start of the connection.
func (c *Conn) Hello() wire.Hello { return c.hello }

// Done returns a channel, closed when the connection has ended, with or without a call of Close.
func (c *Conn) Done() <-chan struct{} { return c.session.CloseChan() }

// Err returns the reason why the connection ended, or nil if it is open.
func (c *Conn) Err() error {
	if c.session.IsClosed() {
		return c.link.reason()
	}
	return nil
}

// Close ends the connection and all calls. Attached commands are killed; recorded commands keep running. Calling Close
// again has no effect.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		c.link.fail(errClosed)
		bye := make(chan struct{})
		go func() { _ = c.session.GoAway(); close(bye) }() // fails if the connection has ended
		select {
		case <-bye:
		case <-time.After(closeTimeout): // the stream is stuck; closing it below frees the goroutine
		}
		_ = c.session.Close() // closes the stream; no data can be lost
		<-bye
	})
	return nil
}

// explain returns the reason behind an error of a stream.
func (c *Conn) explain(err error) error {
	if c.session.IsClosed() {
		return c.link.reason()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errUnanswered
	}
	if errors.Is(err, wire.ErrFrame) {
		return protocolErrorf("%v", err)
	}
	return fmt.Errorf("%w: %v", ErrConnLost, err)
}
