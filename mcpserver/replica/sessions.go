package replica

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
)

// Headers of the transport.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
)

// firstStateless is the first revision without sessions.
const firstStateless = "2026-07-28"

// Times of the conversation among servers.
const (
	longCall  = 5 * time.Second // a call that takes longer is a use of its session at its end, too
	hearAgain = time.Second     // before the next attempt to hear of others
)

// Options configure New.
type Options struct {
	Registry Registry
	Origin   string      // names this server among those that share the registry
	Server   *mcp.Server // answers
	Limits   Limits      // of sessions
	Idle     time.Duration
	// Bind is called with a session before its first message.
	Bind func(ss *mcp.ServerSession, e Entry) error
	// Ended is called with the runs of sessions and conversations that are over, whichever server ended them.
	Ended func(runs []string)
	// Logger is for operators.
	Logger *slog.Logger
}

// Sessions serves the sessions of all servers that share a registry. Methods may be called concurrently.
type Sessions struct {
	opts Options

	mu   sync.Mutex // guards open, and what its values count
	open map[string]*live
}

// live is a session as far as this server has to do with it: the others have what they need themselves.
type live struct {
	entry     Entry
	session   *mcp.ServerSession
	transport *mcp.StreamableServerTransport
	calls     int // under way
	streams   int // of events, which are no use of the session
	used      time.Time
}

// New makes the handler of sessions. Run does its work in the background.
func New(o Options) *Sessions { return &Sessions{opts: o, open: map[string]*live{}} }

// Begin answers the request that begins a session of an owner; params are its parameters.
func (s *Sessions) Begin(w http.ResponseWriter, r *http.Request, owner string, params []byte) {
	if !acceptable(w, r) {
		return
	}
	e := Entry{ID: rand.Text(), Owner: owner, Run: "run_" + strings.ToLower(rand.Text()), Origin: s.opts.Origin, Params: params}
	if err := s.opts.Registry.Begin(r.Context(), e, s.opts.Limits); err != nil {
		s.refuse(w, err)
		return
	}
	l, err := s.connect(r.Context(), e, nil)
	if err == nil {
		s.serve(w, r, l)
	} else {
		s.refuse(w, err)
	}
	if err != nil || l.session.InitializeParams() == nil { // it failed
		s.end(context.WithoutCancel(r.Context()), e.ID)
	}
}

// Serve answers a request of an owner within a session. call reports whether the request is one that is answered; body is what
// else was sent.
func (s *Sessions) Serve(w http.ResponseWriter, r *http.Request, owner string, call bool, body []byte) {
	if !acceptable(w, r) {
		return
	}
	ctx, id := r.Context(), r.Header.Get(headerSession)
	e, err := Entry{}, errNoSession
	if isID(id) { // what else a client sends is nothing for a database
		e, err = s.opts.Registry.Use(ctx, id, owner)
	}
	if err != nil {
		if errors.Is(err, backend.ErrNotFound) {
			s.drop(id)
		}
		s.refuse(w, err)
		return
	}
	if r.Method == http.MethodDelete {
		s.end(context.WithoutCancel(ctx), id)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	l, err := s.find(ctx, e)
	if err != nil {
		s.refuse(w, err)
		return
	}
	s.serve(w, r, l)
	if r.Method == http.MethodPost && !call {
		s.tell(context.WithoutCancel(ctx), Message{Session: id, Body: string(body)})
	}
}

// errNoSession is the answer for an id that nobody made.
var errNoSession = fmt.Errorf("%w: no such session", backend.ErrNotFound)

// isID reports whether a text has the form of ids of sessions, that of rand.Text.
func isID(text string) bool {
	return len(text) > 0 && len(text) <= 64 && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// serve passes a request on to its session.
func (s *Sessions) serve(w http.ResponseWriter, r *http.Request, l *live) {
	if r.Method != http.MethodPost {
		s.count(&l.streams, l, 1)
		defer s.count(&l.streams, l, -1)
		l.transport.ServeHTTP(w, r)
		return
	}
	began := time.Now()
	s.count(&l.calls, l, 1)
	defer s.count(&l.calls, l, -1)
	l.transport.ServeHTTP(w, r)
	if time.Since(began) > min(longCall, s.opts.Idle/4) {
		s.use(context.WithoutCancel(r.Context()), l.entry)
	}
}

func (s *Sessions) count(what *int, l *live, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*what += n
	l.used = time.Now()
}

// use notes the use of a session, whose end here it is if it is over.
func (s *Sessions) use(ctx context.Context, e Entry) {
	switch _, err := s.opts.Registry.Use(ctx, e.ID, e.Owner); {
	case errors.Is(err, backend.ErrNotFound):
		s.drop(e.ID)
	case err != nil && ctx.Err() == nil:
		s.opts.Logger.WarnContext(ctx, "cannot note the use of a session", "error", err)
	}
}

// find returns a session, made of what the registry has where this server has not had to do with it yet.
func (s *Sessions) find(ctx context.Context, e Entry) (*live, error) {
	s.mu.Lock()
	l := s.open[e.ID]
	if l != nil {
		l.used = time.Now()
	}
	s.mu.Unlock()
	if l != nil {
		return l, nil
	}
	state := &mcp.ServerSessionState{InitializeParams: &mcp.InitializeParams{}, InitializedParams: &mcp.InitializedParams{}}
	if err := json.Unmarshal(e.Params, state.InitializeParams); err != nil {
		return nil, err
	}
	state.NegotiatedProtocolVersion = negotiated(state.InitializeParams.ProtocolVersion)
	return s.connect(ctx, e, state)
}

// versions returns the revisions with sessions, the newest first.
func versions() []string {
	return slices.DeleteFunc(mcp.SupportedProtocolVersions(), func(v string) bool { return v >= firstStateless })
}

// negotiated returns the revision of a session whose client asked for one.
func negotiated(asked string) string {
	if known := versions(); !slices.Contains(known, asked) {
		return known[0]
	}
	return asked
}

// connect makes a session here. Of several requests that need it at once, one makes it.
func (s *Sessions) connect(ctx context.Context, e Entry, state *mcp.ServerSessionState) (*live, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.open[e.ID]; l != nil {
		return l, nil
	}
	t := &mcp.StreamableServerTransport{SessionID: e.ID}
	ss, err := s.opts.Server.Connect(ctx, newOwnIDs(t), &mcp.ServerSessionOptions{State: state})
	if err != nil {
		return nil, err
	}
	if err := s.opts.Bind(ss, e); err != nil {
		go func() { _ = ss.Close() }() // nobody has it
		return nil, err
	}
	l := &live{entry: e, session: ss, transport: t, used: time.Now()}
	s.open[e.ID] = l
	go func() {
		_ = ss.Wait() // whatever ended it
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[e.ID] == l {
			delete(s.open, e.ID)
		}
	}()
	return l, nil
}

// drop ends a session as far as this server has to do with it.
func (s *Sessions) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(id)
}

// remove is drop for who holds the lock.
func (s *Sessions) remove(id string) {
	if l := s.open[id]; l != nil {
		delete(s.open, id)
		go func() { _ = l.session.Close() }() // waits for calls under way
	}
}

// end ends a session for all servers.
func (s *Sessions) end(ctx context.Context, id string) {
	ended, err := s.opts.Registry.End(ctx, id)
	if err != nil {
		s.opts.Logger.ErrorContext(ctx, "cannot end a session; it ends when it was idle for its time", "error", err)
	}
	s.Over(ctx, ended)
}

// Over tells all servers of entries that were ended.
func (s *Sessions) Over(ctx context.Context, ended []Entry) {
	if len(ended) == 0 {
		return
	}
	s.ended(Runs(ended))
	for some := range slices.Chunk(Runs(ended), 100) {
		s.tell(ctx, Message{Ended: some})
	}
}

// ended ends what this server has of runs that are over.
func (s *Sessions) ended(runs []string) {
	s.mu.Lock()
	var ids []string
	for id, l := range s.open {
		if slices.Contains(runs, l.entry.Run) {
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	s.opts.Ended(runs)
	for _, id := range ids {
		s.drop(id)
	}
}

func (s *Sessions) tell(ctx context.Context, m Message) {
	m.From = s.opts.Origin
	err := s.opts.Registry.Tell(ctx, m)
	level := slog.LevelWarn
	if errors.Is(err, ErrTooLong) { // a client's doing
		level = slog.LevelDebug
	}
	if err != nil && ctx.Err() == nil {
		s.opts.Logger.Log(ctx, level, "cannot pass a message on to the other servers", "error", err)
	}
}

// Run ends idle sessions, keeps those with calls under way, and hears of what other servers do, until ctx ends.
func (s *Sessions) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.hear(ctx) })
	defer wg.Wait()
	ticker := time.NewTicker(max(min(time.Minute, s.opts.Idle/4), time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.sweep(ctx)
		}
	}
}

// sweep ends idle sessions. What nobody has used here for as long is dropped: it is there again with its next request.
func (s *Sessions) sweep(ctx context.Context) {
	s.mu.Lock()
	var busy []Entry
	for id, l := range s.open {
		switch {
		case l.calls > 0:
			busy = append(busy, l.entry)
		case l.streams == 0 && time.Since(l.used) > s.opts.Idle:
			s.remove(id)
		}
	}
	s.mu.Unlock()
	for _, e := range busy {
		s.use(ctx, e)
	}
	ended, err := s.opts.Registry.EndIdle(ctx, s.opts.Idle)
	if err != nil && ctx.Err() == nil {
		s.opts.Logger.WarnContext(ctx, "cannot look for idle sessions", "error", err)
	}
	s.Over(ctx, ended)
}

// hear takes what other servers tell. What is missed meanwhile costs no more than time: a session that is over is noticed with
// its next request, and its sandboxes were removed by who ended it.
func (s *Sessions) hear(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.opts.Registry.Hear(ctx, s.heard)
		if ctx.Err() != nil {
			return
		}
		s.opts.Logger.WarnContext(ctx, "does not hear of other servers for a moment", "error", err)
		select {
		case <-time.After(hearAgain):
		case <-ctx.Done():
		}
	}
}

// heard takes a message of another server.
func (s *Sessions) heard(m Message) {
	if m.From == s.opts.Origin {
		return
	}
	if len(m.Ended) > 0 {
		go s.ended(m.Ended) // removes what this server has of them, which takes its time
	}
	s.mu.Lock()
	l := s.open[m.Session]
	s.mu.Unlock()
	if l == nil {
		return
	}
	r, err := http.NewRequest(http.MethodPost, "/", bytes.NewReader([]byte(m.Body)))
	if err != nil {
		return // there is nothing wrong with it
	}
	go l.transport.ServeHTTP(nowhere{}, r) // which may wait for room
}

// nowhere is who waits for the answer to a message that has none.
type nowhere struct{}

// Header returns headers that nobody reads.
func (nowhere) Header() http.Header { return http.Header{} }

// Write takes what nobody reads.
func (nowhere) Write(p []byte) (int, error) { return io.Discard.Write(p) }

// WriteHeader does nothing.
func (nowhere) WriteHeader(int) {}

// refuse answers a request that is not served, with the library's words where it has some.
func (s *Sessions) refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, backend.ErrNotFound):
		http.Error(w, "session not found", http.StatusNotFound)
	case errors.Is(err, ErrOwner):
		http.Error(w, "session user mismatch", http.StatusForbidden)
	case errors.Is(err, ErrOwnerFull):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many sessions: one client may have no more of all servers together", http.StatusTooManyRequests)
	case errors.Is(err, ErrFull):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many sessions: there may be no more of all servers together", http.StatusServiceUnavailable)
	default:
		s.opts.Logger.Error("cannot look a session up", "error", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the session cannot be looked up now", http.StatusServiceUnavailable)
	}
}

// acceptable checks what the library checks of requests before it looks at their session, and answers one that is not in order.
func acceptable(w http.ResponseWriter, r *http.Request) bool {
	json, stream := accepts(r.Header.Values("Accept"))
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	version := r.Header.Get(headerVersion)
	switch known := versions(); {
	case version != "" && !slices.Contains(known, version):
		http.Error(w, "Bad Request: Unsupported protocol version (supported versions: "+strings.Join(known, ",")+")", http.StatusBadRequest)
	case r.Method == http.MethodPost && media != "application/json":
		http.Error(w, "Content-Type must be 'application/json'", http.StatusUnsupportedMediaType)
	case r.Method == http.MethodPost && !(json && stream):
		http.Error(w, "Accept must contain both 'application/json' and 'text/event-stream'", http.StatusBadRequest)
	case r.Method == http.MethodGet && !stream:
		http.Error(w, "Accept must contain 'text/event-stream' for GET requests", http.StatusBadRequest)
	default:
		return true
	}
	return false
}

// accepts reports what answers a client takes.
func accepts(values []string) (json, stream bool) {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			media, _, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "application/json", "application/*":
				json = true
			case "text/event-stream", "text/*":
				stream = true
			case "*/*":
				json, stream = true, true
			}
		}
	}
	return json, stream
}

// ownIDs gives the requests that this server sends to clients ids that no other server gives. The library counts them in each
// session from 1, so that the answer to one server's question could be taken for that to another's.
type ownIDs struct {
	*mcp.StreamableServerTransport
	prefix string
}

func newOwnIDs(t *mcp.StreamableServerTransport) ownIDs { return ownIDs{t, rand.Text() + "-"} }

// Connect returns the connection.
func (t ownIDs) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.StreamableServerTransport.Connect(ctx)
	return ownIDsConn{c, t.prefix}, err
}

type ownIDsConn struct {
	mcp.Connection
	prefix string
}

// Write sends a message.
func (c ownIDsConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	req, ok := msg.(*jsonrpc.Request)
	switch {
	case ok && req.IsCall():
		mine := *req
		id, err := jsonrpc.MakeID(c.own(req.ID.Raw()))
		if err != nil {
			return err
		}
		mine.ID, msg = id, &mine
	case ok && req.Method == "notifications/cancelled":
		var params map[string]any
		if err := json.Unmarshal(req.Params, &params); err != nil {
			return err
		}
		params["requestId"] = c.own(params["requestId"])
		raw, err := json.Marshal(params)
		if err != nil {
			return err
		}
		mine := *req
		mine.Params, msg = raw, &mine
	}
	return c.Connection.Write(ctx, msg)
}

// own returns the id that the client sees.
func (c ownIDsConn) own(id any) string {
	raw, _ := json.Marshal(id) // a whole number
	return c.prefix + string(raw)
}

// Read returns the next message. An answer to another server's question has an id that this one does not know.
func (c ownIDsConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	res, ok := msg.(*jsonrpc.Response)
	if !ok || err != nil {
		return msg, err
	}
	text, _ := res.ID.Raw().(string)
	rest, mine := strings.CutPrefix(text, c.prefix)
	var n float64
	if !mine || json.Unmarshal([]byte(rest), &n) != nil {
		n = -1 // nor is a number that a client made up one of this server's
	}
	id, err := jsonrpc.MakeID(n)
	if err != nil {
		return nil, err
	}
	answer := *res
	answer.ID = id
	return &answer, nil
}
