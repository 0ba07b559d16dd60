package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Control is the owner's interface to a Sandbox. The owner, for example package session, connects the handle, observes
// its use, and closes it. Programs without such an owner do not need a Control.
type Control struct{ s *Sandbox }

// Use describes the use of a handle.
type Use struct {
	Calls   int           // number of running calls
	Last    time.Time     // when the last call began or ended
	Timeout time.Duration // default timeout of commands
	Hosts   Egress        // hosts available to commands
	Closing bool          // closing or closed
	Lost    bool          // the sandbox was lost before the handle was closed
}

// Connect opens the first connection to the sandbox. image contains the environment variables of the sandbox's image.
func (c Control) Connect(ctx context.Context, engine backend.Info, image []string) error {
	if err := c.Greet(ctx, engine); err != nil {
		return err
	}
	c.Take(c, engine, image)
	return nil
}

// Explain adds a likely cause to an error of Connect: if commands use up the sandbox's process limit, neither the
// engine nor the guest can start a process. Explain waits first, because an engine may be slow to notice that a sandbox
// has exited.
func (c Control) Explain(ctx context.Context, err error) error {
	ended := errors.Is(err, client.ErrConnLost) && !errors.Is(err, client.ErrNoAnswer)
	unexplained := telemetry.Class(err) == "internal" && !errors.Is(err, client.ErrProtocol)
	if !ended && !unexplained || !bound.Pause(ctx, settleTime) {
		return err
	}
	engine, getErr := c.s.b.Get(ctx, c.s.engine.ID)
	if getErr != nil || engine.State != backend.StateRunning || engine.Limits.PIDs <= 0 {
		return err
	}
	text := fmt.Sprintf("cannot connect to the sandbox; its commands probably use all %d processes (%s)",
		engine.Limits.PIDs, sanitize.Message(err.Error()))
	return sanitize.NewError(text, backend.ErrCapacity)
}

// Greet connects to an unused sandbox. If a rollback or snapshot of the sandbox is running, Greet waits. If the
// connection breaks, the handle does not reconnect.
func (c Control) Greet(ctx context.Context, engine backend.Info) (err error) {
	c.s.engine = engine
	for {
		dial, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoAnswer)
		c.s.conn, err = attach(dial, c.s.b, engine.ID)
		err = noAnswer(dial, err)
		if cancel(); !errors.Is(err, backend.ErrBusy) || !bound.Pause(ctx, settlePause) {
			return err
		}
	}
}

// Take makes the handle use the connection from another handle's Greet.
func (c Control) Take(from Control, engine backend.Info, image []string) {
	s, conn := c.s, from.s.conn
	s.engine, s.image, s.conn, s.hello = engine, image, conn, cleanHello(conn.Hello())
	s.base = baseEnv(s.hello, image, s.o.Env)
	s.wg.Go(func() { s.watch(conn) })
}

// Greeted reports whether the connection from Greet is alive.
func (c Control) Greeted() bool { return !ended(c.s.conn) }

// Claim resets the guest of a greeted sandbox before the first use. orphan is how long the guest waits without a host
// before it ends the sandbox. Zero means no limit.
func (c Control) Claim(ctx context.Context, orphan time.Duration) error {
	return c.s.conn.Claim(ctx, wire.ClaimRequest{OrphanMillis: orphan.Milliseconds()})
}

// Warm runs each interpreter of a greeted sandbox once, because the first start on a new file system takes up to three
// times as long. Claim removes the traces of these commands.
func (c Control) Warm(ctx context.Context, timeout time.Duration) {
	s := c.s
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	hello := cleanHello(s.conn.Hello())
	env := execEnv(baseEnv(hello, s.engine.ImageEnv, nil), nil, "")
	for _, argv := range [][]string{{"sh", "-c", ":"}, {"python3", "-c", ""}, {"node", "-e", ""}} {
		if !slices.Contains(hello.Programs, argv[0]) {
			continue
		}
		_, err := s.conn.Run(ctx, wire.RunRequest{ExecID: newExecID(), YieldMillis: -1, KillOnCancel: true, Spawn: wire.Spawn{
			Argv: argv, Env: env, TimeoutMillis: timeout.Milliseconds(),
		}})
		if err != nil {
			s.o.Logger.DebugContext(ctx, "cannot warm up a pooled sandbox", "sandbox", s.o.ID, "program", argv[0], "error", err)
			return
		}
	}
}

// OpenEgress makes the allowed hosts available before the first command.
func (c Control) OpenEgress(ctx context.Context) error { return c.s.openEgress(ctx) }

// SetHosts replaces the hosts available to commands. It has no effect on hosts that are already available.
func (c Control) SetHosts(hosts Egress) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.hosts = hosts
}

// SetDefaults replaces the variables, timeout, and hosts from Options.
func (c Control) SetDefaults(env map[string]string, timeout time.Duration, hosts Egress) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.o.Env, c.s.base = env, baseEnv(c.s.hello, c.s.image, env)
	c.s.timeout, c.s.hosts = timeout, hosts
}

// Use returns the use of the handle.
func (c Control) Use() Use {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.s.use()
}

// use implements Use. The caller must hold s.mu.
func (s *Sandbox) use() Use {
	return Use{
		Calls: s.active, Last: s.lastUsed, Timeout: s.timeout, Hosts: s.hosts, Closing: s.closing, Lost: s.lost != nil,
	}
}

// Touch counts as a use. It reports whether the handle is open.
func (c Control) Touch() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.s.closing {
		c.s.lastUsed = c.s.o.Now()
	}
	return !c.s.closing
}

// Do runs f as a call of the handle. If the handle is closed or the sandbox is lost, Do returns an error and does not
// run f.
func (c Control) Do(f func() error) error {
	if err := c.s.enter(); err != nil {
		return err
	}
	defer c.s.leave()
	return f()
}

// Busy reports whether the guest has running commands. Calling Busy does not count as use of the sandbox.
func (c Control) Busy(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	conn, err := c.s.connection(ctx)
	if err != nil {
		return false, err
	}
	health, err := conn.Health(ctx)
	return health.Running > 0, err
}

// Lose marks the sandbox as lost. Only the first reason is kept.
func (c Control) Lose(reason string) { c.s.lose(reason) }

// BeginClose makes the handle refuse new calls and cancels running calls. It does nothing if the handle is already
// closing or if the condition returns false. No call can begin while the condition is evaluated. BeginClose reports
// whether the caller has to complete the close.
func (c Control) BeginClose(condition func(Use) bool) bool {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || !condition(s.use()) {
		return false
	}
	s.closing = true
	s.cancel(errClosed)
	return true
}

// Close ends the handle's calls, connection, and goroutines. It does not change the sandbox.
func (c Control) Close() {
	s := c.s
	s.cancel(errClosed)
	s.mu.Lock()
	s.ended = true
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		conn.Close() // errors do not matter, because the connection is not used again
	}
	s.wg.Wait() // after s.ctx has ended, no redial sets a connection
}

// Health is the guest's report about the use of a sandbox.
type Health struct {
	Running int // running commands
	Hosts   int // connected processes
}

// CheckHealth queries the guest of a sandbox. It does not need a handle.
func CheckHealth(ctx context.Context, b backend.SandboxBackend, engineID string) (Health, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout+healthTimeout, errNoAnswer)
	defer cancel()
	conn, err := attach(ctx, b, engineID)
	if err != nil {
		return Health{}, noAnswer(ctx, err)
	}
	defer conn.Close() // errors do not matter after a query
	health, err := conn.Health(ctx)
	return Health{Running: health.Running, Hosts: health.Hosts}, noAnswer(ctx, err)
}
