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
	maxLine     = 2 << 20          // bytes of a request
	smallLine   = 64 << 10         // bytes of a request that has to wait for nobody
	maxInFlight = 64               // requests that have no answer yet
	writeLimit  = 30 * time.Second // for a client that does not read its answers
	lineLimit   = 30 * time.Second // for the rest of a large request
)

// Bounds of all connections of a set.
const (
	maxPending = 4 * maxLine // bytes of the requests that have no answer yet
	// requestCost is what a byte of a request costs: as it came, and as parameters and arguments.
	requestCost = 3
	maxLarge    = 1 // large requests that are being received
	// answerCost is what a byte of a result costs while it is an answer: at most six, escaped.
	answerCost = 6
	maxAnswers = 4 << 20 // bytes of the answers that nobody has read yet; more where the limits of the calls ask for it
	// otherRequests is how many requests a second are listened to, besides the calls that the limits allow.
	otherRequests = 500
	requestUnit   = 8 << 10 // bytes for which a large request counts as one more
)

// load is what the connections of a set hold of the host, whatever code inside does.
type load struct {
	requests *rate.Limiter
	pending  *semaphore.Weighted // bytes of requests that are being handled
	large    chan struct{}       // requests that are large and being received
	answers  *semaphore.Weighted // bytes of answers that are not sent yet
	answered int64               // of these, all
	worst    int64               // of these, what a call may need
}

func newLoad(l Limits) *load {
	perSecond := int(l.PerSecond) + otherRequests
	worst := answerCost * (l.ResultKB<<10 + smallAnswer)
	all := max(maxAnswers, worst*l.Concurrent) // so that every call under way has room for its answer
	return &load{
		requests: rate.NewLimiter(rate.Limit(perSecond), perSecond), pending: semaphore.NewWeighted(maxPending),
		large: make(chan struct{}, maxLarge), answers: semaphore.NewWeighted(all), answered: all, worst: worst,
	}
}

// smallAnswer is the size of what an answer has besides its result.
const smallAnswer = 1 << 10

type linkKey struct{} // holds the *link of the connection that a request came on

// link is a connection of a command: a transport of the MCP library, and the connection that this makes of it. It reads a
// request when there is room for it and for its answer. A line is one request: lists of requests, whose answers would have
// to be kept until the last one, are not JSON-RPC of later versions any more.
type link struct {
	access *Access
	ctx    context.Context // of the connection; requests come under contexts of the MCP library
	cancel context.CancelFunc
	execID string
	span   trace.SpanContext

	c       net.Conn
	lines   *bufio.Reader
	slots   chan struct{} // held by requests that have no answer yet
	writing chan struct{} // held while an answer is written

	mu   sync.Mutex              // guards open
	open map[jsonrpc.ID]*request // nil once the connection is closed
}

// request is one that has no answer yet.
type request struct {
	*jsonrpc.Request
	read   func()
	extra  *mcp.RequestExtra // by which handlers are known to answer it
	size   int64             // held of load.pending
	answer int64             // held of load.answers
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
	settle = sync.OnceFunc(settle)
	admitted := false
	defer func() {
		if !admitted {
			settle()
		}
	}()
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
		err := l.admit(req, settle)
		admitted = err == nil
		return req, err
	case (req.Method == "notifications/cancelled" || req.Method == "notifications/initialized") && len(req.Params) < 4<<10:
		return req, nil
	}
	return nil, nil
}

var errTooLong = errors.New("a request is too long")

// bounded reports whether a request is small, but for the arguments of a call. All else the library builds, and keeps for a
// connection what its client says of itself.
func bounded(req *jsonrpc.Request) bool {
	return len(req.Params) <= smallLine || req.Method == methodCall && besidesArguments(req.Params) <= smallLine
}

// besidesArguments returns how many bytes of the parameters of a call, which are valid JSON, are not its arguments.
func besidesArguments(params []byte) int {
	depth, from, key, arguments, size := 0, 0, true, false, 0
	member := func(end int) {
		if !arguments {
			size += end - from
		}
		from, key, arguments = end, true, false
	}
	for i := 0; i < len(params); i++ {
		switch params[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 1 {
				member(i)
			}
		case '"':
			end := i + stringEnd(params[i:])
			if depth == 1 && key {
				key, arguments = false, string(params[i:end]) == `"arguments"`
			}
			i = end - 1
		}
	}
	member(len(params))
	return size
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

// admit waits for room for a request. read is called when the library has read it.
func (l *link) admit(req *jsonrpc.Request, read func()) error {
	r := &request{Request: req, read: read, extra: &mcp.RequestExtra{}, size: requestCost*int64(len(req.Params)) + 1024}
	select {
	case l.slots <- struct{}{}:
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
	if err := l.load().pending.Acquire(l.ctx, r.size); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil { // the library closes what it still reads from, and nobody would settle the request
		l.load().pending.Release(r.size)
		return net.ErrClosed
	}
	if l.open[req.ID] != nil {
		l.load().pending.Release(r.size)
		return errors.New("duplicate request ID")
	}
	req.Extra, l.open[req.ID] = r.extra, r
	return nil
}

// reserve waits for room for an answer to a request, as far as it is large, and reports whether there is any.
func (l *link) reserve(ctx context.Context, extra *mcp.RequestExtra, size int64) bool {
	size = min(size, l.load().answered)
	if l.load().answers.Acquire(ctx, size) != nil {
		return false
	}
	if !l.keep(extra, size) { // the connection has ended
		l.load().answers.Release(size)
		return false
	}
	return true
}

// ready waits for room for the answer to a call.
func (l *link) ready(ctx context.Context, extra *mcp.RequestExtra) bool {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return l.reserve(ctx, extra, l.load().worst)
}

// wasRead is called with a call that the library has read.
func (l *link) wasRead(extra *mcp.RequestExtra) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.open {
		if r.extra == extra {
			r.read()
		}
	}
}

// keep changes what a request holds for its answer, and reports whether it is still open.
func (l *link) keep(extra *mcp.RequestExtra, size int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.open {
		if r.extra != extra {
			continue
		}
		if r.answer > size {
			l.load().answers.Release(r.answer - size)
		}
		r.answer = size
		return true
	}
	return false
}

// settle returns what a request holds.
func (l *link) settle(r *request) {
	r.read()
	l.load().pending.Release(r.size)
	l.load().answers.Release(r.answer)
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
			defer func() {
				l.settle(r)
				<-l.slots
			}()
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
