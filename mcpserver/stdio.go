package mcpserver

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/session/record"
)

// MaxMessageBytes is the maximum size of one client message, on stdio and HTTP. It is large enough for a base64-encoded
// file of DefaultPolicy's 10 MiB.
const MaxMessageBytes = 16 << 20

// ServeStdio serves one client until the client closes in or ctx is done. Each line of in is a message. Only protocol
// messages are written to out. ServeStdio closes neither in nor out. The client's sandboxes stay open until Close or
// Detach. The end of in is not an error.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	s.mu.Lock()
	sc, err := s.newScope(newRun(record.NamespaceMCP), localOwner, false)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	srv := s.build(always(sc), transportPipe)
	defer measureSession(context.WithoutCancel(ctx), time.Now(), transportPipe)
	conn := newLineConn(in, out)
	defer conn.Close()
	// When ctx is done, the SDK waits for running calls. They end with their scope.
	defer context.AfterFunc(ctx, sc.cancel)()
	defer context.AfterFunc(s.ctx, func() { conn.Close() })()
	ran := make(chan error, 1)
	go func() { ran <- srv.Run(ctx, lineTransport{conn}) }()
	err = conn.await(ctx, ran, sc.cancel)
	switch {
	case errors.Is(err, io.EOF), s.ctx.Err() != nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// answerGrace is the maximum time for calls to end after the client hung up. hangUpGrace is the maximum time to write
// the remaining answers after that, or after the server was stopped.
const (
	answerGrace = 10 * time.Second
	hangUpGrace = 5 * time.Second
)

// await waits until serving ends. A client may keep the connection open without reading answers. It must not block the
// server, which still has to close the client's sandboxes.
func (c *lineConn) await(ctx context.Context, ran <-chan error, cancel func()) error {
	select {
	case err := <-ran:
		return err
	case <-c.ended:
	case <-c.closed:
	case <-ctx.Done():
	}
	cancel()
	select {
	case err := <-ran:
		return err
	case <-time.After(hangUpGrace):
		return io.EOF
	}
}

// lineTransport passes the only connection to the SDK.
type lineTransport struct{ conn *lineConn }

func (t lineTransport) Connect(context.Context) (mcp.Connection, error) { return t.conn, nil }

// lineConn sends and receives messages as lines. The SDK's own connection ends at the first invalid line, so a client
// would lose the sandboxes after one mistake. lineConn answers the line as JSON-RPC requires and continues.
type lineConn struct {
	messages chan jsonrpc.Message
	answered chan struct{} // receives after answers
	ended    chan struct{} // closed when reading ended and answerGrace is over, after err was set
	err      error         // reason for the end of reading
	closed   chan struct{}
	once     sync.Once

	writing  sync.Mutex // serializes writers, which may block forever
	out      io.Writer
	mu       sync.Mutex // guards underWay
	underWay map[jsonrpc.ID]*unanswered
}

// unanswered is a request without an answer yet. If the client canceled the request, it expects neither an answer nor
// progress.
type unanswered struct {
	params    json.RawMessage
	cancelled bool
	token     any // progress token of a canceled request
}

// newLineConn starts a goroutine to read in until the end. If a read cannot be interrupted, for example from a
// terminal, the goroutine continues after Close.
func newLineConn(in io.Reader, out io.Writer) *lineConn {
	c := &lineConn{
		messages: make(chan jsonrpc.Message), ended: make(chan struct{}), closed: make(chan struct{}),
		answered: make(chan struct{}, 1), out: out, underWay: map[jsonrpc.ID]*unanswered{},
	}
	go c.readLoop(in)
	return c
}

func (c *lineConn) readLoop(in io.Reader) {
	defer close(c.ended)
	r := bufio.NewReaderSize(in, 64<<10)
	for c.err == nil {
		line, long, err := readLine(r, MaxMessageBytes)
		c.err = cmp.Or(c.take(line, long), err)
	}
	// The SDK sends no answers after the end.
	for late := time.After(answerGrace); errors.Is(c.err, io.EOF) && c.owes(); {
		select {
		case <-c.answered:
		case <-c.closed:
			return
		case <-late:
			return
		}
	}
}

// owes reports whether the client waits for an answer.
func (c *lineConn) owes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range c.underWay {
		if !u.cancelled {
			return true
		}
	}
	return false
}

// take passes a line on as a message, or answers the fault. An error means the connection is closed.
func (c *lineConn) take(line []byte, long bool) error {
	var msg jsonrpc.Message
	var fault *fault
	switch {
	case long:
		fault = invalid("the message is longer than %d bytes", MaxMessageBytes)
	case len(bytes.TrimSpace(line)) == 0:
		return nil
	default:
		msg, fault = decodeMessage(line)
	}
	if fault == nil && !c.begin(msg) {
		// Sent without an id, because the id belongs to the pending request.
		fault = invalid("id is already used by a pending request")
	}
	if fault != nil {
		if fault.mute {
			return nil
		}
		return c.send(fault.encode())
	}
	id, timeout := cancels(msg)
	if c.cancel(id); timeout {
		return nil
	}
	select {
	case c.messages <- msg:
		return nil
	case <-c.closed:
		return io.EOF
	}
}

// readLine returns the next line without the line end. It skips a line longer than limit and sets long.
func readLine(r *bufio.Reader, limit int) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if !long && len(line)+len(part) > limit+1 {
			line, long = nil, true
		}
		if !long {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\r\n"), long, err
		}
	}
}

// Read returns the next message, or io.EOF if the client hung up.
func (c *lineConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case msg := <-c.messages:
		return msg, nil
	case <-c.ended:
		return nil, c.err
	case <-c.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// begin records a request. It returns false if the request's id is in use. The SDK would silently drop such a request.
func (c *lineConn) begin(msg jsonrpc.Message) bool {
	req, ok := msg.(*jsonrpc.Request)
	if !ok || !req.IsCall() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, twice := c.underWay[req.ID]; twice {
		return false
	}
	c.underWay[req.ID] = &unanswered{params: req.Params}
	return true
}

// cancel records a request without an expected answer.
func (c *lineConn) cancel(id jsonrpc.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u := c.underWay[id]; u != nil {
		var p mcp.CallToolParamsRaw
		_ = json.Unmarshal(u.params, &p) // invalid parameters have no token
		u.cancelled, u.token = true, p.GetProgressToken()
	}
}

// unwanted reports whether a message belongs to a canceled request, and forgets an answered request.
func (c *lineConn) unwanted(msg jsonrpc.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch msg := msg.(type) {
	case *jsonrpc.Response:
		u := c.underWay[msg.ID]
		delete(c.underWay, msg.ID)
		select {
		case c.answered <- struct{}{}:
		default: // readLoop has not seen the previous one yet
		}
		return u != nil && u.cancelled
	case *jsonrpc.Request:
		var p mcp.ProgressNotificationParams
		if msg.Method != "notifications/progress" || json.Unmarshal(msg.Params, &p) != nil {
			return false
		}
		for _, u := range c.underWay {
			if u.cancelled && reflect.DeepEqual(u.token, p.ProgressToken) {
				return true
			}
		}
	}
	return false
}

// Write sends a message as one line. It drops answers to canceled requests, and their progress.
func (c *lineConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.unwanted(msg) {
		return nil
	}
	line, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	if err = c.send(line); err != nil {
		c.Close() // the client cannot receive answers
	}
	return err
}

func (c *lineConn) send(line []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := c.out.Write(append(line, '\n'))
	return err
}

// Close stops reading. It may be called more than once.
func (c *lineConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// SessionID returns an empty string, because there is only one client.
func (c *lineConn) SessionID() string { return "" }
