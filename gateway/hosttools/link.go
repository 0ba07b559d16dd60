package hosttools

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/workcell-dev/workcell/internal/bound"
)

// Limits of one connection.
const (
	maxLine    = 2 << 20          // bytes of a request
	smallLine  = 64 << 10         // bytes of a request without a separate limit
	writeLimit = 30 * time.Second // for a client to read an answer
	lineLimit  = 30 * time.Second // for the rest of a large request
)

// Limits of all connections of a set.
const (
	// inFlight times Limits.Concurrent is the maximum number of requests without a written answer. This also limits the
	// memory for answers: a result has at most Limits.ResultKB, and a list has at most maxDefinitions.
	inFlight   = 2
	maxPending = 4 * maxLine // bytes of all unanswered requests
	// requestCost is the memory cost per byte of a request: the raw data, the parameters, and the arguments.
	requestCost = 3
	maxLarge    = 1 // number of large requests received concurrently
	// otherRequests is the number of accepted requests per second in addition to the call limits.
	otherRequests = 500
	requestUnit   = 8 << 10 // a large request counts as one more request for this many bytes
)

// load tracks the host resources used by the connections of a set. It limits them whatever code in the sandbox does.
type load struct {
	requests *rate.Limiter
	slots    chan struct{}       // requests without a written answer
	pending  *semaphore.Weighted // bytes of these requests
	large    chan struct{}       // large requests in transit
}

func newLoad(l Limits) *load {
	perSecond := int(l.PerSecond) + otherRequests
	return &load{
		requests: rate.NewLimiter(rate.Limit(perSecond), perSecond), slots: make(chan struct{}, inFlight*l.Concurrent),
		pending: semaphore.NewWeighted(maxPending), large: make(chan struct{}, maxLarge),
	}
}

type linkKey struct{} // holds the *link of a request's connection

// link is a connection of a command. It implements both the transport and the connection of the MCP SDK. It reads a
// request only if there is capacity for it. Each line is one request. Batches are not supported, because later JSON-RPC
// versions of MCP removed them and their answers would have to be kept until the last one.
type link struct {
	access *Access
	ctx    context.Context // of the connection; the SDK uses other contexts for requests
	cancel context.CancelFunc
	execID string
	span   trace.SpanContext

	c       net.Conn
	lines   *bufio.Reader
	writing chan struct{} // held while an answer is written

	mu   sync.Mutex              // guards open
	open map[jsonrpc.ID]*request // nil after the connection is closed
}

// request is an unanswered request. It holds a slot.
type request struct {
	*jsonrpc.Request
	size int64 // reserved part of load.pending
}

func (l *link) load() *load { return l.access.set.load }

// Connect returns the link itself.
func (l *link) Connect(context.Context) (mcp.Connection, error) { return l, nil }

// SessionID returns an empty string, because a connection is a session.
func (l *link) SessionID() string { return "" }

// Read returns the next request when there is capacity for it. It skips answers, because the server sends no requests.
func (l *link) Read(context.Context) (jsonrpc.Message, error) {
	for {
		if msg, err := l.next(); msg != nil || err != nil {
			return msg, err
		}
	}
}

// next receives a message. It returns nil for a skipped message.
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

// bounded reports whether a request is small, not counting the arguments of a call. The SDK decodes everything else,
// and keeps the client's description for the lifetime of a connection.
func bounded(req *jsonrpc.Request) bool {
	if len(req.Params) <= smallLine {
		return true
	}
	var call struct{ Arguments json.RawMessage }
	return req.Method == methodCall && json.Unmarshal(req.Params, &call) == nil &&
		len(req.Params)-len(call.Arguments) <= smallLine
}

// line reads a line. A large line needs one of a few slots, which settle frees, and must arrive within a time limit.
func (l *link) line() (line []byte, settle func(), err error) {
	settle = func() {}
	for large := false; ; {
		chunk, err := l.lines.ReadSlice('\n')
		line = append(line, chunk...)
		switch {
		case len(line) > maxLine:
			return nil, settle, errTooLong
		case errors.Is(err, io.EOF) && len(line) > 0, err == nil:
			err = nil
			if large {
				err = l.c.SetReadDeadline(time.Time{})
			}
			return line, settle, err
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, settle, err
		case len(line) <= smallLine || large:
			continue
		}
		if err := bound.Enter(l.ctx, l.load().large); err != nil {
			return nil, settle, err
		}
		large = true
		settle = func() { <-l.load().large }
		if err := l.c.SetReadDeadline(time.Now().Add(lineLimit)); err != nil {
			return nil, settle, err
		}
	}
}

// admit waits for capacity for a request.
func (l *link) admit(req *jsonrpc.Request) error {
	r := &request{Request: req, size: requestCost*int64(len(req.Params)) + 1024}
	if err := bound.Enter(l.ctx, l.load().slots); err != nil {
		return err
	}
	if err := l.load().pending.Acquire(l.ctx, r.size); err != nil {
		<-l.load().slots
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil { // the SDK closes connections while it reads, so nothing else would settle the request
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

// settle frees the resources of a request.
func (l *link) settle(r *request) {
	l.load().pending.Release(r.size)
	<-l.load().slots
}

// Write sends an answer and then frees the capacity of the request.
func (l *link) Write(_ context.Context, msg jsonrpc.Message) error {
	if res, ok := msg.(*jsonrpc.Response); ok {
		l.mu.Lock()
		r := l.open[res.ID]
		delete(l.open, res.ID) // before the client gets the answer and may reuse the id
		l.mu.Unlock()
		if r != nil {
			r.Params = nil // the SDK keeps the last request of a connection
			defer l.settle(r)
		}
	}
	err := l.send(msg)
	if err != nil { // unblock a Read waiting for answers
		l.cancel()
	}
	return err
}

// send writes a message. It fails if the peer does not read.
func (l *link) send(msg jsonrpc.Message) error {
	if err := bound.Enter(l.ctx, l.writing); err != nil {
		return err
	}
	defer func() { <-l.writing }()
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	if err := l.c.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	_, err = l.c.Write(append(data, '\n'))
	return err
}

// Close closes the connection and frees the resources of unanswered requests.
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
