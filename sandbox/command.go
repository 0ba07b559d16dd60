package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// ExecState is the state of a command.
type ExecState string

// Exec states. All states except ExecRunning are final.
const (
	ExecRunning   ExecState = "running"
	ExecCompleted ExecState = "completed"  // exited, or ended by a signal not sent by Workcell
	ExecTimedOut  ExecState = "timed_out"  // killed with the process tree at the timeout
	ExecKilled    ExecState = "killed"     // killed with the process tree on request, or because the host disconnected
	ExecOOMKilled ExecState = "oom_killed" // killed by the kernel because memory ran out
	// ExecQuotaKilled means that all commands of the sandbox were killed because the workspace limit, or the limit for
	// files outside the workspace, was exceeded.
	ExecQuotaKilled ExecState = "quota_killed"
)

// ExecStatus describes a command.
type ExecStatus struct {
	ExecID   string
	Status   ExecState
	ExitCode int    // valid if Status is not ExecRunning and Signal is empty
	Signal   string // signal that ended the process, for example "SIGKILL"
	Duration time.Duration
	// StdoutBytes and StderrBytes are the numbers of bytes written so far.
	StdoutBytes, StderrBytes int64
	// PeakRSSBytes is the peak resident memory of the command's largest process. It is zero until the command ends.
	PeakRSSBytes int64
	// Leaked reports whether processes of the command's tree, for example background children, outlived the command.
	Leaked bool
	// QuotaExceeded reports whether the workspace, or the space outside the workspace, was full during the command.
	QuotaExceeded bool
	// Limit lists the sandbox limits reached during the command, with their values, for example "memory limit of 256
	// MiB reached (processes killed: 1)". The command may have handled this itself. Limit never includes the limit on
	// open files, because the kernel does not count how often a process reaches it.
	Limit string
	// Terminal reports whether the command runs on a terminal. See Command.Attach.
	Terminal bool
	// Age is the time since the command was started. It is zero if unknown.
	Age time.Duration
	// Origin is the label from WithOrigin, or "".
	Origin string
}

// Done reports whether the command has ended.
func (s ExecStatus) Done() bool { return s.Status != ExecRunning }

// ReadRequest selects recorded output after SinceSeq. Reading does not consume the output.
type ReadRequest struct {
	SinceSeq  int64
	MaxChunks int           // default chosen by the guest
	Wait      time.Duration // how long to wait for the first chunk or the end; at most one minute
}

// Chunk is a numbered part of the output. Seq starts at 1 and counts both streams.
type Chunk struct {
	Seq    int64
	Stream string // "stdout" or "stderr"
	Data   []byte
}

// ReadResult is the result of Command.Read.
type ReadResult struct {
	Chunks  []Chunk
	NextSeq int64 // SinceSeq of the next read
	Dropped int64 // number of discarded chunks after SinceSeq
	Done    bool  // the command has ended and all output was read
	Status  ExecStatus
}

// Command is a handle to a command in a sandbox. It holds only the ID, so any process can use the command.
type Command struct {
	s  *Sandbox
	id string
}

// Start starts a command and returns at once. It ignores Yield and Background of the request.
func (s *Sandbox) Start(ctx context.Context, req ExecRequest) (*Command, error) {
	req.Background = true
	res, err := s.Exec(ctx, req)
	if err != nil {
		return nil, err
	}
	return s.Command(res.ExecID), nil
}

// Command returns a handle to the command with the ID, for example a command of another process. If the sandbox does
// not know the command, the handle's methods return backend.ErrNotFound.
func (s *Sandbox) Command(id string) *Command { return &Command{s, id} }

// ID returns the ID of the command, which is also ExecStatus.ExecID.
func (c *Command) ID() string { return c.id }

// Wait waits until the command ends, but no longer than d. If d is negative, Wait has no time limit. If the command is
// still running after d, Wait returns its status and no error. The output is the whole output so far, limited by Exec's
// HeadBytes and TailBytes, even if Exec has already returned part of it. It is empty if the command ended long ago.
func (c *Command) Wait(ctx context.Context, d time.Duration) (res ExecResult, err error) {
	ctx, span := c.start(ctx, telemetry.SpanWaitExec)
	defer func() { c.s.end(span, "Wait", &err) }()
	wait := d.Milliseconds()
	if longest := MaxExecTimeout + maxExtended; d < 0 || d > longest {
		wait, d = -1, longest
	}
	question := wire.WaitRequest{ExecID: c.id, WaitMillis: wait}
	answer, err := askExec(ctx, c.s, c.id, d, (*client.Conn).Wait, question)
	if err != nil {
		return ExecResult{}, err
	}
	res = c.s.execResult(span, answer)
	res.Refused = c.s.refused(time.Now().Add(-max(res.Age, res.Duration)-answerTime), answer.Direct)
	return res, nil
}

// Read reads recorded output. It does not consume the output: the same read returns the same chunks.
func (c *Command) Read(ctx context.Context, req ReadRequest) (res ReadResult, err error) {
	ctx, span := c.start(ctx, telemetry.SpanReadExec)
	defer func() { c.s.end(span, "Read", &err) }()
	if req.SinceSeq < 0 || req.MaxChunks < 0 || req.Wait < 0 || req.Wait > maxExecWait {
		return ReadResult{}, fmt.Errorf("%w: since_seq and max_chunks must not be negative, the wait must be 0 to %d seconds",
			backend.ErrInvalid, int(maxExecWait.Seconds()))
	}
	question := wire.ReadRequest{
		ExecID: c.id, SinceSeq: req.SinceSeq, MaxChunks: req.MaxChunks, WaitMillis: req.Wait.Milliseconds(),
	}
	answer, err := askExec(ctx, c.s, c.id, req.Wait, (*client.Conn).Read, question)
	if err != nil {
		return ReadResult{}, err
	}
	res = ReadResult{NextSeq: answer.NextSeq, Dropped: answer.Dropped, Done: answer.Done,
		Status: c.s.execStatus(answer.Status)}
	for _, c := range answer.Chunks {
		res.Chunks = append(res.Chunks, Chunk{Seq: c.Seq, Stream: string(c.Stream), Data: c.Data})
	}
	span.SetAttributes(append(statusAttributes(res.Status), telemetry.KeyChunks.Int(len(res.Chunks)))...)
	return res, nil
}

// Write writes to the standard input of a command started with StdinOpen. If eof is true, Write then closes the input.
// If Write fails midway, the number of written bytes is unknown.
func (c *Command) Write(ctx context.Context, data []byte, eof bool) (err error) {
	ctx, span := c.start(ctx, telemetry.SpanWriteExec)
	defer func() { c.s.end(span, "Write", &err) }()
	span.SetAttributes(telemetry.KeyStdinBytes.Int(len(data)))
	if len(data) > MaxStdinBytes {
		return fmt.Errorf("%w: %d bytes of input, the limit is %d", backend.ErrTooLarge, len(data), MaxStdinBytes)
	}
	if err := validExecID(c.id); err != nil {
		return err
	}
	limit := MaxExecTimeout + answerMargin
	_, err = ask(ctx, c.s, once, limit, func(ctx context.Context, conn *client.Conn) (struct{}, error) {
		return struct{}{}, conn.WriteStdin(ctx, wire.StdinRequest{ExecID: c.id, Data: data, EOF: eof})
	})
	return err
}

// Signal sends a signal to the command's whole process tree. If signal is empty, Signal sends TERM and, after 2 s,
// KILL, and also ends the remaining background processes of an ended command. Otherwise it sends signal, for example
// "SIGINT" or "INT", and does nothing if the command has ended.
func (c *Command) Signal(ctx context.Context, signal string) (status ExecStatus, err error) {
	ctx, span := c.start(ctx, telemetry.SpanKillExec)
	defer func() { c.s.end(span, "Signal", &err) }()
	if status, err = c.signal(ctx, signal); err == nil {
		span.SetAttributes(statusAttributes(status)...)
	}
	return status, err
}

// signal implements Signal without a span.
func (c *Command) signal(ctx context.Context, signal string) (ExecStatus, error) {
	question := wire.KillRequest{ExecID: c.id, Signal: signal}
	answer, err := askExec(ctx, c.s, c.id, 0, (*client.Conn).Kill, question)
	if err != nil {
		return ExecStatus{}, err
	}
	return c.s.execStatus(answer), nil
}

// Extend extends the timeout of a running command, by at most 24 hours in total. Beyond that, it returns an error
// wrapping backend.ErrQuota. If the command has no timeout or has ended, Extend does nothing. If by is not positive,
// the error wraps backend.ErrInvalid.
func (c *Command) Extend(ctx context.Context, by time.Duration) (err error) {
	defer func() { err = WrapError("Extend", c.s.b.Name(), c.s.o.ID, err) }()
	if by <= 0 {
		return fmt.Errorf("%w: invalid extension of %v", backend.ErrInvalid, by)
	}
	if err := validExecID(c.id); err != nil {
		return err
	}
	for by > 0 && err == nil {
		step := min(max(by, time.Millisecond), maxExtension)
		by -= step
		c.s.waitLonger(c.id, step) // first, because the guest may extend it even if the call fails
		_, err = ask(ctx, c.s, once, answerMargin, func(ctx context.Context, conn *client.Conn) (wire.ExecStatus, error) {
			return conn.Extend(ctx, wire.DeadlineRequest{ExecID: c.id, AddMillis: step.Milliseconds()})
		})
	}
	return err
}

// Attach connects to the terminal of a command started by Terminal in any process. Like Terminal, it returns when the
// command ends or the client disconnects. Attach sets the size and shows the latest output again. If another client was
// connected, the other client gets ErrTakenOver.
func (c *Command) Attach(ctx context.Context, size TerminalSize, at TerminalStreams) (res ExecResult, err error) {
	ctx, span := c.start(ctx, telemetry.SpanJoinTerminal)
	defer func() { c.s.end(span, "Attach", &err) }()
	if err := validExecID(c.id); err != nil {
		return ExecResult{}, err
	}
	req := wire.TerminalRequest{ExecID: c.id, Size: wire.TerminalSize(size)}
	join := func(ctx context.Context, conn *client.Conn, in io.Reader) (wire.RunResult, error) {
		return conn.Join(ctx, req, in, at.Stdout)
	}
	return c.s.atTerminal(ctx, c.id, at, join)
}

// start starts the span of a call about the command and links it to the span of the command's start.
func (c *Command) start(ctx context.Context, name string) (context.Context, trace.Span) {
	ctx, span := c.s.start(ctx, name, telemetry.Text(telemetry.KeyExecID, c.id))
	c.s.mu.Lock()
	origin, ok := c.s.execs[c.id]
	c.s.mu.Unlock()
	if ok && origin.IsValid() {
		span.AddLink(trace.Link{SpanContext: origin})
	}
	return ctx, span
}

// Commands describes the commands known to the sandbox, including commands of other processes, in the order in which
// they started. These are all running commands and the most recently ended commands. Commands changes no state.
func (s *Sandbox) Commands(ctx context.Context) ([]ExecStatus, error) {
	return s.statuses(ctx, "Commands", (*client.Conn).Execs)
}

// KillCommands ends the process trees of several commands, as Command.Signal does without a signal, with one span. It
// returns one error per command, in order.
func (s *Sandbox) KillCommands(ctx context.Context, execIDs []string) []error {
	ctx, span := s.start(ctx, telemetry.SpanKillExec)
	errs := bound.Each(killsAtOnce, len(execIDs), func(i int) error {
		_, err := s.Command(execIDs[i]).signal(ctx, "")
		return WrapError("KillCommands", s.b.Name(), s.o.ID, err)
	})
	telemetry.End(span, errors.Join(errs...))
	return errs
}

// KillAll ends all commands of the sandbox with TERM and, after 2 s, KILL. It also ends background processes of earlier
// commands. It returns the ended commands.
func (s *Sandbox) KillAll(ctx context.Context) ([]ExecStatus, error) {
	return s.statuses(ctx, "KillAll", (*client.Conn).KillAll)
}

// statuses calls the guest with question and returns the statuses of all commands.
func (s *Sandbox) statuses(ctx context.Context, op string,
	question func(*client.Conn, context.Context) ([]wire.ExecStatus, error)) ([]ExecStatus, error) {
	call := func(ctx context.Context, conn *client.Conn) ([]wire.ExecStatus, error) { return question(conn, ctx) }
	known, err := ask(ctx, s, repeatable, answerMargin, call)
	if err != nil {
		return nil, WrapError(op, s.b.Name(), s.o.ID, err)
	}
	list := make([]ExecStatus, len(known))
	for i, w := range known {
		list[i] = s.execStatus(w)
	}
	return list, nil
}
