package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// Defaults and limits.
const (
	DefaultExecTimeout  = 120 * time.Second
	MinExecTimeout      = time.Millisecond
	MaxExecTimeout      = bound.ExecTimeout
	DefaultMaxFileBytes = 1 << 30 // maximum size of one file transfer
	// MaxStdinBytes is the maximum size of ExecRequest.Stdin and of one Command.Write. Stream has no limit.
	MaxStdinBytes = 64 << 20
	// DefaultListEntries and MaxListEntries are the default and the maximum of ListFilesOptions.Limit.
	DefaultListEntries = 1000
	MaxListEntries     = 10_000
)

// Limits and defaults of commands.
const (
	defaultHeadBytes = 6 << 10
	defaultTailBytes = 24 << 10
	maxTextBytes     = wire.MaxKeep // maximum of HeadBytes and TailBytes
	maxPathBytes     = 4096
	maxExecWait      = time.Minute      // maximum of ReadRequest.Wait
	answerMargin     = 20 * time.Second // how much later than promised the guest may answer
	streamMargin     = 10 * time.Minute // answerMargin for Stream, whose writers may be slow
	killsAtOnce      = 16               // concurrent calls of KillCommands to the guest
	rememberedExecs  = 1024             // number of execs whose spans later calls link to
)

// ExecRequest describes a command.
type ExecRequest struct {
	Argv    []string // passed unchanged; set either Argv or Command
	Command string   // a line for /bin/sh -c
	Dir     string   // defaults to the workspace; a relative path is relative to it
	// Env overrides the sandbox's and the image's environment.
	Env map[string]string
	// EnvBefore contains entries to prepend to list variables, for example PATH.
	EnvBefore map[string]string
	// Stdin is the whole standard input, at most MaxStdinBytes. If Stdin is nil and StdinOpen is false, the command reads
	// end of file. Do not modify Stdin while the command runs.
	Stdin     []byte
	StdinOpen bool // keep standard input open for Command.Write
	// Timeout is the time after which the process tree is killed, from MinExecTimeout to MaxExecTimeout. If zero, it is
	// the sandbox's default.
	Timeout time.Duration
	// Yield is the maximum time to wait. If the command is still running, Exec returns with status ExecRunning and the
	// command continues. If zero or negative, Exec waits until the command ends.
	Yield time.Duration
	// Background makes Exec return at once.
	Background bool
	// HeadBytes and TailBytes limit the returned output per stream. If both are zero, they are 6 KiB and 24 KiB.
	HeadBytes, TailBytes int
	// Services are the services that the command's processes can use. See Sandbox.Serve.
	Services []ServiceGrant
	// Tools is the SHA-256 of the definitions of the command's host tools, for audit records. See Settings.Tools.
	Tools string
	// Started, if not nil, is called with the command just before it starts. If the command has not started yet, the
	// handle's methods return an error wrapping backend.ErrNotFound.
	Started func(*Command)
}

// Output is the returned output of one stream: Head, a gap of Omitted bytes, and Tail.
type Output struct {
	Head, Tail []byte
	Omitted    int64
	Total      int64  // bytes written by the command
	Path       string // absolute path of a file in the sandbox with the whole output, if some was omitted
	PathCut    bool   // the file is incomplete as well
}

// Bytes returns Head and Tail joined. If Omitted is zero, the result is the whole output.
func (o Output) Bytes() []byte {
	b := make([]byte, 0, len(o.Head)+len(o.Tail))
	return append(append(b, o.Head...), o.Tail...)
}

// ExecResult is the result of Exec, Stream, and Command.Wait.
type ExecResult struct {
	ExecStatus
	Stdout, Stderr Output // empty for Stream
	// Timeout is the effective timeout. It is zero for Command.Wait.
	Timeout time.Duration
	// Refused lists the hosts that commands of the sandbox were denied during this command.
	Refused []EgressRefusal
}

// Streams are the streams of a command. If Stdin is nil, the command reads end of file. A nil writer discards output.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Exec runs a command, records its output, and waits until it ends. If req.Yield is positive, Exec returns after this
// time with status ExecRunning. If ctx ends first, Exec kills the command's whole process tree. If the connection
// breaks, Exec reconnects and waits for the same command until the timeout. Exec gives up after ten minutes without a
// connection. The command is then killed before the next call.
func (s *Sandbox) Exec(ctx context.Context, req ExecRequest) (res ExecResult, err error) {
	ctx, span := s.start(ctx, telemetry.SpanExec, telemetry.KeyStdinBytes.Int(len(req.Stdin)))
	defer func() { s.end(span, "Exec", &err) }()
	run, timeout, err := s.runRequest(ctx, req)
	if err != nil {
		return ExecResult{}, err
	}
	return s.runRecorded(ctx, span, run, timeout, req, func() (wire.RunResult, error) {
		// A repeated request carries the same exec id, so the guest never starts a command twice. If all input came
		// with the first request, Exec waits for this command.
		tries := 0
		answer, err := askRun(ctx, s, run, true, answerLimit(run, timeout),
			func(ctx context.Context, conn *client.Conn) (wire.RunResult, error) {
				tries++
				answer, err := conn.Run(ctx, run)
				if tries > 1 && refusedAs(err, wire.CodeExists) && len(run.Stdin) <= wire.InlineData {
					joined, failed := conn.Wait(ctx, wire.WaitRequest{ExecID: run.ExecID, WaitMillis: run.YieldMillis})
					if !refusedAs(failed, wire.CodeNotFound) { // else the command failed to start
						return joined, failed
					}
				}
				return answer, err
			})
		if tries > 1 && refusedAs(err, wire.CodeExists) {
			err = sanitize.NewError(connectionGone, backend.ErrUnavailable)
		}
		return answer, err
	})
}

// runRecorded runs a command with an audit record before the start and after the end.
func (s *Sandbox) runRecorded(ctx context.Context, span trace.Span, run wire.RunRequest, timeout time.Duration,
	req ExecRequest, call func() (wire.RunResult, error)) (res ExecResult, err error) {
	span.SetAttributes(telemetry.KeyExecID.String(run.ExecID))
	s.remember(ctx, run.ExecID, req.Tools)
	defer s.grant(run.ExecID, req.Services, span.SpanContext())()
	ended, err := s.onRecord(ctx, run, req.Tools)
	if err != nil {
		return ExecResult{}, err
	}
	defer func() { err = ended(res.ExecStatus, err) }()
	if req.Started != nil {
		req.Started(s.Command(run.ExecID))
	}
	began := time.Now()
	answer, err := call()
	if err != nil {
		return ExecResult{}, s.nameLimits(err)
	}
	res = s.execResult(span, answer)
	res.Timeout, res.Refused = timeout, s.refused(began, answer.Direct)
	if res.Done() {
		s.meters.exec.Record(ctx, res.Duration.Seconds(), s.measured(telemetry.KeyExecStatus.String(string(res.Status))))
	}
	if res.Status == ExecOOMKilled {
		s.meters.oom.Add(ctx, 1, s.measured())
	}
	return res, nil
}

// refusedAs reports whether the guest refused a request with code. CodeExists reports an existing exec id.
func refusedAs(err error, code wire.Code) bool {
	var fromGuest *wire.Error
	return errors.As(err, &fromGuest) && fromGuest.Code == code
}

// onRecord adds the start of a command to the audit log. If it fails, the command must not be started. ended adds the
// result of the command and returns the command's error.
func (s *Sandbox) onRecord(ctx context.Context, run wire.RunRequest, tools string) (
	ended func(ExecStatus, error) error, err error) {
	about := func(r *audit.Record) {
		r.Run, r.Sandbox, r.Key, r.Exec = s.o.Run, s.o.ID, s.o.Key, run.ExecID
		s.noteSettings(r, tools)
	}
	err = audit.Note(ctx, func(r *audit.Record) {
		about(r)
		r.Event, r.Argv = audit.EventCommand, run.Argv
	})
	return func(st ExecStatus, err error) error {
		return errors.Join(err, audit.Note(ctx, func(r *audit.Record) {
			about(r)
			r.Event, r.Status, r.Signal, r.Error = audit.EventExit, string(st.Status), st.Signal, telemetry.Class(err)
			r.DurationMS = st.Duration.Milliseconds()
			if err == nil && st.Done() && st.Signal == "" {
				r.Exit = &st.ExitCode
			}
		}))
	}, err
}

// Stream runs a command and copies its output to streams as it is written. No output is dropped, so a slow writer
// blocks the command. Stream waits until the command ends, for example after Command.Signal. If ctx ends first, Stream
// kills the command's whole process tree. If Stdin or a writer fails, Stream also kills the tree and returns the error.
// Stream may return while a Read of Stdin is still running. HeadBytes, TailBytes, Stdin, StdinOpen, Yield, and
// Background must be zero.
func (s *Sandbox) Stream(ctx context.Context, req ExecRequest, streams Streams) (res ExecResult, err error) {
	ctx, span := s.start(ctx, telemetry.SpanStream)
	defer func() { s.end(span, "Stream", &err) }()
	if req.Stdin != nil || req.StdinOpen || req.Yield != 0 || req.Background || req.HeadBytes != 0 || req.TailBytes != 0 {
		return ExecResult{}, fmt.Errorf("%w: a streamed command reads its input from Streams and cannot yield",
			backend.ErrInvalid)
	}
	run, timeout, err := s.runRequest(ctx, req)
	if err != nil {
		return ExecResult{}, err
	}
	run.Spill, run.HeadBytes, run.TailBytes = false, 0, 0
	return s.runRecorded(ctx, span, run, timeout, req, func() (wire.RunResult, error) {
		answer, err := askRun(ctx, s, run, false, timeout+streamMargin,
			func(ctx context.Context, conn *client.Conn) (wire.RunResult, error) {
				return withInput(ctx, streams.Stdin, func(ctx context.Context, in io.Reader) (wire.RunResult, error) {
					return conn.Attach(ctx, run, in, streams.Stdout, streams.Stderr)
				})
			})
		answer.Stdout, answer.Stderr = wire.Output{}, wire.Output{}
		return answer, err
	})
}

// execResult converts an answer and records it in the span.
func (s *Sandbox) execResult(span trace.Span, w wire.RunResult) ExecResult {
	status := s.execStatus(w.ExecStatus)
	span.SetAttributes(statusAttributes(status)...)
	switch {
	case status.Status == ExecOOMKilled:
		span.AddEvent(telemetry.EventOOM)
	case status.Status == ExecTimedOut:
		span.AddEvent(telemetry.EventTimeout)
	case status.QuotaExceeded:
		span.AddEvent(telemetry.EventQuota)
	}
	return ExecResult{ExecStatus: status, Stdout: s.output(w.Stdout), Stderr: s.output(w.Stderr)}
}

// Whether ask may repeat a call after a broken connection.
const (
	repeatable = true
	once       = false
)

// ask calls the guest, which should answer within limit. If again is true, ask may repeat the call after a broken
// connection.
func ask[T any](ctx context.Context, s *Sandbox, again bool, limit time.Duration,
	fn func(context.Context, *client.Conn) (T, error)) (T, error) {
	return askWithin(ctx, s, again, 0, limit, fn)
}

// askWithin is like ask, but waits for an unavailable engine for at most within.
func askWithin[T any](ctx context.Context, s *Sandbox, again bool, within, limit time.Duration,
	fn func(context.Context, *client.Conn) (T, error)) (answer T, err error) {
	err = s.call(ctx, again, within, func(ctx context.Context, conn *client.Conn) (err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoAnswer)
		defer cancel()
		answer, err = fn(ctx, conn)
		return noAnswer(ctx, err)
	})
	return answer, err
}

// askRun is like ask for the start of a command. Command.Extend extends the limit. If the call fails without the
// guest's answer, askRun ends the command.
func askRun[T any](ctx context.Context, s *Sandbox, run wire.RunRequest, again bool, limit time.Duration,
	fn func(context.Context, *client.Conn) (T, error)) (answer T, err error) {
	var asked []*client.Conn
	err = s.call(ctx, again, limit, func(ctx context.Context, conn *client.Conn) (err error) {
		asked = append(asked, conn)
		ctx, release := s.patient(ctx, run.ExecID, limit)
		defer release()
		answer, err = fn(ctx, conn)
		return noAnswer(ctx, err)
	})
	if err != nil && asked != nil && (!errors.As(err, new(*wire.Error)) || refusedAs(err, wire.CodeExists)) {
		watched := asked[0]
		if len(asked) > 1 || run.YieldMillis >= 0 {
			watched = nil // the guest may have answered before the call was canceled
		}
		s.giveUp(ctx, run.ExecID, watched)
	}
	return answer, err
}

// askExec makes a repeatable call about a command. The guest should answer within wait.
func askExec[Q, A any](ctx context.Context, s *Sandbox, execID string, wait time.Duration,
	method func(*client.Conn, context.Context, Q) (A, error), req Q) (none A, _ error) {
	if err := validExecID(execID); err != nil {
		return none, err
	}
	limit := wait + answerMargin
	return askWithin(ctx, s, true, limit, limit, func(ctx context.Context, conn *client.Conn) (A, error) {
		return method(conn, ctx, req)
	})
}

// runRequest validates a command and returns the request to the guest and the effective timeout.
func (s *Sandbox) runRequest(ctx context.Context, req ExecRequest) (wire.RunRequest, time.Duration, error) {
	var none wire.RunRequest
	argv, err := arguments(req)
	if err != nil {
		return none, 0, err
	}
	timeout, err := ExecTimeout(req.Timeout, (Control{s}).Use().Timeout)
	if err != nil {
		return none, 0, err
	}
	if strings.Contains(req.Dir, "\x00") || len(req.Dir) > maxPathBytes {
		return none, 0, fmt.Errorf("%w: the working directory contains NUL or has more than %d bytes",
			backend.ErrInvalid, maxPathBytes)
	}
	dir := req.Dir
	if dir != "" && !path.IsAbs(dir) {
		dir = path.Join(s.hello.Workdir, dir)
	}
	if err := s.openEgress(ctx); err != nil {
		return none, 0, err
	}
	base, before := s.environment()
	maps.Copy(before, req.EnvBefore)
	env := withLists(base, req.Env, before)
	if err := ValidateEnv(env); err != nil {
		return none, 0, err
	}
	if len(req.Stdin) > MaxStdinBytes {
		return none, 0, fmt.Errorf("%w: %d bytes of input, the limit is %d; Stream takes more",
			backend.ErrTooLarge, len(req.Stdin), MaxStdinBytes)
	}
	head, tail := req.HeadBytes, req.TailBytes
	if head < 0 || tail < 0 || head > maxTextBytes || tail > maxTextBytes {
		return none, 0, fmt.Errorf("%w: head and tail of the output must be 0 to %d bytes", backend.ErrInvalid, maxTextBytes)
	}
	if head == 0 && tail == 0 {
		head, tail = defaultHeadBytes, defaultTailBytes
	}
	origin := ""
	if label, ok := ctx.Value(originKey{}).(func() string); ok {
		origin = label()
	}
	limits := s.o.Limits
	return wire.RunRequest{
		Spawn: wire.Spawn{
			Argv: argv, Dir: dir, Env: execEnv(base, env, telemetry.TraceParent(ctx)),
			TimeoutMillis: timeout.Milliseconds(), OpenFiles: limits.OpenFiles, FileBytes: limits.FileBytes,
		},
		ExecID: newExecID(), Stdin: req.Stdin, StdinOpen: req.StdinOpen,
		YieldMillis: yield(req), KillOnCancel: true, HeadBytes: head, TailBytes: tail, Spill: true,
		Services: serviceNames(req.Services), Origin: origin,
	}, timeout, nil
}

// environment returns the environment of every command, and entries to prepend to lists of the command.
func (s *Sandbox) environment() (env, before map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	env, before = maps.Clone(s.base), map[string]string{}
	for _, v := range s.services {
		for name, value := range v.env {
			if name == javaOptions {
				before[name] = value
			} else {
				env[name] = value
			}
		}
	}
	maps.Copy(env, s.o.Env)
	return env, before
}

// arguments returns the argv of a request.
func arguments(req ExecRequest) ([]string, error) {
	switch {
	case len(req.Argv) > 0 && req.Command != "":
		return nil, fmt.Errorf("%w: argv and a shell command cannot be used together", backend.ErrInvalid)
	case req.Command != "":
		if strings.Contains(req.Command, "\x00") {
			return nil, fmt.Errorf("%w: the command contains NUL", backend.ErrInvalid)
		}
		return []string{"/bin/sh", "-c", req.Command}, nil
	case len(req.Argv) == 0 || req.Argv[0] == "":
		return nil, fmt.Errorf("%w: no command specified", backend.ErrInvalid)
	}
	for i, arg := range req.Argv {
		if strings.Contains(arg, "\x00") {
			return nil, fmt.Errorf("%w: argument %d contains NUL", backend.ErrInvalid, i)
		}
	}
	return req.Argv, nil
}

// yield returns a request's maximum wait in the guest's units.
func yield(req ExecRequest) int64 {
	switch {
	case req.Background:
		return 0
	case req.Yield <= 0:
		return -1
	}
	return max(1, req.Yield.Milliseconds())
}

// errNoAnswer ends a call without an answer of the guest in time.
var errNoAnswer = fmt.Errorf("%w: the sandbox did not respond in time", backend.ErrUnavailable)

// noAnswer replaces the error of a call after the call's own deadline.
func noAnswer(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) && !errors.Is(err, backend.ErrBusy) {
		return errNoAnswer
	}
	return err
}

// answerLimit returns how long the guest may take to answer a run request.
func answerLimit(run wire.RunRequest, timeout time.Duration) time.Duration {
	if run.YieldMillis >= 0 {
		timeout = min(timeout, time.Duration(run.YieldMillis)*time.Millisecond)
	}
	return timeout + answerMargin
}

// validExecID validates the format of an exec id. Only the guest knows whether the exec exists.
func validExecID(id string) error {
	if !wire.ValidExecID(id) {
		return fmt.Errorf("%w: exec ID not found", backend.ErrNotFound)
	}
	return nil
}

// remember stores the span of a command's starting call, for later calls about the command. It also stores the values
// of the call's context, for connections from the sandbox whose command is unknown.
func (s *Sandbox) remember(ctx context.Context, execID, tools string) {
	latest := audit.With(context.WithoutCancel(ctx), func(r *audit.Record) {
		r.Run, r.Key = s.o.Run, s.o.Key
		s.noteSettings(r, tools)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = latest
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return
	}
	s.execs[execID] = sc
	s.execOrder = append(s.execOrder, execID)
	if len(s.execOrder) > rememberedExecs {
		delete(s.execs, s.execOrder[0])
		s.execOrder = s.execOrder[1:]
	}
}

// statusAttributes returns the span attributes for a command's status.
func statusAttributes(st ExecStatus) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		telemetry.KeyExecStatus.String(string(st.Status)),
		telemetry.KeyStdoutBytes.Int64(st.StdoutBytes),
		telemetry.KeyStderrBytes.Int64(st.StderrBytes),
	}
	if st.Done() && st.Signal == "" {
		attrs = append(attrs, telemetry.KeyExitCode.Int(st.ExitCode), semconv.ProcessExitCode.Int(st.ExitCode))
	}
	return attrs
}

// Signals returns the names of the Linux signals in numeric order, starting with SIGHUP, which is 1.
func Signals() []string {
	return strings.Fields(`SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV
		SIGUSR2 SIGPIPE SIGALRM SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU
		SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR SIGSYS`)
}

// ExecTimeout validates the timeout of a command. If d is zero, it returns fallback.
func ExecTimeout(d, fallback time.Duration) (time.Duration, error) {
	if d == 0 {
		return fallback, nil
	}
	if d < MinExecTimeout || d > MaxExecTimeout {
		return 0, fmt.Errorf("%w: timeout %v is out of range, must be %v to %v seconds", backend.ErrInvalid, d,
			MinExecTimeout.Seconds(), MaxExecTimeout.Seconds())
	}
	return d, nil
}

type originKey struct{}

// WithOrigin sets the label of commands started with ctx. When a command starts, origin is called and the result
// becomes ExecStatus.Origin.
func WithOrigin(ctx context.Context, origin func() string) context.Context {
	return context.WithValue(ctx, originKey{}, origin)
}

// newExecID returns the ID of a new command.
func newExecID() string { return "exe_" + strings.ToLower(rand.Text()) }
