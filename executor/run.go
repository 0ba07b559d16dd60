// Package executor runs CLI coding agents in sandboxes. It starts the CLI with a task, parses the events, and kills the
// process tree when the task is over. A [Driver] knows the command line and output format of one CLI. Drivers exist for
// Claude Code, Codex, OpenCode, and Gemini CLI.
//
// A CLI gets only a base URL and a key for a model, and at most one MCP server, for the host tools. The URL and the key
// are valid only in the sandbox. The CLI uses the home directory of all commands and a settings directory,
// /workspace/.workcell/agents/AGENT. In the settings directory, only the CLI's sessions outlive a call. Settings and
// skills of earlier commands have no effect. Configurations in the repository have no effect either.
package executor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor/skill"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// Timeouts of a run.
const (
	defaultTimeout = 30 * time.Minute
	defaultStall   = 5 * time.Minute
	defaultStart   = 2 * time.Minute

	// killTime is the maximum time to kill a process tree. The guest agent sends TERM, waits 2 s, and sends KILL.
	killTime  = 30 * time.Second
	killPause = 20 * time.Millisecond
	// leaveTime is how long a CLI may run, without an event, after it has reported a result.
	leaveTime = 5 * time.Second
	// closingTime limits all steps after a run with any outcome.
	closingTime = 10 * time.Minute
)

// Options configures Run. The field comments describe the zero values.
type Options struct {
	// Agent is the name of the file with the id of the CLI's session. If empty, it defaults to the driver's name.
	// Resumable agents in one sandbox need different names.
	Agent string
	// Models are the addresses of the model in the sandbox. The driver selects an address by dialect.
	Models map[model.Dialect]Endpoint
	// Grant adds network services to the CLI's command. It is called with the context of the run's span. HostTools
	// reports whether the services include the host tools. If so, the CLI gets their MCP server.
	Grant     func(context.Context, *sandbox.ExecRequest)
	HostTools bool

	Resume Resume
	Step   string // compared by ResumeStep; must be equal for all attempts of the same step, and unique otherwise

	// Before and After are /bin/sh commands run in the sandbox before and after the CLI. A failure of Before ends the run.
	Before, After []string
	Skills        []skill.Skill // installed for the CLI
	Timeout       time.Duration // maximum sandbox.MaxExecTimeout; default 30 minutes
	Stall         time.Duration // maximum time without an event, apart from Waited; default 5 minutes
	Start         time.Duration // maximum time until the first event, which shows that the CLI started; default 2 minutes

	// Waited returns the total time that the CLI's calls have waited for approvals so far, including calls still waiting.
	Waited func() time.Duration
	// OverBudget stops the CLI when the channel is closed.
	OverBudget <-chan struct{}
	// OnEvent is called for each event, sequentially. The CLI waits until it returns.
	OnEvent func(Event)
	// Keep receives the CLI's unmodified output. A write error ends the run.
	Keep io.Writer

	TracerProvider trace.TracerProvider // if nil, the global provider
}

// Result is the result of a CLI run.
type Result struct {
	Text      string // answer: the last message of the model
	Data      []byte // answer for Task.Schema as JSON, reported separately or as the whole Text
	SessionID string
	Resumed   bool // the session was started by an earlier run
	Outcome   Outcome
	Detail    string // error message, safe for messages
	Turns     int    // turns of the model reported by the CLI; zero if not reported
	ToolCalls int
	Told      Usage // usage of this invocation reported by the CLI
	Exit      sandbox.ExecStatus
	// HookErrors are the errors of After and of other steps after the CLI. They do not change the outcome.
	HookErrors []string
}

// run is one call of Run.
type run struct {
	s   *session.Session
	d   Driver
	t   Task
	o   Options
	inv Invocation

	work     string // the workspace
	settings string // the directory of the CLI's settings
	state    state
	parser   Parser
	talk     *mailbox     // unread messages to the CLI; nil unless Invocation.Talk is set
	said     chan Outcome // gets the outcome reported by the CLI
	seen     Seen
	res      Result
	turns    int           // by Invocation.CountTurns
	spent    chan struct{} // closed when they are over, by once
	once     sync.Once
	alive    chan struct{} // receives a value for the watch after a line of output
	stderr   tail
	whole    *Usage
	fresh    bool // the next text is a new message
	text     []byte
	noting   context.Context // for remember, because events have no context
	early    sync.WaitGroup
}

// Run runs a CLI with a task in a sandbox and waits until the whole process tree has ended. The way in which the CLI
// ends is part of the result. If the CLI cannot run, a command of Before fails, or ctx ends, Run returns an error with
// the result so far. Runs with the same Options.Agent in one sandbox must not overlap, because they share a settings
// directory.
func Run(ctx context.Context, s *session.Session, d Driver, t Task, o *Options) (res Result, err error) {
	r := &run{s: s, d: d, t: t, o: *cmp.Or(o, &Options{}), alive: make(chan struct{}, 1), spent: make(chan struct{})}
	r.o.Agent = cmp.Or(r.o.Agent, d.Name())
	r.work = s.Info().Workdir
	r.settings = path.Join(r.work, wire.PrivateDir, "agents", r.o.Agent)
	r.o.Timeout, r.o.Stall = cmp.Or(r.o.Timeout, defaultTimeout), cmp.Or(r.o.Stall, defaultStall)
	r.o.Start = cmp.Or(r.o.Start, defaultStart)
	if r.o.Waited == nil {
		r.o.Waited = func() time.Duration { return 0 }
	}
	r.o.TracerProvider = cmp.Or(r.o.TracerProvider, otel.GetTracerProvider())
	ctx, span := telemetry.StartWith(ctx, r.o.TracerProvider, telemetry.SpanExecutor,
		telemetry.KeyExecutor.String(d.Name()))
	defer func() { r.end(span, err) }()
	if err = r.check(); err == nil {
		err = r.do(ctx)
		r.after(context.WithoutCancel(ctx))
	}
	if err != nil {
		err = fmt.Errorf("executor %s: %w", d.Name(), err)
	}
	return r.res, err
}

// end ends the span of the run.
func (r *run) end(span trace.Span, err error) {
	span.SetAttributes(telemetry.KeyOutcome.String(string(r.res.Outcome)),
		telemetry.KeyToolCalls.Int(r.res.ToolCalls), telemetry.KeyTurns.Int(r.res.Turns))
	if err == nil && r.res.Outcome != Completed {
		telemetry.Fail(span, string(r.res.Outcome))
	}
	telemetry.End(span, err)
}

// check returns an error for invalid parameters.
func (r *run) check() error {
	switch {
	case strings.TrimSpace(r.t.Prompt) == "":
		return fmt.Errorf("%w: the prompt is empty", backend.ErrInvalid)
	case !validAgent.MatchString(r.o.Agent):
		return fmt.Errorf("%w: agent name %q is not a valid file name", backend.ErrInvalid, r.o.Agent)
	case r.t.ResumeID != "" && !validID.MatchString(r.t.ResumeID):
		return fmt.Errorf("%w: %q is not a session ID", backend.ErrInvalid, r.t.ResumeID)
	case r.o.Timeout < sandbox.MinExecTimeout || r.o.Timeout > sandbox.MaxExecTimeout:
		return fmt.Errorf("%w: timeout %v is out of range, must be %v to %v",
			backend.ErrInvalid, r.o.Timeout, sandbox.MinExecTimeout, sandbox.MaxExecTimeout)
	case r.o.Stall < 0 || r.o.Start < 0 || r.t.MaxTurns < 0:
		return fmt.Errorf("%w: times and numbers of turns must not be negative", backend.ErrInvalid)
	}
	return nil
}

// do prepares the workspace, runs the CLI, and sets the result. It does not run the hooks after the CLI.
func (r *run) do(ctx context.Context) error {
	if err := r.resume(ctx); err != nil {
		return err
	}
	for first := true; ; first = false {
		if err := r.plan(); err != nil {
			return err
		}
		if first {
			if err := r.before(ctx); err != nil {
				return err
			}
		}
		if err := r.furnish(ctx); err != nil {
			return err
		}
		if err := r.call(ctx); err != nil || !r.sessionLost() {
			return err
		}
		r.forget()
	}
}

// home returns the CLI's home directory. In a sandbox of an earlier version, the home directory of commands is the
// workspace, in which the CLI must not change settings and skills of the repository.
func (r *run) home() string {
	if home := r.s.Home(); home != r.work {
		return home
	}
	return r.settings
}

// plan sets how the CLI is called.
func (r *run) plan() (err error) {
	inside := Inside{Settings: r.settings, Workdir: r.work, Models: r.o.Models, Root: record.IsRoot(r.s.Info().User)}
	if r.o.HostTools {
		inside.MCP = []string{embed.Path, "mcp"}
	}
	r.inv, err = r.d.Prepare(r.t, inside)
	if r.home() == r.settings && err == nil {
		r.inv.Env["HOME"] = r.settings
	}
	return err
}

// sessionLost reports whether the CLI did not start because the recorded session does not exist.
func (r *run) sessionLost() bool {
	left := r.res.Exit.Status == sandbox.ExecCompleted || r.talk != nil && r.seen.End != nil
	return r.state.Session != "" && r.res.Outcome == Crashed && r.seen.Session == "" && left
}

// forget resets the run for a new session.
func (r *run) forget() {
	r.event(Event{Kind: KindNotice, Text: "cannot resume the session, starting a new one: " + r.res.Detail})
	r.t.ResumeID, r.state = "", state{}
	r.seen, r.res, r.stderr, r.whole, r.text = Seen{}, Result{}, tail{}, nil, nil
	r.turns, r.fresh = 0, false
}

// call runs the CLI once.
func (r *run) call(ctx context.Context) error {
	r.noting, r.talk, r.said = context.WithoutCancel(ctx), nil, make(chan Outcome, 1)
	if r.inv.Talk == nil {
		r.parser = r.d.Parser()
	} else {
		r.talk = newMailbox()
		defer r.talk.close()
		r.parser = r.inv.Talk(r.talk)
	}
	exit, why, err := r.stream(ctx)
	r.early.Wait()
	r.seen.Stderr = r.stderr.String()
	r.res.Exit = exit.ExecStatus
	r.res.SessionID = r.seen.Session
	r.answer()
	switch {
	case why != "":
		r.res.Outcome = why
	case err != nil:
		return err
	case exit.Status == sandbox.ExecTimedOut:
		r.res.Outcome = TimedOut
	default:
		r.res.Outcome = r.d.Outcome(r.seen, exit.ExecStatus)
	}
	r.explain(why != "")
	r.count()
	r.rememberEnd(context.WithoutCancel(ctx))
	return ctx.Err()
}

// stream runs the command. If the command was stopped, stream returns the reason.
func (r *run) stream(ctx context.Context) (sandbox.ExecResult, Outcome, error) {
	req := sandbox.ExecRequest{Argv: r.inv.Argv, Dir: r.work, Env: r.inv.Env, Timeout: r.o.Timeout}
	if r.o.Grant != nil {
		r.o.Grant(ctx, &req)
	}
	lines := &lineWriter{line: r.line}
	var stdout io.Writer = lines
	if r.o.Keep != nil {
		stdout = io.MultiWriter(r.o.Keep, lines)
	}
	var stdin io.Reader = bytes.NewReader(r.inv.Stdin)
	if r.talk != nil {
		stdin = r.talk
	}
	// The command is killed by id. Until the tree has ended, the CLI may print more output, and the call waits for it.
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var command *sandbox.Command
	started, over, why := make(chan struct{}), make(chan struct{}), make(chan Outcome, 1)
	req.Started = func(c *sandbox.Command) { command = c; close(started) }
	go func() {
		cause := r.watch(ctx, over)
		if cause != "" {
			select {
			case <-started:
				r.kill(streaming, cancel, command, over)
			case <-over: // it never started
			}
		}
		why <- cause
	}()
	res, err := r.s.Stream(streaming, req, sandbox.Streams{Stdin: stdin, Stdout: stdout, Stderr: &r.stderr})
	close(over)
	cause := <-why
	err = errors.Join(err, lines.end())
	if err == nil { // kill leftover processes, which may have closed the output
		_, left := r.s.Command(res.ExecID).Signal(context.WithoutCancel(ctx), "")
		if left != nil && !errors.Is(left, backend.ErrNotFound) {
			r.res.HookErrors = append(r.res.HookErrors, "cannot kill its leftover processes: "+left.Error())
		}
	}
	return res, cause, err
}

// watch returns the reason to stop the CLI. It returns an empty string if the CLI exited without being stopped.
func (r *run) watch(ctx context.Context, over <-chan struct{}) Outcome {
	quiet := time.NewTimer(r.o.Stall)
	defer quiet.Stop()
	begin := time.NewTimer(r.o.Start)
	defer begin.Stop()
	if r.inv.Late {
		begin.Stop()
	}
	var last Outcome
	var waited time.Duration   // part of Waited that does not count as silence
	var leave <-chan time.Time // fires when the CLI must have exited
	for {
		select {
		case <-over:
			select {
			case <-r.o.OverBudget: // the budget truncated the CLI's last output
				return Budget
			default:
				return ""
			}
		case <-ctx.Done():
			return Cancelled
		case <-r.o.OverBudget:
			return Budget
		case <-r.spent:
			return MaxTurns
		case <-quiet.C:
			more := r.o.Waited() - waited
			waited += more
			switch {
			case more > 0:
				quiet.Reset(max(more, time.Second)) // not more often, because the wait may continue
			case leave == nil:
				return Stalled
			}
		case <-begin.C:
			return Crashed
		case last = <-r.said:
			begin.Stop()
			leave = time.After(leaveTime)
		case <-leave:
			return last
		case <-r.alive:
			begin.Stop()
			quiet.Reset(r.o.Stall)
			waited = r.o.Waited()
			if leave != nil && r.talk == nil { // with a two-way protocol, the input is closed and the CLI gets no more time
				leave = time.After(leaveTime)
			}
		}
	}
}

// kill kills the process tree of the command, unless it has ended. If killing fails, kill calls cancel, because the
// guest agent kills commands whose caller disconnected.
func (r *run) kill(ctx context.Context, cancel context.CancelFunc, command *sandbox.Command, over <-chan struct{}) {
	ctx, done := context.WithTimeout(ctx, killTime)
	defer done()
	for {
		_, err := command.Signal(ctx, "")
		if err == nil {
			return
		}
		if !errors.Is(err, backend.ErrNotFound) {
			cancel()
			return
		}
		select { // the command was requested and is about to start
		case <-over:
			return
		case <-time.After(killPause):
		}
	}
}
