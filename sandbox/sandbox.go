package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Lock order, outermost first:
//
//  1. Sandbox.egress, then Sandbox.serving. They are held across calls to the guest, to prevent two callers from opening
//     the hosts or from starting a service.
//  2. Sandbox.mu. It is never held across a call to the engine, the guest, or a caller's function. The one exception is
//     the condition of Control.BeginClose, which may take no lock.
//
// Options.OnUse and Options.OnLost are called without a lock. Therefore the owner of a Control may hold other locks in
// a call to a method with only Sandbox.mu. All other locks guard the fields of one small type.

// Sandbox is a handle to a running sandbox. It is safe for concurrent use. After the handle is closed, all calls return
// backend.ErrClosed, including running calls. After the sandbox has exited unexpectedly, all calls return
// backend.ErrLost.
type Sandbox struct {
	b      backend.SandboxBackend
	o      Options
	engine backend.Info
	image  []string   // variables of the image
	hello  wire.Hello // hello of the first connection
	meters meters

	// ctx ends when the handle is closed. It is a field because it bounds the handle, not a call.
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // goroutines of the connection

	serving sync.Mutex // held while a service is started
	egress  sync.Mutex // held while hosts are opened

	mu        sync.Mutex        // guards the fields below
	base      map[string]string // environment of every command; replaced but never modified
	hosts     Egress            // hosts available to commands
	closing   bool              // new calls are refused
	ended     bool              // the connection is closed permanently
	lost      error             // reason why the sandbox was lost
	conn      *client.Conn
	redialing *redial
	active    int // number of running calls
	lastUsed  time.Time
	timeout   time.Duration   // default timeout of commands
	latest    context.Context // context of the latest command's starting call, never canceled
	execs     map[string]trace.SpanContext
	execOrder []string                 // keys of execs, oldest first
	services  map[string]servedService // services of this process, by name
	grants    map[string]*grant        // grants of this process's commands, by exec
	waits     map[string]*patience     // pending calls about a command, by exec
	strays    []string                 // commands of failed calls, which may be running and have to be ended
}

// Options configure a handle.
type Options struct {
	ID       string // ID of the sandbox, for errors, spans, and the audit log
	Key, Run string // names of the sandbox and the run, for spans and the audit log
	// Limits are the limits of the sandbox. Commands get OpenFiles and FileBytes.
	Limits backend.Limits
	// Env are environment variables of every command. They override the image's variables.
	Env map[string]string
	// ExecTimeout is the default timeout of commands.
	ExecTimeout time.Duration
	// MaxFileBytes is the maximum size of one WriteFile, and of one ReadFile without a limit.
	MaxFileBytes int64
	// Egress connects commands to Hosts.
	Egress EgressGateway
	Hosts  Egress
	// Settings returns the settings in force, for results and the audit log. It may be nil.
	Settings func() Settings
	// Shared is true if other processes serve the same services. Losing a service to such a process is expected.
	Shared bool

	// All following fields are required.

	TracerProvider trace.TracerProvider
	Logger         *slog.Logger
	Now            func() time.Time
	// OnUse is called at the beginning of each call.
	OnUse func(context.Context)
	// OnLost is called once if the sandbox is lost.
	OnLost func(reason string)
}

// meters are the metric instruments for commands.
type meters struct {
	exec metric.Float64Histogram
	oom  metric.Int64Counter
}

// New returns a handle to a sandbox of a backend. The handle accepts calls after Control.Connect.
func New(b backend.SandboxBackend, o Options) (*Sandbox, Control) {
	o.MaxFileBytes = min(o.MaxFileBytes, math.MaxInt64-1) // transfers count one byte above the limit
	s := &Sandbox{
		b: b, o: o, hosts: o.Hosts, lastUsed: o.Now(), timeout: o.ExecTimeout, latest: context.Background(),
		execs: map[string]trace.SpanContext{}, services: map[string]servedService{}, grants: map[string]*grant{},
		waits: map[string]*patience{},
		meters: meters{
			exec: telemetry.Histogram(telemetry.MetricExecDuration), oom: telemetry.Counter(telemetry.MetricOOMKills),
		},
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s, Control{s}
}

// errClosed is the error of calls on a closed handle.
var errClosed = sanitize.NewError("the sandbox is closed", backend.ErrClosed)

// ID returns the ID of the sandbox. The ID cannot be guessed.
func (s *Sandbox) ID() string { return s.o.ID }

// Workdir returns the default working directory of commands.
func (s *Sandbox) Workdir() string { return s.hello.Workdir }

// Home returns the home directory of commands. Lists, outputs, and patches do not contain it.
func (s *Sandbox) Home() string { return cmp.Or(s.hello.Home, s.hello.Workdir) }

// Programs returns the interpreters found by the guest.
func (s *Sandbox) Programs() []string { return slices.Clone(s.hello.Programs) }

// enter begins a call.
func (s *Sandbox) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return errClosed
	}
	if s.isLost() {
		return s.lost
	}
	s.active++
	s.lastUsed = s.o.Now()
	return nil
}

// leave ends a call.
func (s *Sandbox) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	s.lastUsed = s.o.Now()
}

// call runs fn with a connection to the guest. If again is true and the connection breaks, call repeats fn once on a
// new connection. Until the duration within has passed, call also waits for an unavailable engine and repeats fn on
// each new connection.
func (s *Sandbox) call(parent context.Context, again bool, within time.Duration,
	fn func(context.Context, *client.Conn) error) error {
	if err := parent.Err(); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.o.OnUse(parent)
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errClosed) })()
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
		tired := time.Since(heard) >= patience && !errors.Is(err, backend.ErrBusy) // a rollback ends, however long it takes
		if errors.Is(err, backend.ErrLost) || tired || !bound.Pause(ctx, interval) {
			return s.explain(parent, err)
		}
		interval = min(2*interval, redialLongest)
	}
}

// explain returns the most important reason for a failed call: first the caller's context, then the closing of the
// handle.
func (s *Sandbox) explain(parent context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil && !errors.Is(err, parent.Err()):
		return fmt.Errorf("%w (%v)", parent.Err(), sanitize.Message(err.Error()))
	case parent.Err() != nil:
		return err
	case s.ctx.Err() != nil:
		return errClosed
	}
	return err
}

// start starts the span of a call.
func (s *Sandbox) start(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	attrs = append(append(attrs, telemetry.SandboxAttributes(s.b.Name(), s.o.Key, s.o.Run)...),
		telemetry.KeySandboxID.String(s.o.ID), telemetry.Text(telemetry.KeyImage, s.engine.Image))
	return telemetry.StartWith(ctx, s.o.TracerProvider, name, attrs...)
}

// measured returns the attributes of a measurement. Attributes have few values and contain no ids.
func (s *Sandbox) measured(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(attrs, telemetry.KeyBackend.String(s.b.Name()))...)
}

// end ends the span of a call and wraps the error.
func (s *Sandbox) end(span trace.Span, op string, err *error) {
	*err = WrapError(op, s.b.Name(), s.o.ID, *err)
	telemetry.End(span, *err)
}

// Stats is the current resource usage of a sandbox. Fields may be unknown.
type Stats struct {
	Uptime      time.Duration // since the main process started
	Running     int           // running commands, and ended commands with background processes
	CPU         time.Duration // used since it was started; zero is unknown
	MemoryBytes int64         // with the pages of files in memory; zero is unknown
	PIDs        int64         // processes and threads; zero is unknown
	// WorkspaceBytes is the size of the files below the work directory and in the home directory. WorkspaceMore means
	// that not all files were counted.
	WorkspaceBytes int64
	WorkspaceMore  bool
}

// Stats queries the sandbox's resource usage. The query does not count as use: an idle sandbox stays idle. The numbers
// come from the guest, which is untrusted.
func (s *Sandbox) Stats(ctx context.Context) (st Stats, err error) {
	defer func() { err = WrapError("Stats", s.b.Name(), s.o.ID, err) }()
	conn, err := s.connection(ctx)
	if err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	h, err := conn.Health(ctx)
	if err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	st = Stats{
		Uptime: duration(h.UptimeMillis, time.Millisecond), Running: max(0, h.Running),
		CPU: duration(h.CPUMillis, time.Millisecond), MemoryBytes: max(0, h.MemoryUsed), PIDs: max(0, h.PIDsUsed),
	}
	if err := st.countFiles(ctx, conn); err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	return st, nil
}

// countFiles adds the sizes of the files in the workspace.
func (st *Stats) countFiles(ctx context.Context, conn *client.Conn) error {
	for _, dir := range []string{".", wire.PrivateDir} { // a list of the first does not contain the second
		list, err := conn.List(ctx, wire.ListRequest{Path: dir, Recursive: true, Limit: MaxListEntries})
		if err != nil && (dir == "." || !errors.As(err, new(*wire.Error))) { // the second can be missing, or anything
			return err
		}
		for _, e := range list.Entries {
			if info := newFileInfo(e); info.Type == TypeFile {
				st.WorkspaceBytes += min(max(0, info.Size), math.MaxInt64-st.WorkspaceBytes)
			}
		}
		st.WorkspaceMore = st.WorkspaceMore || list.Truncated
	}
	return nil
}
