package mcpsource

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// peer is the other end of a connection.
type peer struct {
	stop func()                // closes the connection and stops the program
	why  func(err error) error // adds the program's output to err; called after stop
}

// transport connects to the server. It sets broken when the output of a program or the session of an HTTP server ends.
func (s *source) transport(broken *atomic.Bool) (mcp.Transport, peer, error) {
	if len(s.server.Command) > 0 {
		t, p, err := s.program()
		return guarded{t, broken}, p, err
	}
	own := &http.Transport{}
	if usual, ok := http.DefaultTransport.(*http.Transport); ok { // unless the program replaced it
		own = usual.Clone()
	}
	client := &http.Client{
		Transport: &headers{own, s.server.Headers, broken},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("redirects are not followed, because they would send the headers to another server")
		},
	}
	t := &mcp.StreamableClientTransport{
		Endpoint: s.server.URL, HTTPClient: client, MaxEventSize: 2 * maxMessage, MaxRetries: 1,
		// The SDK would wait for the stream without a limit, and close the session if the server or a proxy closes it.
		DisableStandaloneSSE: true,
	}
	why := func(err error) error {
		for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
			if strings.HasSuffix(err.Error(), http.StatusText(status)) {
				return fmt.Errorf("%w: check the URL; the HTTP+SSE transport of revision 2024-11-05 is not supported", err)
			}
		}
		return err
	}
	return t, peer{own.CloseIdleConnections, why}, nil
}

// headers adds headers to requests and limits the size of answers. It sets broken if the server has ended the session.
type headers struct {
	next   http.RoundTripper
	add    map[string]Secret
	broken *atomic.Bool
}

// ignoredKey is the context key of a *atomic.Bool, which is set if the server ignored a message because it has ended
// the session.
type ignoredKey struct{}

func (h *headers) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	for name, value := range h.add {
		req.Header.Set(name, value.Reveal())
	}
	res, err := h.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	res.Body = &bounded{ReadCloser: res.Body}
	if res.StatusCode/100 != 2 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		res.Body = http.MaxBytesReader(nil, res.Body, 2*maxMessage) // the SDK reads it whole, and limits only events
	}
	if res.StatusCode < http.StatusBadRequest {
		return res, nil
	}
	body, _ := io.ReadAll(res.Body) // an incomplete body is not an answer
	res.Body.Close()
	msg, _ := jsonrpc.DecodeMessage(body)
	answer, _ := msg.(*jsonrpc.Response)
	// Some servers answer 400 or 410 in an ended session, or after a restart.
	ended := res.StatusCode == http.StatusGone || res.StatusCode == http.StatusBadRequest && lostSession.Match(body)
	switch failed := answer != nil && answer.Error != nil; {
	case req.Header.Get("Mcp-Session-Id") != "" && (res.StatusCode == http.StatusNotFound || ended && !failed):
		res.Body = http.NoBody // the SDK would take an error in the body for the answer, and keep the session
		h.broken.Store(true)   // set before the running calls get the error
		if ignored, ok := req.Context().Value(ignoredKey{}).(*atomic.Bool); ok && req.Method == http.MethodPost {
			ignored.Store(true)
		}
	case failed:
		res.Body = io.NopCloser(bytes.NewReader(body))
	default: // the SDK would end the session and all running calls
		return nil, fmt.Errorf("the server answered %d %s", res.StatusCode, http.StatusText(res.StatusCode))
	}
	return res, nil
}

// lostSession matches "No valid session ID provided", "Session not found", "Server not initialized", and similar texts.
var lostSession = regexp.MustCompile(`(?i)session.?id|session (not|has|is|was|expired|terminated)|` +
	`(invalid|expired|unknown) session|not initiali[sz]ed`)

var errTooLarge = errors.New("a message of the server is incomplete")

// stopWait is the maximum time for a program to exit after the end of the input.
const stopWait = 500 * time.Millisecond

// program starts the server in a new process group.
func (s *source) program() (mcp.Transport, peer, error) {
	cmd := exec.Command(s.server.Command[0], s.server.Command[1:]...)
	cmd.Dir = cmp.Or(s.server.Dir, string(filepath.Separator)) // never the working directory, see ReadConfig
	cmd.Env = append([]string{}, s.o.Environ...)               // must not be nil, which means this process's environment
	for name, value := range s.server.Env {
		cmd.Env = append(cmd.Env, name+"="+value.Reveal())
	}
	ownGroup(cmd)
	cmd.WaitDelay = stopWait
	input, stdin, err := os.Pipe()
	if err != nil {
		return nil, peer{}, err
	}
	defer input.Close() // the program has a copy
	cmd.Stdin = input
	out, outEnd := io.Pipe()
	errs, errEnd := io.Pipe()
	cmd.Stdout, cmd.Stderr = outEnd, errEnd
	if err := cmd.Start(); err != nil {
		stdin.Close() // nothing was written
		return nil, peer{}, err
	}
	ended, read := make(chan struct{}), make(chan struct{})
	var exit error
	go func() { // ends with the program, which stop kills
		exit = cmd.Wait()
		close(ended)
		outEnd.CloseWithError(io.EOF)
		errEnd.CloseWithError(exit)
	}()
	said := &output{s: s}
	go func() { // ends with the program
		defer close(read)
		said.stderr(errs)
	}()
	stop := sync.OnceFunc(func() {
		stdin.Close() // the program may have exited
		select {
		case <-ended:
		case <-time.After(stopWait):
		}
		killGroup(cmd) // kills leftover child processes too
		out.Close()
		<-ended
		<-read
	})
	why := func(err error) error {
		if exited, ok := errors.AsType[*exec.ExitError](exit); ok && exited.ExitCode() > 0 {
			err = exit // more helpful than the end of the output
		}
		said.mu.Lock()
		defer said.mu.Unlock()
		if len(said.last) == 0 {
			return err
		}
		return fmt.Errorf("%w; its last output: %s", err, strings.Join(said.last, " | "))
	}
	return &mcp.IOTransport{
		Reader: &bounded{ReadCloser: out, stray: func(line []byte) { said.add("stdout", line) }},
		Writer: impatient{stdin, s.server.Timeout}, MaxLineLength: 2 * maxMessage,
	}, peer{stop, why}, nil
}

// impatient is the input of a program. Writes fail if the program does not read in time.
type impatient struct {
	*os.File
	limit time.Duration
}

func (w impatient) Write(b []byte) (int, error) {
	if err := w.SetWriteDeadline(time.Now().Add(w.limit)); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return 0, err
	}
	return w.File.Write(b)
}

// Limits of a program's output besides messages.
const (
	maxStderrLine = 4 << 10 // maximum bytes of a logged line
	lastLines     = 3       // number of lines in an error
	maxShown      = 300     // characters per line in an error
)

// output logs a program's output besides messages, and keeps the last lines.
type output struct {
	s    *source
	mu   sync.Mutex
	last []string
}

func (o *output) add(stream string, line []byte) {
	text := o.s.redact(sanitize.Line(string(line)))
	o.s.o.Log.Info("an MCP server wrote", stream, text)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = append(o.last, sanitize.Cut(text, maxShown))
	o.last = o.last[max(0, len(o.last)-lastLines):]
}

func (o *output) stderr(r *io.PipeReader) {
	lines := bufio.NewReaderSize(r, maxStderrLine)
	for {
		line, cut, err := lines.ReadLine()
		if len(line) > 0 {
			o.add("stderr", line)
		}
		for cut && err == nil { // skip the rest of a long line
			_, cut, err = lines.ReadLine()
		}
		if err != nil {
			return
		}
	}
}

// guarded is a transport to refuse all requests of a server. It refuses them before it reads the next message, so a
// server blocks itself if it does not read the refusals. In the MCP SDK, the requests would pile up.
type guarded struct {
	mcp.Transport
	broken *atomic.Bool
}

func (g guarded) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := g.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return guardedConn{c, g.broken}, nil
}

type guardedConn struct {
	mcp.Connection
	broken *atomic.Bool
}

// Read returns the server's answers and the relevant notifications.
func (c guardedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		msg, err := c.Connection.Read(ctx)
		if err != nil {
			c.broken.Store(true) // set before the running calls get the error
			return nil, err
		}
		req, ok := msg.(*jsonrpc.Request)
		switch {
		case !ok, req.Method == "ping", req.Method == "notifications/tools/list_changed",
			req.Method == "notifications/subscriptions/acknowledged":
			return msg, nil
		case req.IsCall():
			if err := c.Write(ctx, &jsonrpc.Response{ID: req.ID, Error: refusal(req.Method)}); err != nil {
				return nil, err
			}
		}
	}
}
