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
)

// Limits of the work on a connection.
const (
	dialTimeout    = 20 * time.Second       // for the engine's stream and the guest's hello
	healthTimeout  = 15 * time.Second       // for a guest to report whether it is busy
	verifyTimeout  = 10 * time.Second       // to find out the state of a sandbox whose stream broke
	redialFirst    = 100 * time.Millisecond // first pause between attempts to reconnect
	redialLongest  = 5 * time.Second        // longest pause between attempts to reconnect
	awayBefore     = time.Minute            // how long an engine may be unavailable before a command starts
	awayAfter      = 10 * time.Minute       // how long an engine may be unavailable while a command runs
	settleTime     = 5 * time.Second        // how long an engine may take to notice the exit of a sandbox
	settlePause    = 50 * time.Millisecond  // pause between attempts during settleTime
	strayWait      = time.Second            // how long a canceled call waits for the end of its command
	maxStrays      = 256                    // maximum number of commands of failed calls to end later
	connectionGone = "the connection to the sandbox was lost; the result is unknown"
)

// redial is one attempt to reconnect to the guest. All waiting calls share it.
type redial struct {
	done chan struct{}
	err  error // set before done is closed
}

// connection returns a live connection. If the last connection broke, it reconnects.
func (s *Sandbox) connection(ctx context.Context) (*client.Conn, error) {
	for {
		s.mu.Lock()
		if s.isLost() {
			defer s.mu.Unlock()
			return nil, s.lost
		}
		if s.ctx.Err() != nil {
			s.mu.Unlock()
			return nil, errClosed
		}
		if s.conn != nil && !ended(s.conn) {
			defer s.mu.Unlock()
			return s.conn, nil
		}
		attempt := s.redialing
		if attempt == nil {
			attempt = &redial{done: make(chan struct{})}
			s.redialing = attempt
			s.wg.Go(func() { s.redial(attempt) })
		}
		s.mu.Unlock()
		select {
		case <-attempt.done:
			if attempt.err != nil {
				return nil, attempt.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// redial reconnects to the guest, or marks the sandbox as lost.
func (s *Sandbox) redial(attempt *redial) {
	ctx, cancel := context.WithTimeout(s.ctx, dialTimeout)
	defer cancel()
	conn, err := s.reach(ctx)
	s.mu.Lock()
	for err == nil && !s.isLost() && len(s.strays) > 0 {
		strays := slices.Clone(s.strays)
		s.mu.Unlock()
		err = s.endStrays(ctx, conn, strays)
		s.mu.Lock()
	}
	s.redialing = nil
	switch {
	case s.isLost():
		err = s.lost
	case err == nil && s.ctx.Err() != nil:
		err = errClosed // closed since then
	}
	if err == nil {
		s.conn = conn
		s.wg.Go(func() { s.watch(conn) })
	}
	attempt.err = err
	s.mu.Unlock()
	if err != nil && conn != nil {
		conn.Close() // may wait for a stuck stream
	}
	close(attempt.done)
}

// giveUp ends a command whose call failed, because the command may be running and the caller may repeat it. If watched
// is still connected, giveUp only remembers the command: the guest noticed that the call was canceled.
func (s *Sandbox) giveUp(ctx context.Context, execID string, watched *client.Conn) {
	s.mu.Lock()
	s.strays = append(s.strays, execID)
	s.strays = s.strays[max(0, len(s.strays)-maxStrays):]
	conn, done := s.conn, make(chan struct{})
	if s.ctx.Err() != nil || ended(conn) || conn == watched {
		s.mu.Unlock()
		return
	}
	s.wg.Go(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyTimeout)
		defer cancel()
		_ = s.endStrays(ctx, conn, []string{execID}) // if it fails, the next connection tries again
	})
	s.mu.Unlock()
	select {
	case <-done:
	case <-time.After(strayWait): // the command does not end, or the stream is stuck
	}
}

// endStrays ends the commands of failed calls. If the guest refuses, it does not know the command, or it is too busy.
func (s *Sandbox) endStrays(ctx context.Context, conn *client.Conn, strays []string) error {
	err := errors.Join(bound.Each(killsAtOnce, len(strays), func(i int) error {
		_, err := conn.Kill(ctx, wire.KillRequest{ExecID: strays[i]})
		if err != nil && (!errors.As(err, new(*wire.Error)) || refusedAs(err, wire.CodeCapacity)) {
			return fmt.Errorf("%w: cannot end a command of a failed call: %v", backend.ErrUnavailable, err)
		}
		return nil
	})...)
	if err == nil {
		s.mu.Lock()
		s.strays = slices.DeleteFunc(s.strays, func(id string) bool { return slices.Contains(strays, id) })
		s.mu.Unlock()
	}
	return err
}

// reach connects to the known guest. If the guest no longer runs, reach marks the sandbox as lost.
func (s *Sandbox) reach(ctx context.Context) (*client.Conn, error) {
	// An engine may notice the exit of a main process after the end of the stream. Therefore, if the stream ends at
	// once but the engine reports a running sandbox, reach tries again for settleTime.
	deadline := time.Now().Add(settleTime)
	for {
		conn, err := attach(ctx, s.b, s.engine.ID)
		if err == nil {
			if conn.Hello().BootID != s.hello.BootID {
				s.lose("it was restarted; its processes are lost")
			}
			return conn, nil
		}
		again := errors.Is(err, client.ErrConnLost)
		err = s.diagnose(ctx, err)
		if !again || (Control{s}).Use().Lost || time.Now().After(deadline) || !bound.Pause(ctx, settlePause) {
			return nil, err
		}
	}
}

// diagnose distinguishes a removed or stopped sandbox from an unavailable engine.
func (s *Sandbox) diagnose(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, backend.ErrBusy):
		return err
	case errors.Is(err, backend.ErrNotFound):
		s.lose("it was removed")
		return err
	}
	info, getErr := s.b.Get(ctx, s.engine.ID)
	switch {
	case errors.Is(getErr, backend.ErrNotFound):
		s.lose("it was removed")
	case getErr != nil:
		return fmt.Errorf("%w: %v", backend.ErrUnavailable, sanitize.EngineError(err))
	case info.State == backend.StatePaused:
		return ErrPaused
	case info.OOMKilled:
		s.lose("its main process was killed: out of memory")
	case info.State != backend.StateRunning || errors.Is(err, backend.ErrLost):
		s.lose("it was stopped") // it may have been started again since the dial
	default:
		return fmt.Errorf("%w: the sandbox does not respond: %v", backend.ErrUnavailable, sanitize.EngineError(err))
	}
	return err
}

// isLost reports whether calls fail because the sandbox was lost. The caller must hold s.mu.
func (s *Sandbox) isLost() bool { return s.lost != nil && !s.ended }

// lose marks the sandbox as lost. Only the first reason is kept.
func (s *Sandbox) lose(reason string) {
	s.mu.Lock()
	if s.ended || s.lost != nil {
		s.mu.Unlock()
		return
	}
	s.lost = fmt.Errorf("%w: %s", backend.ErrLost, reason)
	s.mu.Unlock()
	s.o.OnLost(reason)
}

// watch reconnects when the connection breaks, for two reasons: to keep the guest from ending all commands, as it does
// if no host is connected for long, and to report a lost sandbox early.
func (s *Sandbox) watch(conn *client.Conn) {
	select {
	case <-conn.Done():
	case <-s.ctx.Done():
		return
	}
	s.persist(s.ctx, func(*client.Conn) error { return nil })
}

// persist calls fn with a connection. If fn or the connection fails, persist tries again until ctx ends, the sandbox is
// lost, or the guest violates the protocol.
func (s *Sandbox) persist(ctx context.Context, fn func(*client.Conn) error) {
	for interval := redialFirst; ; interval = min(2*interval, redialLongest) {
		conn, err := s.connection(ctx)
		if err == nil {
			err = fn(conn)
		}
		over := err == nil || errors.Is(err, backend.ErrLost) || errors.Is(err, client.ErrProtocol)
		if over || !bound.Pause(ctx, interval) {
			return
		}
	}
}

// verify returns the error of a call whose connection broke. It returns ErrLost if the sandbox is lost, and
// ErrUnavailable otherwise. Even with an error, the call may have had an effect.
func (s *Sandbox) verify(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	if _, err := s.connection(ctx); errors.Is(err, backend.ErrLost) {
		return err
	}
	return sanitize.NewError(connectionGone, errors.Join(backend.ErrUnavailable, cause))
}

// attach opens a stream to the guest of a sandbox and completes the handshake.
func attach(ctx context.Context, b backend.SandboxBackend, engineID string) (*client.Conn, error) {
	stream, err := b.Dial(ctx, engineID)
	if err != nil {
		return nil, sanitize.EngineError(err)
	}
	return client.New(ctx, stream)
}

// broken reports whether a call failed because the connection ended.
func broken(conn *client.Conn, err error) bool {
	return errors.Is(err, client.ErrConnLost) || ended(conn)
}

// ended reports whether a connection has ended.
func ended(conn *client.Conn) bool {
	select {
	case <-conn.Done():
		return true
	default:
		return false
	}
}
