package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Session is a handle on one sandbox. All methods may be called concurrently. After Close every call fails with
// backend.ErrClosed, calls under way too; once the sandbox died every call fails with backend.ErrLost.
type Session struct {
	m         *Manager
	id        string
	key       Key
	req       Request // prepared; only its shape for sandboxes of other processes
	engine    backend.Info
	hello     wire.Hello // of the first connection
	made      string     // what the sandbox was made for, Record.Request
	asIs      bool       // adopted with OpenAsIs, so that req has only what could be found out
	building  bool       // an environment is installed in it, and nobody gets it
	owned     bool       // this manager removes the sandbox; false for Connect
	joined    bool       // it is another process's and open here all the same (Options.Join)
	keepFresh bool       // from Connect, with uses that are recorded
	policy    IdlePolicy // what becomes of it when it is idle; never empty for an owned one
	created   time.Time

	// ctx ends when the session closes. It is kept because it is the life of the session, not of a call.
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // goroutines of the connection

	serving sync.Mutex // held while a service is started
	egress  sync.Mutex // held while hosts are opened
	hosts   Egress     // that a request of this process names; guarded by mu

	mu           sync.Mutex        // guards the fields below; never held across a call to the engine or the guest
	base         map[string]string // environment of every command, never changed, only replaced
	state        State
	lost         error         // why, in StateLost
	lossRecorded chan struct{} // from the loss on; closed when the store has it
	disowned     record.Record // as given up by giveUpLost; not guarded, but to be read when lossRecorded is closed
	conn         *client.Conn
	redialing    *redial
	taken        bool // another process has the sandbox now
	active       int  // calls under way
	lastUsed     time.Time
	recorded     time.Time       // lastUsed as it was last recorded
	idle         time.Duration   // negative is never
	timeout      time.Duration   // of commands that name none
	latest       context.Context // of the call that started the latest command; it never ends. Nil before
	execs        map[string]trace.SpanContext
	execOrder    []string                 // keys of execs, oldest first
	services     map[string]servedService // served by this process, by name
	grants       map[string]*grant        // of commands that this process started, by exec
	waits        map[string]*patience     // of calls that wait for a command, by exec
	strays       []string                 // commands that may run though their calls failed, to be ended

	why      owner.Event   // for which it closes, Record.Reason; empty before
	expired  bool          // it closes because nobody used it; set when Close begins
	closing  chan struct{} // nil until Close begins; closed when it ended
	closeErr error         // result of Close, set before closing is closed
}

// errSessionClosed ends the calls of a session that closes.
var errSessionClosed error = &sanitize.Error{Text: "the sandbox is closed", Err: backend.ErrClosed}

// ID returns the sandbox's id. It cannot be guessed, and a key that is opened again after a close has a new one.
func (s *Session) ID() string { return s.id }

// Key returns the key that the sandbox belongs to.
func (s *Session) Key() Key { return s.key }

// Info describes the sandbox. The result shares nothing with the session.
func (s *Session) Info() Info {
	info := s.m.describe(s.engine, s.key)
	info.Workdir = s.hello.Workdir
	info.Programs = slices.Clone(s.hello.Programs)
	info.Labels = maps.Clone(info.Labels)
	info.IdlePolicy = s.policy
	made, _ := decodeShape(s.made) // of a sandbox without a record nothing is known
	info.Egress, info.Environment = made.Egress, made.Environment
	s.mu.Lock()
	defer s.mu.Unlock()
	info.State, info.LastUsed, info.IdleTimeout, info.ExecTimeout = s.state, s.lastUsed, s.idle, s.timeout
	return info
}

// Touch counts as use: the session's idle time starts again. It does nothing to a session that is closing.
func (s *Session) Touch() {
	if s.enter() == nil {
		s.leave()
	}
}

// Close closes the sandbox: calls under way end with backend.ErrClosed and the sandbox is removed with its workspace.
// For a session from Connect it only ends the connection. Closing twice is no error; ctx does not shorten the removal.
func (s *Session) Close(ctx context.Context) error {
	return s.m.closeSession(ctx, s, owner.Gone, owner.Removed)
}

// Discard closes the sandbox as Close does. Where sandboxes are kept ready (Options.Pool), which is where it matters, it does not
// wait for the removal, which the manager does, Close of it included; a failure is logged then, and the reaper tries again.
func (s *Session) Discard(ctx context.Context) error {
	if s.m.pool == nil || !s.owned {
		return s.Close(ctx)
	}
	if s.beginClose(func() bool { return true }) {
		s.cancel(errSessionClosed)
		s.m.spawn(func() {
			if err := s.m.finishClose(ctx, s, owner.Gone, owner.Removed); err != nil {
				s.m.log.WarnContext(ctx, "cannot remove a sandbox yet", "sandbox", s.id, "error", err)
			}
		})
	}
	return nil
}

// enter counts a call in.
func (s *Session) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != nil {
		return errSessionClosed
	}
	if s.state == StateLost {
		return s.lost
	}
	s.active++
	s.lastUsed = s.m.now()
	return nil
}

// leave counts a call out.
func (s *Session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	s.lastUsed = s.m.now()
}

// call runs fn with a connection to the guest. When the connection breaks under fn and again is set, so that fn may be
// repeated, it runs once more on a new connection.
func (s *Session) call(parent context.Context, again bool, fn func(context.Context, *client.Conn) error) error {
	return s.callWithin(parent, again, 0, fn)
}

// callWithin is call that waits for an engine that is away, and repeats fn on each new connection, for the given time.
func (s *Session) callWithin(parent context.Context, again bool, within time.Duration,
	fn func(context.Context, *client.Conn) error) error {
	if err := parent.Err(); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.recordUse(parent)
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	stop := context.AfterFunc(s.ctx, func() { cancel(errSessionClosed) })
	defer stop()
	began, interval := time.Now(), redialFirst
	heard, patience := began, min(within, awayBefore)
	for broke := false; ; {
		conn, err := s.connection(ctx)
		if err == nil {
			err = fn(ctx, conn)
			if err == nil || !broken(conn, err) || s.ctx.Err() != nil || parent.Err() != nil {
				return s.explain(parent, err)
			}
			if !again || broke && time.Since(began) >= within {
				return s.explain(parent, s.verify(ctx, err))
			}
			heard, patience = time.Now(), min(within, awayAfter)
			if !broke {
				broke = true
				continue
			}
		}
		if errors.Is(err, backend.ErrLost) || time.Since(heard) >= patience || !custody.Pause(ctx, interval) {
			return s.explain(parent, err)
		}
		interval = min(2*interval, redialLongest)
	}
}

// explain returns the reason that matters most for a failed call: the caller's own context, then the end of the session.
func (s *Session) explain(parent context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil && !errors.Is(err, parent.Err()):
		return fmt.Errorf("%w (%v)", parent.Err(), sanitize.Message(err.Error()))
	case parent.Err() != nil:
		return err
	case s.ctx.Err() != nil:
		return errSessionClosed
	}
	return err
}

// start begins the span of a call.
func (s *Session) start(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	attrs = append(append(attrs, s.m.keyAttributes(s.key)...),
		telemetry.KeySandboxID.String(s.id), telemetry.Text(telemetry.KeyImage, s.engine.Image))
	return telemetry.StartWith(ctx, s.m.tracers, name, attrs...)
}

// end ends the span of a call and wraps its error.
func (s *Session) end(span trace.Span, op string, err *error) {
	*err = wrapError(op, s.m.driver, s.id, *err)
	telemetry.End(span, *err)
}

// Stats is what a sandbox uses now, as far as it is known.
type Stats struct {
	Uptime      time.Duration // of its main process
	Running     int           // commands that run, or ended and have background processes
	CPU         time.Duration // used since it was started; zero is unknown
	MemoryBytes int64         // with the pages of files in memory; zero is unknown
	PIDs        int64         // processes and threads; zero is unknown
	// WorkspaceBytes is the size of the files below the work directory, WorkspaceMore that there are more files than
	// were counted.
	WorkspaceBytes int64
	WorkspaceMore  bool
}

// Stats asks what the sandbox uses. The question does not count as use: an idle session stays idle. The numbers are the
// guest's, which is untrusted.
func (s *Session) Stats(ctx context.Context) (st Stats, err error) {
	defer func() { err = wrapError("Stats", s.m.driver, s.id, err) }()
	if s.isClosing() {
		return Stats{}, errSessionClosed
	}
	conn, err := s.connection(ctx)
	if err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	h, err := conn.Health(ctx)
	if err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	st = Stats{
		Uptime: max(0, time.Duration(h.UptimeMillis)*time.Millisecond), Running: max(0, h.Running),
		CPU: max(0, time.Duration(h.CPUMillis)*time.Millisecond), MemoryBytes: max(0, h.MemoryUsed), PIDs: max(0, h.PIDsUsed),
	}
	if err := st.countFiles(ctx, conn); err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	return st, nil
}

// countFiles adds up the sizes of the files below the work directory.
func (st *Stats) countFiles(ctx context.Context, conn *client.Conn) error {
	list, err := conn.List(ctx, wire.ListRequest{Path: ".", Recursive: true, Limit: MaxListEntries})
	if err != nil {
		return err
	}
	for _, e := range list.Entries {
		if info := fileInfo(e); info.Type == TypeFile {
			st.WorkspaceBytes += max(0, info.Size)
		}
	}
	st.WorkspaceMore = list.Truncated
	return nil
}
