package server

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/output"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

const (
	// drainTime is how long output is read after a command's exit, and how long other processes of the tree have to exit.
	drainTime = 200 * time.Millisecond
	leftPause = 5 * time.Millisecond // pause between two checks for these processes
	// lookPause is the pause between two checks for full directories in memory.
	lookPause = 250 * time.Millisecond
	// quickTime is how long quickly waits for a command to exit before goroutines are started to monitor it.
	quickTime = time.Millisecond
)

// execution is a command with output and result.
type execution struct {
	s       *Server
	id      string
	started time.Time
	proc    *proc.Process
	out     *output.Pipes
	rec     *output.Recorder // nil if the output goes to a host and is not recorded
	term    *output.Terminal // nil if the command does not run on a terminal
	timeout time.Duration    // 0 means no timeout
	grace   time.Duration
	granted []string     // services for the command's processes, for example "tools"
	denials proc.Denials // at the start
	limits  disk.Marks   // at the start
	wasFull disk.Full    // at the start
	direct  *direct      // nil when nothing is counted

	settled chan struct{} // closed when the command has started or failed to start
	killing chan killing  // requests to supervise to kill the tree
	ended   chan struct{} // closed when the process has exited and the output was read or given up

	mu     sync.Mutex // guards the fields below
	status wire.ExecStatus
	endAt  time.Time     // time of the exit
	named  bool          // a signal was sent on request
	full   disk.Full     // full directories at any time since the start
	more   time.Duration // time added to timeout by deadline-v1
}

// killing describes how to kill a tree and the resulting state.
type killing struct {
	grace time.Duration
	state wire.ExecState
}

// startExec starts a command. If sink is nil, the output is recorded; otherwise it goes to sink. The caller must then
// call quickly or follow.
func (s *Server) startExec(r *request, req *wire.RunRequest, sink output.Sink) (*execution, error) {
	if !wire.ValidExecID(req.ExecID) {
		return nil, wire.Errorf(wire.CodeInvalid, "the exec id is not 1 to %d of a-z, A-Z, 0-9, _ and -", wire.MaxExecID)
	}
	if err := s.cfg.Protection.Await(); err != nil {
		return nil, wire.Errorf(wire.CodeInternal, "the sandbox cannot protect itself from commands: %v", err)
	}
	if err := s.checkServices(req.Services); err != nil {
		return nil, err
	}
	limits, err := s.admit() // may take longer than the host waits
	if err != nil {
		return nil, err
	}
	e := &execution{s: s, limits: limits, id: req.ExecID, started: time.Now(), proc: new(proc.Process),
		timeout: millis(req.TimeoutMillis, 0), grace: millis(req.GraceMillis, proc.DefaultGrace),
		settled: make(chan struct{}), killing: make(chan killing, 1), ended: make(chan struct{}),
		granted: req.Services, denials: s.memory.Denials(), wasFull: disk.Full{}.Seen(), direct: s.watchDirect()}
	if err := s.execs.reserve(e); err != nil {
		return nil, err
	}
	if r.givenUp(req, sink != nil) { // after reserve, because the host may already have asked to kill the command
		s.execs.release(e)
		return nil, wire.Errorf(wire.CodeInvalid, "the host cancelled the command before it was started")
	}
	e.status = wire.ExecStatus{ExecID: e.id, State: wire.ExecRunning, Terminal: req.Terminal != nil, Origin: req.Origin}
	if sink == nil {
		e.rec = output.NewRecorder(req, &s.execs.budget, s.spills, e.ended, e.snapshot)
		sink = e.rec
	}
	if req.Terminal != nil {
		e.term = output.NewTerminal(e.rec, e.timeout, func() { e.kill(e.grace, wire.ExecTimedOut) })
		sink, e.timeout = e.term, 0
	}
	if err = s.memory.Room(); err == nil {
		s.makeHome(req.Env)
		err = s.spawner.Start(e.proc, req, limits.Frozen())
	}
	if err != nil {
		s.execs.release(e)
		return nil, s.shortage(err, e.denials)
	}
	e.status.PID = e.proc.PID
	e.out = output.NewPipes(e.proc.Out, sink)
	s.execs.add(e)
	s.quotas.Started()
	return e, nil
}

// shortage returns the error for a failed start of a command. If a running process can exit, the shortage is temporary.
// If no process is running, it is permanent.
func (s *Server) shortage(err error, before proc.Denials) error {
	var e *wire.Error
	if !errors.As(err, &e) || e.Launch != proc.NoResources {
		return err
	}
	if s.memory.Denials().Since(before).Forks > 0 {
		e.Message = "process limit of the sandbox reached: " + e.Message
	}
	if s.inUse() {
		return err
	}
	if s.memory.Room() != nil { // memory is full of files, which can be deleted
		return wire.Errorf(wire.CodeQuota, "%s", e.Message)
	}
	return wire.Errorf(wire.CodeUnsupported, "%s; no other command can be killed to free resources", e.Message)
}

// givenUp reports whether the host has disconnected and wants the command to be killed in this case. A host may come
// back for a recorded command after the connection broke.
func (r *request) givenUp(req *wire.RunRequest, attached bool) bool {
	if r.present() {
		return false
	}
	return attached || r.gaveUp() && (req.KillOnCancel || req.Terminal != nil)
}

// quickly waits for a short time and reports whether the command has exited and all output was read. If not, the caller
// must call follow.
func (e *execution) quickly() bool {
	select {
	case end := <-e.proc.Exited:
		e.look()
		if !e.leaves(0) && e.out.Sweep() {
			e.over(end, wire.ExecCompleted, false)
			return true
		}
		exited := make(chan proc.Exit, 1)
		exited <- end
		e.proc.Exited = exited
	case <-time.After(quickTime):
	}
	return false
}

// follow starts monitoring the command's output and exit.
func (e *execution) follow() {
	e.out.Start()
	go e.supervise()
}

// supervise monitors the command until it ends.
func (e *execution) supervise() {
	defer e.s.guard("an exec")
	end, state := e.await()
	if e.term != nil {
		e.term.Hurry()
	}
	leaked := e.out.Drain(drainTime) && e.leaves(0) || e.leaves(drainTime) // another command may hold the output
	e.over(end, state, leaked)
}

// leaves reports whether processes of the command are still running d after the command's exit.
func (e *execution) leaves(d time.Duration) bool {
	left := e.tree()
	for until := time.Now().Add(d); left.Alive(); time.Sleep(leftPause) {
		if !time.Now().Before(until) {
			return true
		}
	}
	return false
}

// await waits for the command to exit. It kills the command at the deadline or on request.
func (e *execution) await() (proc.Exit, wire.ExecState) {
	var deadline <-chan time.Time
	if e.timeout > 0 {
		deadline = time.After(e.left())
	}
	looks := time.NewTicker(lookPause)
	defer looks.Stop()
	defer e.look() // before other processes of the tree remove files
	for {
		select {
		case end := <-e.proc.Exited:
			return end, wire.ExecCompleted
		case <-looks.C:
			e.look()
		case <-deadline:
			if left := e.left(); left > 0 { // the deadline was extended
				deadline = time.After(left)
				continue
			}
			return e.endTree(e.grace), wire.ExecTimedOut
		case k := <-e.killing:
			return e.endTree(k.grace), k.state
		}
	}
}

// look notes which directories in memory are full, and which sockets wait for the network.
func (e *execution) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.full = e.full.Seen()
	e.direct.look()
}

// left returns the time until the deadline.
func (e *execution) left() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.timeout + e.more - time.Since(e.started)
}

// extend extends the deadline. It returns false if the maximum extension would be exceeded.
func (e *execution) extend(by time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.more+by > maxExtension {
		return false
	}
	e.more += by
	return true
}

// over records the end and notifies all waiters.
func (e *execution) over(end proc.Exit, state wire.ExecState, leaked bool) {
	e.s.spawner.RestoreScore()
	if e.proc.Stdin != nil {
		e.proc.Stdin.Close()
	}
	if e.term != nil {
		e.term.End()
	}
	cut := end.Status.Signaled() && end.Status.Signal() == unix.SIGXFSZ || end.Status.ExitStatus() == 128+int(unix.SIGXFSZ)
	want := e.s.quotas.Ended(e.limits, cut, end.Status != 0)
	if want.Note != "" && e.term == nil {
		e.out.Note(want.Note)
	}
	e.finish(end, state, leaked, want)
	e.s.execs.ended() // first, to prevent waiters from seeing a running command
	close(e.ended)
}

// forget drops recorded output.
func (e *execution) forget() {
	if e.rec != nil {
		e.rec.Forget()
	}
}

// endTree kills every process of the command and returns the exit of the main process.
func (e *execution) endTree(grace time.Duration) proc.Exit {
	k := e.tree()
	if e.term != nil && grace > 0 {
		k.Signal(unix.SIGHUP) // an interactive shell ignores SIGTERM
	}
	if !k.Terminate(grace) {
		e.s.logf("exec %s: processes do not die", e.id)
	}
	select {
	case end := <-e.proc.Exited:
		return end
	case <-time.After(time.Second):
		// The process was killed but is stuck in the kernel. It is reported as killed, and the reaper reaps it later.
		return proc.Exit{Status: syscall.WaitStatus(unix.SIGKILL)}
	}
}

func (e *execution) tree() *proc.Tree { return e.s.spawner.Tree(e.proc) }

// kill requests a kill of the tree. It does not wait. A second call has no effect.
func (e *execution) kill(grace time.Duration, state wire.ExecState) {
	if e.term != nil {
		e.term.Hurry()
	}
	select {
	case e.killing <- killing{grace, state}:
	default:
	}
}

// signal sends a signal to every process of the tree.
func (e *execution) signal(sig unix.Signal) {
	e.mu.Lock()
	e.named = true
	e.mu.Unlock()
	e.tree().Signal(sig)
}

// finish records the end.
func (e *execution) finish(end proc.Exit, state wire.ExecState, leaked bool, want disk.Shortage) {
	stdout, stderr := e.out.Totals()
	e.mu.Lock()
	defer e.mu.Unlock()
	st := &e.status
	st.State, st.Leaked = state, leaked
	st.StdoutBytes, st.StderrBytes = stdout, stderr
	e.endAt = time.Now()
	st.DurationMicros = e.endAt.Sub(e.started).Microseconds()
	st.PeakRSSBytes = end.PeakRSS
	denied := e.s.memory.Denials().Since(e.denials)
	st.OOMKills, st.ForksDenied = denied.OOMKills, denied.Forks
	sig := unix.Signal(0)
	if end.Status.Signaled() {
		sig = end.Status.Signal()
		st.Signal = proc.SignalName(sig)
		st.ExitCode = 128 + int(sig)&0x7f
	} else {
		st.ExitCode = end.Status.ExitStatus()
	}
	switch {
	case state != wire.ExecCompleted:
	case st.OOMKills > 0 && (sig == unix.SIGKILL || st.ExitCode == 128+int(unix.SIGKILL)):
		// 137 is a shell's exit code for a killed child process.
		st.State = wire.ExecOOMKilled
	case want.Stopped && st.ExitCode == 128+int(unix.SIGKILL):
		st.State = wire.ExecQuotaKilled
	case e.named && sig != 0:
		st.State = wire.ExecKilled
	}
	st.QuotaExceeded = want.Full || st.State == wire.ExecQuotaKilled
	st.QuotaOutside = want.Outside
	if e.full = e.full.Seen(); e.full != e.wasFull || st.ExitCode != 0 { // otherwise nothing was missing
		st.TmpFull, st.ShmFull = e.full[0], e.full[1]
	}
	if state != wire.ExecCompleted || st.ExitCode != 0 { // a failed connection had no effect on a successful command
		st.Direct = e.direct.count()
	}
	if e.rec != nil {
		e.rec.Ended()
	}
}

// snapshot returns the current status.
func (e *execution) snapshot() wire.ExecStatus {
	e.mu.Lock()
	st, endAt := e.status, e.endAt
	e.mu.Unlock()
	if st.State == wire.ExecRunning {
		st.DurationMicros = time.Since(e.started).Microseconds()
	} else {
		st.EndedMillis = max(1, time.Since(endAt).Milliseconds())
	}
	st.StdoutBytes, st.StderrBytes = e.out.Totals()
	return st
}

// final reports whether the command has ended.
func (e *execution) final() bool { return closed(e.ended) }

// after returns a channel with a value after ms milliseconds. If ms is negative, after returns nil.
func after(ms int64) <-chan time.Time {
	if ms < 0 {
		return nil
	}
	return time.After(time.Duration(ms) * time.Millisecond)
}

// millis converts milliseconds from the protocol to a duration. If ms is not positive, millis returns otherwise.
func millis(ms int64, otherwise time.Duration) time.Duration {
	if ms <= 0 {
		return otherwise
	}
	return time.Duration(min(ms, int64(time.Hour*24*365/time.Millisecond))) * time.Millisecond
}
