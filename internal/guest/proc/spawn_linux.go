package proc

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Values of wire.Error.Launch for failed starts.
const (
	launchNotFound      = "not_found"
	launchNotExecutable = "not_executable"
	launchBadDir        = "bad_dir"
	launchTooLong       = "too_long"
	NoResources         = "no_resources" // no process or memory is available
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// childOOMScore is added to the OOM score of every command, to keep the kernel from killing the guest agent first.
	childOOMScore = 500
	maxOOMScore   = 1000
	// tracers is the maximum number of concurrent starts of commands with separate limits. Each start occupies a thread.
	tracers = 2
)

// Spawner starts processes.
type Spawner struct {
	*tracker
	workdir string
	reaper  *reaper
	null    int // standard input of commands without input

	starting atomic.Pointer[Tree] // the last command
	alarm    int                  // timer descriptor that makes killStopped run, or stop if starting is nil

	tracing chan struct{} // held while the limits of a command are set
	oom     *os.File      // written with forking held; has the guest agent's score except during a fork
	score   [2]string     // score of the guest agent, and score of child processes
}

// NewSpawner returns a Spawner, which reaps every child of this process.
func NewSpawner(workdir string, p *Protection) (*Spawner, error) {
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) // every container runtime creates this file
	if err != nil {
		return nil, os.NewSyscallError("/dev/null", err)
	}
	alarm, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(null) // no data was written
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	s := &Spawner{workdir: workdir, reaper: newReaper(), tracker: newTracker(p), null: null, alarm: alarm,
		tracing: make(chan struct{}, tracers), oom: p.score, score: oomScores(p.score)}
	go s.killStopped()
	return s, nil
}

// oomScores returns the guest agent's initial score, below which it could not lower the score again, and the score of
// child processes.
func oomScores(f *os.File) [2]string {
	own := 0
	if f != nil {
		var buf [16]byte
		n, _ := f.ReadAt(buf[:], 0) // an unreadable score counts as 0
		own, _ = strconv.Atoi(strings.TrimSpace(string(buf[:n])))
		own = max(own, 0)
	}
	return [2]string{strconv.Itoa(own), strconv.Itoa(min(own+childOOMScore, maxOOMScore))}
}

// Close stops the reaper when no commands are left.
func (s *Spawner) Close() {
	s.reaper.stop()
	_ = unix.Close(s.null) // no data was written
	s.starting.Store(nil)
	s.setAlarm(1)
}

// Process is a started command, with the guest agent's ends of the streams.
type Process struct {
	PID    int
	Stdin  *InputPipe  // nil if the command has no input
	Out    [2]int      // descriptors of standard output and standard error; may be negative
	Exited <-chan Exit // receives one value
	tag    atomic.Uint64
}

// Has reports whether the command's processes have this tag. The command may still be starting.
func (p *Process) Has(tag uint64) bool { return p.tag.Load() == tag }

// Start starts a command as p. If frozen is set, the command must not write to files. Start returns failures as
// *wire.Error with a launch reason.
func (s *Spawner) Start(p *Process, req *wire.RunRequest, frozen bool) error {
	e, err := connect(req, s.null)
	defer func() { closeAll(e.made) }()
	if err == nil {
		err = s.start(p, req, e, frozen)
	}
	if err != nil {
		closeAll(e.own)
		return err
	}
	p.Out = e.out
	if e.in >= 0 {
		p.Stdin = newInputPipe(e.in, e.terminal)
	}
	return nil
}

func (s *Spawner) start(p *Process, req *wire.RunRequest, e *ends, frozen bool) error {
	env, err := environment(req.Env, req.ExecID)
	if err != nil {
		return err
	}
	dir := cmp.Or(req.Dir, s.workdir)
	argv := req.Argv
	if len(argv) == 0 && e.terminal {
		shell, err := findShell(dir, req.Env)
		if err != nil {
			return err
		}
		argv = []string{shell}
	}
	if err := checkSpawn(&req.Spawn, argv); err != nil {
		return err
	}
	if err := checkDir(dir); err != nil {
		return err
	}
	path, err := lookPath(argv[0], dir, env)
	if err != nil {
		return err
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: e.terminal},
		Files: []uintptr{uintptr(e.files[0]), uintptr(e.files[1]), uintptr(e.files[2])}}
	limits, err := limitsOf(&req.Spawn, frozen)
	if err != nil {
		return wire.Errorf(wire.CodeInternal, "reading limits: %v", err)
	}
	err = s.forkLimited(p, path, argv, attr, limits)
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path) // launchError looks for it from another directory
	}
	return launchError(err, path)
}

// fork creates the child process. It retries in two cases. A new program file may still be open in another child
// between fork and exec. And killed processes count against the process limit until they are reaped.
func (s *Spawner) fork(p *Process, path string, argv []string, attr *syscall.ProcAttr) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := s.forkOnce(p, path, argv, attr)
		if !errors.Is(err, unix.ETXTBSY) && !errors.Is(err, unix.EAGAIN) || pause > 256*time.Millisecond {
			return err
		}
		time.Sleep(pause)
	}
}

func (s *Spawner) forkOnce(p *Process, path string, argv []string, attr *syscall.ProcAttr) error {
	s.forking.Lock()
	defer s.forking.Unlock()
	tag, err := s.nextTag()
	if err != nil {
		return err
	}
	p.tag.Store(tag) // set before the child runs
	defer pauseCollector()()
	s.starting.Store(s.Tree(p))
	s.setAlarm(stoppedBound)
	defer s.setAlarm(0)
	s.writeScore(s.score[1])
	p.PID, p.Exited, err = s.reaper.start(func() (int, error) { return syscall.ForkExec(path, argv, attr) })
	s.writeScore(s.score[0])
	return err
}

// RestoreScore restores the guest agent's score after a command of the root user may have changed it.
func (s *Spawner) RestoreScore() {
	s.forking.Lock()
	defer s.forking.Unlock()
	s.writeScore(s.score[0])
}

// writeScore sets the guest agent's score. The caller must hold forking. Errors are ignored: they only affect which
// process the kernel kills first, so the command runs anyway.
func (s *Spawner) writeScore(score string) {
	if s.oom != nil {
		_, _ = s.oom.WriteAt([]byte(score), 0)
	}
}

// checkSpawn rejects arguments otherwise truncated or misinterpreted by the kernel.
func checkSpawn(sp *wire.Spawn, argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return wire.Errorf(wire.CodeInvalid, "the command is empty")
	}
	for _, a := range argv {
		if strings.IndexByte(a, 0) >= 0 {
			return wire.Errorf(wire.CodeInvalid, "an argument contains a NUL byte")
		}
	}
	if strings.IndexByte(sp.Dir, 0) >= 0 {
		return wire.Errorf(wire.CodeInvalid, "the directory contains a NUL byte")
	}
	if sp.OpenFiles < 0 || sp.FileBytes < 0 || sp.TimeoutMillis < 0 || sp.GraceMillis < 0 {
		return wire.Errorf(wire.CodeInvalid, "a negative limit")
	}
	return nil
}

// environment validates env and adds the marker variable. A request must not set this variable.
func environment(env []string, id string) ([]string, error) {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			return nil, wire.Errorf(wire.CodeInvalid, "%.40q is not NAME=value", name)
		}
		if strings.IndexByte(kv, 0) >= 0 {
			return nil, wire.Errorf(wire.CodeInvalid, "the variable %.40q contains a NUL byte", name)
		}
		if name != wire.ExecVariable {
			out = append(out, kv)
		}
	}
	return append(out, wire.ExecVariable+"="+id), nil
}

// lookPath finds a program like execvp, in the PATH of the command's environment.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // relative to dir, the child's working directory
	}
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	denied := false
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		candidate := filepath.Join(d, name)
		var st unix.Stat_t
		if unix.Stat(candidate, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			continue
		}
		if unix.Access(candidate, unix.X_OK) == nil {
			return candidate, nil
		}
		denied = true
	}
	if denied {
		return "", launchFail(launchNotExecutable, "%q is not executable", name)
	}
	return "", launchFail(launchNotFound, "%q was not found on PATH", name)
}

func launchFail(reason, format string, args ...any) *wire.Error {
	e := wire.Errorf(wire.CodeLaunch, format, args...)
	e.Launch = reason
	return e
}

// isShortage reports whether the reason for an error is too many processes or files, or too little memory.
func isShortage(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) ||
		errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

func shortage(err error) *wire.Error {
	return launchFail(NoResources, "cannot start a process: %v", err)
}

// launchError converts the error of a failed start to an error with a launch reason.
func launchError(err error, path string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		if unix.Access(path, unix.F_OK) == nil {
			return launchFail(launchNotFound, "the interpreter of %q was not found", path)
		}
		return launchFail(launchNotFound, "program %q not found", path)
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENAMETOOLONG) && unix.Access(path, unix.F_OK) == nil: // gVisor
		return launchFail(launchTooLong, "arguments and environment are larger than the kernel allows")
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
		return launchFail(launchNotFound, "program %q not found: %v", path, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOEXEC),
		errors.Is(err, unix.EISDIR), errors.Is(err, unix.ETXTBSY), errors.Is(err, unix.ELIBBAD), errors.Is(err, unix.EINVAL):
		return launchFail(launchNotExecutable, "%q cannot be executed: %v", path, err)
	case isShortage(err):
		return shortage(err)
	}
	return wire.Errorf(wire.CodeInternal, "starting %q: %v", path, err)
}

// Programs returns the available interpreters and tools commonly needed by agents.
func Programs(path string) []string {
	var found []string
	for _, name := range []string{"sh", "bash", "python3", "python", "pip", "node", "npm", "git", "make", "gcc", "go",
		"perl", "ruby", "java", "curl", "jq"} {
		if _, err := lookPath(name, "/", []string{"PATH=" + cmp.Or(path, defaultPath)}); err == nil {
			found = append(found, name)
		}
	}
	return found
}
