package client

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// call is one request on a separate stream.
type call struct {
	conn  *Conn
	ctx   context.Context // context of the caller, for the duration of the call
	st    *yamux.Stream
	stop  func() bool  // stops watching ctx
	close func() error // closes st; waits for another caller that is closing it
}

// open sends a request. The caller must call end. more appends frames to the request, for the same write.
func (c *Conn) open(ctx context.Context, op wire.Op, req any, more ...func([]byte) ([]byte, error)) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out, err := wire.AppendRequest(make([]byte, 0, 1024), op, req)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeTooLarge, Launch: "too_long",
			Message: "the request is larger than the protocol allows: " + err.Error()}
	}
	for _, f := range more {
		if out, err = f(out); err != nil {
			return nil, err
		}
	}
	st, err := c.session.OpenStream()
	if err != nil {
		return nil, c.explain(err)
	}
	k := &call{conn: c, ctx: ctx, st: st, close: sync.OnceValue(st.Close)}
	k.stop = context.AfterFunc(ctx, k.abort)
	if err := k.write(out); err != nil {
		k.end()
		return nil, err
	}
	return k, nil
}

// abort makes pending reads and writes of the call fail and closes the stream.
func (k *call) abort() {
	_ = k.st.SetDeadline(time.Unix(1, 0)) // cannot fail
	_ = k.close()                         // the stream has no users
}

// end releases the call. The guest agent learns of a cancellation before it gets a later call, unless the stream is
// stuck.
func (k *call) end() {
	k.stop()
	if k.ctx.Err() == nil {
		_ = k.close() // if the connection is lost, later calls report the loss
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = k.close()
	}()
	select {
	case <-done:
	case <-time.After(tellWait):
	}
}

// tellWait is how long a canceled call waits until the cancellation was sent.
const tellWait = time.Second

func (k *call) write(p []byte) error {
	if _, err := k.st.Write(p); err != nil {
		return k.explain(err)
	}
	return nil
}

// read returns the next frame.
func (k *call) read(buf []byte) (wire.Frame, error) {
	f, err := wire.ReadFrame(k.st, buf)
	if err != nil {
		return f, k.explain(err)
	}
	if f.Kind != wire.KindError {
		return f, nil
	}
	e := new(wire.Error)
	if err := wire.Decode(f.Head, nil, e); err != nil {
		return f, protocolErrorf("error: %v", err)
	}
	return f, e
}

func (k *call) explain(err error) error {
	if cerr := k.ctx.Err(); cerr != nil {
		return cerr
	}
	return k.conn.explain(err)
}

// answer reads the response into resp. The guest agent reports a canceled call as failed, possibly before ctx ends
// here.
func (k *call) answer(resp any) error {
	f, err := k.read(nil)
	if err != nil {
		return cmp.Or(k.ctx.Err(), err)
	}
	return decodeAnswer(f, resp)
}

// keep reads the response of a call for a connection. The caller's context then no longer applies to the call. If keep
// or check fails, it ends the call.
func (k *call) keep(resp any, check func() error) error {
	err := k.answer(resp)
	if err == nil {
		err = check()
	}
	if err == nil && !k.stop() {
		err = k.ctx.Err()
	}
	if err != nil {
		k.end()
	}
	return err
}

func decodeAnswer(f wire.Frame, resp any) error {
	if f.Kind != wire.KindAnswer {
		return protocolErrorf("frame kind %d instead of an answer", f.Kind)
	}
	if err := wire.Decode(f.Head, f.Body, resp); err != nil {
		return protocolErrorf("answer: %v", err)
	}
	return nil
}

// roundTrip sends a request and reads the response.
func (c *Conn) roundTrip(ctx context.Context, op wire.Op, req, resp any) error {
	k, err := c.open(ctx, op, req)
	if err != nil {
		return err
	}
	defer k.end()
	return k.answer(resp)
}

// ask sends a request and returns the response after check has validated it.
func ask[T any](ctx context.Context, c *Conn, op wire.Op, req any, check func(*T) error) (res T, err error) {
	if err := c.roundTrip(ctx, op, req, &res); err != nil {
		return *new(T), err
	}
	return res, check(&res)
}
