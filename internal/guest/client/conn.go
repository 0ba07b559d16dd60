// Package client is the host's side of the guest protocol (docs/guest-protocol.md).
//
// A [Conn] runs over a stream that reaches a guest and that no other host uses. It treats the guest as a stranger:
// every size, id and state in an answer is checked before it is used.
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

// Times of a connection. A guest that does not answer a heartbeat within heartbeatTimeout is lost.
const (
	handshakeTimeout  = 10 * time.Second
	heartbeatInterval = 10 * time.Second
	heartbeatTimeout  = 15 * time.Second
	closeTimeout      = 3 * time.Second
	streamCloseTime   = 30 * time.Second
	receiveWindow     = 1 << 20
	streamOpenTime    = 30 * time.Second
)

// Conn is a connection to a guest. All methods may be called concurrently. A call whose context ends returns at once
// with the context's error, or, from a guest that has left 256 requests unanswered, within half a minute.
type Conn struct {
	link    *hostLink
	session *yamux.Session
	hello   wire.Hello

	closing sync.Once
}

// New takes over rw and reads the guest's hello, for at most 10 s. It closes rw when it fails. The Conn's goroutines
// end with Close or when the stream ends.
func New(ctx context.Context, rw io.ReadWriteCloser) (*Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout,
		fmt.Errorf("%w within %v", ErrNoAnswer, handshakeTimeout))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = rw.Close() }) // unblocks the handshake, which reports the cause
	c, err := handshake(rw)
	if !stop() || err != nil {
		_ = rw.Close() // the error below says more
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
		return hello, link.explain(err)
	}
	if f.Kind != wire.KindAnswer {
		return hello, protocolErrorf("frame kind %d instead of a hello", f.Kind)
	}
	if err := wire.Decode(f.Head, f.Body, &hello); err != nil {
		return hello, protocolErrorf("hello: %v", err)
	}
	return hello, checkHello(hello)
}

func muxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.KeepAliveInterval = heartbeatInterval
	cfg.ConnectionWriteTimeout = heartbeatTimeout
	cfg.StreamCloseTimeout = streamCloseTime
	// A guest that answers heartbeats but no request is lost as well: the multiplexer opens 256 streams without an
	// answer and then waits, whatever the caller's context.
	cfg.StreamOpenTimeout = streamOpenTime
	cfg.MaxStreamWindowSize = receiveWindow
	return cfg
}

// Hello returns the guest's description of itself from when the connection began.
func (c *Conn) Hello() wire.Hello { return c.hello }

// Done is closed when the connection has ended, by Close or by itself.
func (c *Conn) Done() <-chan struct{} { return c.session.CloseChan() }

// Err returns why the connection ended; nil while it lives.
func (c *Conn) Err() error {
	select {
	case <-c.session.CloseChan():
		return c.link.reason()
	default:
		return nil
	}
}

// Close ends the connection and every call on it. Attached commands end with it, recorded ones run on. Idempotent.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		c.link.fail(errClosed)
		bye := make(chan struct{})
		go func() { _ = c.session.GoAway(); close(bye) }() // fails when the connection has ended
		select {
		case <-bye:
		case <-time.After(closeTimeout): // the stream is stuck; closing it below frees the goroutine
		}
		_ = c.session.Close() // closes the stream; there is nothing left to lose
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
