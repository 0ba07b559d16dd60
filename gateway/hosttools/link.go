package hosttools

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Bounds of one connection.
const (
	maxLine    = 2 << 20          // bytes of a request
	smallLine  = 64 << 10         // bytes of a request that is received at once
	writeLimit = 30 * time.Second // for a client that does not read its answers
	lineLimit  = 30 * time.Second // for the rest of a large request
)

// Bounds of all connections of a set.
const (
	// inFlight times Limits.Concurrent requests have no written answer. This bounds the answers: a result has at most
	// Limits.ResultKB, a list at most maxDefinitions.
	inFlight   = 2
	maxPending = 4 * maxLine // bytes of the requests that have no answer yet
	// requestCost is what a byte of a request costs: as it came, and as parameters and arguments.
	requestCost = 3
	maxLarge    = 1 // large requests that are being received
	// otherRequests is how many requests a second are listened to, besides the calls that the limits allow.
	otherRequests = 500
	requestUnit   = 8 << 10 // bytes for which a large request counts as one more
)

// load is what the connections of a set hold of the host, whatever code inside does.
type load struct {
	requests *rate.Limiter
	slots    chan struct{}       // requests whose answer is not written yet
	pending  *semaphore.Weighted // bytes of these requests
	large    chan struct{}       // requests that are large and being received
}

func newLoad(l Limits) *load {
	perSecond := int(l.PerSecond) + otherRequests
	return &load{
		requests: rate.NewLimiter(rate.Limit(perSecond), perSecond), slots: make(chan struct{}, inFlight*l.Concurrent),
		pending: semaphore.NewWeighted(maxPending), large: make(chan struct{}, maxLarge),
	}
}

type linkKey struct{} // holds the *link of the connection that a request came on

// link is a connection of a command: a transport of the MCP library, and the connection that this makes of it. It reads
// a request when there is room for it. A line is one request: lists of requests, whose answers would have to be kept
// until the last one, are not JSON-RPC of later versions any more.
type link struct {
	access *Access
	ctx    context.Context // of the connection; requests come under contexts of the MCP library
	cancel context.CancelFunc
	execID string
	span   trace.SpanContext

	c       net.Conn
	lines   *bufio.Reader
	writing chan struct{} // held while an answer is written

	mu   sync.Mutex              // guards open
	open map[jsonrpc.ID]*request // nil once the connection is closed
}

// request has no answer yet. It holds a slot.
type request struct {
	*jsonrpc.Request
	size int64 // held of load.pending
}

func (l *link) load() *load { return l.access.set.load }

// Connect returns the link itself.
func (l *link) Connect(context.Context) (mcp.Connection, error) { return l, nil }

// SessionID returns nothing: a connection is a session.
func (l *link) SessionID() string { return "" }

// Read returns the next request once there is room for it. Answers are no business of a client: nothing was asked.
func (l *link) Read(context.Context) (jsonrpc.Message, error) {
	for {
		if msg, err := l.next(); msg != nil || err != nil {
			return msg, err
		}
	}
}

// next receives a message; nil for one that is passed over.
func (l *link) next() (jsonrpc.Message, error) {
	line, settle, err := l.line()
	defer settle()
	if err != nil {
		return nil, err
	}
	if err := l.load().requests.WaitN(l.ctx, 1+len(line)/requestUnit); err != nil || len(bytes.TrimSpace(line)) == 0 {
		return nil, err
	}
	msg, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		return nil, err
	}
	req, ok := msg.(*jsonrpc.Request)
	switch {
	case !ok:
		return nil, nil
	case req.IsCall() && !bounded(req):
		return nil, errTooLong
	case req.IsCall():
		return req, l.admit(req)
	case (req.Method == "notifications/cancelled" || req.Method == "notifications/initialized") && len(req.Params) < 4<<10:
		return req, nil
	}
	return nil, nil
}

var errTooLong = errors.New("a request is too long")

// bounded reports whether a request is small, but for the arguments of a call. All else the library builds, and keeps
// for a connection what its client says of itself.
func bounded(req *jsonrpc.Request) bool {
	if len(req.Params) <= smallLine {
		return true
	}
	var call struct{ Arguments json.RawMessage }
	return req.Method == methodCall && json.Unmarshal(req.Params, &call) == nil &&
		len(req.Params)-len(call.Arguments) <= smallLine
}

// line receives a line. A large one takes one of few places, which settle returns, and has to come within a time.
func (l *link) line() (line []byte, settle func(), err error) {
	settle = func() {}
	for large := false; ; {
		chunk, err := l.lines.ReadSlice('\n')
		line = append(line, chunk...)
		switch {
		case len(line) > maxLine:
			return nil, settle, errTooLong
		case errors.Is(err, io.EOF) && len(line) > 0, err == nil:
			if large {
				err = l.c.SetReadDeadline(time.Time{})
			}
			return line, settle, ignoreEOF(err)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, settle, err
		case len(line) <= smallLine || large:
			continue
		}
		select {
		case l.load().large <- struct{}{}:
		case <-l.ctx.Done():
			return nil, settle, l.ctx.Err()
		}
		large = true
		settle = func() { <-l.load().large }
		if err := l.c.SetReadDeadline(time.Now().Add(lineLimit)); err != nil {
			return nil, settle, err
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// admit waits for room for a request.
func (l *link) admit(req *jsonrpc.Request) error {
	r := &request{Request: req, size: requestCost*int64(len(req.Params)) + 1024}
	select {
	case l.load().slots <- struct{}{}:
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
	if err := l.load().pending.Acquire(l.ctx, r.size); err != nil {
		<-l.load().slots
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil { // the library closes what it still reads from, and nobody would settle the request
		l.settle(r)
		return net.ErrClosed
	}
	if l.open[req.ID] != nil {
		l.settle(r)
		return errors.New("duplicate request ID")
	}
	l.open[req.ID] = r
	return nil
}

// settle returns what a request holds.
func (l *link) settle(r *request) {
	l.load().pending.Release(r.size)
	<-l.load().slots
}

// Write sends an answer, after which there is room for another request.
func (l *link) Write(_ context.Context, msg jsonrpc.Message) error {
	if res, ok := msg.(*jsonrpc.Response); ok {
		l.mu.Lock()
		r := l.open[res.ID]
		delete(l.open, res.ID) // before the client has the answer and may use the id again
		l.mu.Unlock()
		if r != nil {
			r.Params = nil // the library keeps the last request of a connection
			defer l.settle(r)
		}
	}
	err := l.send(msg)
	if err != nil { // a Read that waits for room must not wait for answers that nobody writes any more
		l.cancel()
	}
	return err
}

// send writes a message, and gives up on a peer that does not read.
func (l *link) send(msg jsonrpc.Message) error {
	select {
	case l.writing <- struct{}{}:
		defer func() { <-l.writing }()
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
	parts, err := encode(msg)
	if err != nil {
		return err
	}
	if err := l.c.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	for _, part := range parts {
		if _, err := l.c.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// encode returns the line of a message, in parts. A large result is one of them, and not copied.
func encode(msg jsonrpc.Message) ([][]byte, error) {
	if res, ok := msg.(*jsonrpc.Response); ok && len(res.Result) > smallLine && bytes.IndexByte(res.Result, '\n') < 0 {
		id, err := json.Marshal(res.ID.Raw())
		return [][]byte{fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":`, id), res.Result, []byte("}\n")}, err
	}
	data, err := jsonrpc.EncodeMessage(msg)
	return [][]byte{append(data, '\n')}, err
}

// Close ends the connection, and returns what requests without an answer hold.
func (l *link) Close() error {
	err := l.c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.open {
		l.settle(r)
	}
	l.open = nil
	return err
}
