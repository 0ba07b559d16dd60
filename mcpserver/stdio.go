package mcpserver

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/session/record"
)

// MaxMessageBytes bounds one message of a client, on stdio and HTTP. It takes a file of the policy's 10 MB as base64.
const MaxMessageBytes = 16 << 20

// ServeStdio serves one client, whose messages are lines of in, until it hangs up or ctx ends. Nothing but answers is
// written to out. It closes neither. What the client opened stays for Close or Detach. The end of in is no error.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	s.mu.Lock()
	sc, err := s.newScope(newRun(record.NamespaceMCP), localOwner, false, true)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	srv := s.build(always(sc), transportPipe)
	defer measureSession(context.WithoutCancel(ctx), time.Now(), transportPipe)
	conn := newLineConn(in, out)
	defer conn.Close()
	// The SDK waits for calls under way when ctx ends; these end with their scope.
	stop := context.AfterFunc(ctx, sc.cancel)
	defer stop()
	stopServer := context.AfterFunc(s.ctx, func() { conn.Close() })
	defer stopServer()
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

// hangUpGrace is how long answers may take to be written after the client hung up or the server is told to end.
const hangUpGrace = 5 * time.Second

// await waits for the end of serving. A client that takes no answers any more, but has not closed its end, must not
// keep the server: its sandboxes are still to be closed.
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

// lineTransport hands the one connection to the SDK.
type lineTransport struct{ conn *lineConn }

func (t lineTransport) Connect(context.Context) (mcp.Connection, error) { return t.conn, nil }

// lineConn carries messages as lines. The SDK's own ends at the first line that is no message, which leaves a client
// that made one mistake without its sandboxes; this one answers as JSON-RPC asks for and reads on.
type lineConn struct {
	messages chan jsonrpc.Message
	ended    chan struct{} // closed when reading ended, after err was set
	err      error         // why reading ended
	closed   chan struct{}
	once     sync.Once

	mu       sync.Mutex // serialises writers and guards underWay
	out      io.Writer
	underWay map[jsonrpc.ID]bool // requests that are not answered yet; true for those that the client cancelled
}

// newLineConn starts a goroutine that reads in until it ends. A read that nobody can interrupt, as of a terminal, keeps
// it after Close.
func newLineConn(in io.Reader, out io.Writer) *lineConn {
	c := &lineConn{
		messages: make(chan jsonrpc.Message), ended: make(chan struct{}), closed: make(chan struct{}), out: out, underWay: map[jsonrpc.ID]bool{},
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
}

// take passes a line on as a message, or answers its fault. An error reports that the connection is closed.
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
		fault = invalid("id is already used by a pending request") // to nobody: the id has one answer to come
	}
	if fault != nil {
		if fault.mute {
			return nil
		}
		return c.send(fault.encode())
	}
	if id, timeout := cancels(msg); timeout {
		return nil
	} else if id.IsValid() {
		c.cancel(id)
	}
	select {
	case c.messages <- msg:
		return nil
	case <-c.closed:
		return io.EOF
	}
}

// readLine returns the next line without its end. One that is longer than limit is read to its end and not kept.
func readLine(r *bufio.Reader, limit int) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if !long && len(line)+len(part) > limit+1 {
			line, long = nil, true
		}
		if !long {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return bytes.TrimRight(line, "\r\n"), long, err
	}
}

// Read returns the next message; io.EOF when the client hung up.
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

// begin notes a request; false when its id is in use. The SDK would drop such a request without a word.
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
	c.underWay[req.ID] = false
	return true
}

// cancel notes that the client waits for no answer to a request.
func (c *lineConn) cancel(id jsonrpc.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.underWay[id]; ok {
		c.underWay[id] = true
	}
}

// Write sends a message as one line, unless it answers a request that the client cancelled.
func (c *lineConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if resp, ok := msg.(*jsonrpc.Response); ok {
		c.mu.Lock()
		cancelled := c.underWay[resp.ID]
		delete(c.underWay, resp.ID)
		c.mu.Unlock()
		if cancelled {
			return nil
		}
	}
	line, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	return c.send(line)
}

func (c *lineConn) send(line []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.out.Write(append(line, '\n'))
	return err
}

// Close ends reading. It may be called more than once.
func (c *lineConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// SessionID is empty: there is one client.
func (c *lineConn) SessionID() string { return "" }
