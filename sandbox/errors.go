package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// LaunchReason is the reason why a program could not be started.
type LaunchReason string

// Launch reasons.
const (
	LaunchNotFound      LaunchReason = "not_found"      // program not found; exit code 127 in shells
	LaunchNotExecutable LaunchReason = "not_executable" // a directory, no permission, or a foreign binary; exit code 126
	LaunchBadDir        LaunchReason = "bad_dir"        // the working directory is missing or not accessible
	LaunchTooLong       LaunchReason = "too_long"       // arguments and environment exceed the kernel's limit
	LaunchNoResources   LaunchReason = "no_resources"   // pids or memory limit reached
)

// launchSentinels maps launch reasons to errors.
var launchSentinels = map[LaunchReason]error{
	LaunchNotFound: backend.ErrNotFound, LaunchNotExecutable: backend.ErrPermission, LaunchBadDir: backend.ErrInvalid,
	LaunchTooLong: backend.ErrTooLarge, LaunchNoResources: backend.ErrCapacity,
}

// LaunchError reports a failure to start a program. It wraps the sentinel for the reason.
type LaunchError struct {
	Reason  LaunchReason
	Message string // sanitized message from the sandbox
}

// Error returns a one-line message.
func (e *LaunchError) Error() string {
	return "cannot start the command: " + e.Message
}

// Unwrap returns the sentinel for the reason.
func (e *LaunchError) Unwrap() error { return cmp.Or(launchSentinels[e.Reason], backend.ErrInvalid) }

// ErrPaused reports that the sandbox is paused in the engine.
var ErrPaused = sanitize.NewError("the sandbox is paused; unpause it in the engine", backend.ErrUnavailable)

// WrapError wraps err in a backend.Error. If err is already a backend.Error, WrapError returns err.
func WrapError(op, driver, id string, err error) error {
	if err == nil || errors.As(err, new(*backend.Error)) {
		return err
	}
	return &backend.Error{Op: op, Backend: driver, ID: id, Err: publicError(err)}
}

// publicError converts a guest's error to an error of this package.
func publicError(err error) error {
	var fromGuest *wire.Error
	switch {
	case errors.As(err, &fromGuest):
		return guestError(fromGuest)
	case errors.Is(err, client.ErrConnLost) && errors.Is(err, backend.ErrLost): // reported by a driver's stream
		return sanitize.NewError(sanitize.Message(err.Error()), backend.ErrLost)
	case errors.Is(err, client.ErrTakenOver):
		return ErrTakenOver
	case errors.Is(err, client.ErrVersion):
		return sanitize.NewError(sanitize.Message(err.Error()), backend.ErrVersion)
	case errors.Is(err, client.ErrProtocol):
		return sanitize.NewError(sanitize.Message(err.Error()), backend.ErrProtocol)
	case errors.Is(err, client.ErrConnLost):
		return sanitize.NewError(sanitize.Message(err.Error()), backend.ErrUnavailable)
	}
	return err
}

// guestError returns the error for a guest's error code.
func guestError(e *wire.Error) error {
	message := sanitize.Message(e.Message)
	if e.Code == wire.CodeLaunch {
		reason := LaunchReason(e.Launch)
		if launchSentinels[reason] == nil {
			reason = LaunchNotExecutable
		}
		return &LaunchError{Reason: reason, Message: message}
	}
	sentinel := guestSentinels[e.Code]
	if sentinel == nil {
		return errors.New("sandbox: " + message)
	}
	return sanitize.NewError(strings.TrimSuffix(sentinel.Error()+": "+message, ": "), sentinel)
}

// guestSentinels maps codes of the wire protocol to errors.
var guestSentinels = map[wire.Code]error{
	wire.CodeNotFound: backend.ErrNotFound, wire.CodeExists: backend.ErrExists, wire.CodeInvalid: backend.ErrInvalid,
	wire.CodePermission: backend.ErrPermission, wire.CodeTooLarge: backend.ErrTooLarge,
	wire.CodeTimeout: backend.ErrTimeout, wire.CodeUnsupported: backend.ErrUnsupported,
	wire.CodeQuota: backend.ErrQuota, wire.CodeCapacity: backend.ErrCapacity, wire.CodeBusy: backend.ErrBusy,
}

// maxPrograms is the maximum number of programs in a guest's report.
const maxPrograms = 64

// Valid names of interpreters and signals.
var (
	programName = regexp.MustCompile(`\A[A-Za-z0-9_.+-]{1,32}\z`)
	signalName  = regexp.MustCompile(`\ASIG[A-Z0-9+-]*\z`)
)

// cleanHello makes a guest's hello safe to show to users and models.
func cleanHello(h wire.Hello) wire.Hello {
	if !cleanPath(h.Workdir) {
		h.Workdir = backend.Workdir
	}
	if h.Home != wire.Home(h.Workdir) && h.Home != "" {
		h.Home = h.Workdir
	}
	invalid := func(name string) bool { return !programName.MatchString(name) }
	h.Programs = slices.DeleteFunc(slices.Clone(h.Programs), invalid)
	h.Programs = h.Programs[:min(len(h.Programs), maxPrograms)]
	return h
}

// cleanPath reports whether a guest's path is absolute, clean, and not too long.
func cleanPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && len(p) <= maxPathBytes && sanitize.Message(p) == p
}

// cleanSignal returns a signal name from the guest. If the name is invalid, it returns "".
func cleanSignal(name string) string {
	if !signalName.MatchString(name) {
		return ""
	}
	return name
}

// maxAge is the maximum duration in a guest's report.
const maxAge = 100 * 365 * 24 * time.Hour

// duration converts a guest's duration. It limits values that would overflow.
func duration(n int64, unit time.Duration) time.Duration {
	return time.Duration(min(max(0, n), int64(maxAge/unit))) * unit
}

// execStatus converts the guest's status of a command.
func (s *Sandbox) execStatus(w wire.ExecStatus) ExecStatus {
	st := ExecStatus{
		ExecID: w.ExecID, Status: ExecState(w.State), ExitCode: w.ExitCode, Signal: cleanSignal(w.Signal),
		Duration:    duration(w.DurationMicros, time.Microsecond),
		StdoutBytes: w.StdoutBytes, StderrBytes: w.StderrBytes, PeakRSSBytes: w.PeakRSSBytes, Leaked: w.Leaked,
		QuotaExceeded: w.QuotaExceeded,
		Terminal:      w.Terminal, Origin: w.Origin, Limit: s.limitOf(w),
	}
	if w.EndedMillis > 0 || st.Status == ExecRunning {
		st.Age = st.Duration + duration(w.EndedMillis, time.Millisecond)
	}
	return st
}

// limitOf returns the limits reached during a command.
func (s *Sandbox) limitOf(w wire.ExecStatus) string {
	const mib = 1 << 20
	l := s.engine.Limits
	var out []string
	add := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(w.OOMKills > 0, "memory limit of %d MiB reached (processes killed: %d)", l.MemoryBytes/mib, w.OOMKills)
	add(w.ForksDenied > 0, "limit of %d processes and threads reached (not started: %d)", l.PIDs, w.ForksDenied)
	add(w.QuotaExceeded && w.QuotaOutside, "limit of %d MiB for files outside /workspace reached", s.engine.RootBytes/mib)
	add(w.QuotaExceeded && !w.QuotaOutside, "workspace limit of %d MiB reached", l.WorkspaceBytes/mib)
	add(w.TmpFull > 0, "/tmp is full (%d MiB)", w.TmpFull/mib)
	add(w.ShmFull > 0, "/dev/shm is full (%d MiB)", w.ShmFull/mib)
	add(w.Signal == "SIGXFSZ" && l.FileBytes > 0, "file size limit of %d bytes reached", l.FileBytes)
	// Python deletes shared memory when a program dies, often before the guest sees the full directory.
	bus := w.Signal == "SIGBUS" || w.Signal == "" && w.ExitCode == 128+7
	add(bus && len(out) == 0 && l.ShmBytes > 0, "SIGBUS: perhaps /dev/shm was full (%d MiB)", l.ShmBytes/mib)
	return strings.Join(out, "; ")
}

// nameLimits adds the sandbox's limits to an error if a command failed to start because of them.
func (s *Sandbox) nameLimits(err error) error {
	var e *wire.Error
	if l := s.engine.Limits; errors.As(err, &e) && e.Launch == string(LaunchNoResources) {
		e.Message += fmt.Sprintf(" (limits: %d processes and threads, %d MiB of memory)", l.PIDs, l.MemoryBytes>>20)
	}
	return err
}

// output converts one stream of an answer.
func (s *Sandbox) output(o wire.Output) Output {
	out := Output{Head: o.Head, Tail: o.Tail, Omitted: o.Omitted, Total: o.Total, PathCut: o.PathCut}
	if cleanPath(o.Path) && strings.HasPrefix(o.Path, s.hello.Workdir+"/") {
		out.Path = o.Path
	}
	return out
}
