package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// Exit codes. The text below is their documentation; keep both together.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInvalid     = 3
	exitModel       = 4
	exitUnavailable = 5
	exitNotFound    = 6
	exitConflict    = 7
	exitNoRoom      = 8

	exitExecTimeout = 124
	exitExecProduct = 125
	exitExecNoRun   = 126
	exitExecMissing = 127
	exitSignalBase  = 128
)

const exitCodeHelp = `Exit codes:
  0        success
  1        the run failed, or any other error
  2        invalid flags or arguments, for example a limit that is out of range (125 in sessions exec and attach)
  3        invalid agent, workflow, script, input, or configuration file
  4        the model cannot be used: missing key or unknown provider
  5        the container engine is not available or cannot run sandboxes; see workcell doctor
  6        sandbox or run not found, or its container or files are gone (sessions open rebuilds a named sandbox)
  7        conflict: the sandbox or run exists with different settings, is in use, or has ended, or files have changed
           (runs apply, --out)
  8        capacity: sandbox or process limit reached, or the workspace or host disk is full
  124-127  sessions exec, attach: 124 command timed out, 125 Workcell error, 126 not executable, 127 program not found
  128+n    stopped by signal n: 130 for Ctrl-C, 143 for TERM
Otherwise, sessions exec and attach return the exit code of the command.`

// exitWith ends the command with a code and prints nothing: the output has said it.
func exitWith(code int) error { return fail(code, nil, "") }

// fail is an error with an exit code and a hint.
func fail(code int, err error, todo string) error { return hint.New(hint.Kind(code), err, todo) }

func usageError(err error, hint string) error { return fail(exitUsage, err, hint) }

// finish prints err as the user should see it and returns the exit code. A command that a signal ended exits as signals
// do, whatever error came of it.
func finish(ctx context.Context, stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code, todo := classify(err)
	var sig signalError
	if errors.As(context.Cause(ctx), &sig) {
		code, todo = sig.exitCode(), ""
		if errors.Is(err, context.Canceled) {
			err = sig
		}
	}
	if isResult(err) {
		return code
	}
	printError(stderr, err, todo)
	return code
}

// isResult reports whether an error is only an exit code.
func isResult(err error) bool {
	h := hint.Of(err)
	return h != nil && h.Err == nil
}

// printError writes the error and its hint. Text in it may come from a sandbox, so control characters are shown, not
// sent to the terminal.
func printError(w io.Writer, err error, hint string) {
	fmt.Fprintf(w, "workcell: error: %s\n", indentLines(sanitize.Text(err.Error())))
	if hint != "" {
		fmt.Fprintf(w, "workcell: hint: %s\n", indentLines(sanitize.Text(hint)))
	}
}

// indentLines sets off the further lines of a message.
func indentLines(s string) string {
	return strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ")
}

// classify returns the exit code and the hint of an error: the command's own choice, else that of the package that made it, else those of the error's class.
func classify(err error) (code int, todo string) {
	h := hint.Of(err)
	switch {
	case h == nil:
		return classOf(err)
	case h.Kind == hint.Failed:
		code, _ = classOf(h.Err)
		return code, h.Hint
	}
	return int(h.Kind), h.Hint
}

// classOf returns the exit code and the hint of an error by its class, of which the first that fits counts.
func classOf(err error) (code int, hint string) {
	var vanished *session.VanishedError
	var install *session.InstallError
	switch {
	case errors.As(err, &install) && len(install.Refused) > 0:
		return exitFailed, "add other hosts than the registries to setup.network.allow in the file; for private hosts, pass --egress-allow-private"
	case errors.As(err, &install):
		return exitFailed, "check pip_packages, npm_packages, and setup in the file; for other registries, pass --pip-index or --npm-registry"
	case errors.As(err, &vanished) && vanished.Key.Run() != "":
		return exitNotFound, fmt.Sprintf("to resume the run with its files, run `workcell runs resume %s`; to remove them, run `workcell runs cancel %[1]s`", vanished.Key.Run())
	case errors.As(err, &vanished):
		return exitNotFound, fmt.Sprintf("to rebuild it with its files, run `workcell sessions open --name %s` with its original --mount, --network, and --oci-runtime; to remove them, run `workcell sessions rm %[1]s`", vanished.Key.ID)
	case errors.Is(err, runstore.ErrDamaged):
		return exitFailed, "to end the run and remove its sandboxes, run `workcell runs cancel RUN`; other runs are not affected"
	case state.Hint(err) != "":
		return exitFailed, state.Hint(err)
	}
	for _, class := range []struct {
		code int
		err  error
		hint string
	}{
		{exitUnavailable, backend.ErrUnavailable, "run `workcell doctor` to check the container engine"},
		{exitFailed, backend.ErrImage, "check the image name, or map it to a mirror: --map-image FROM=TO"},
		{exitFailed, backend.ErrUnsupported, "run `workcell doctor` to see what this engine can enforce"},
		{exitNoRoom, backend.ErrCapacity, "stop running commands, or remove sandboxes: `workcell sessions ls`, then `workcell sessions rm SANDBOX`"},
		{exitNoRoom, backend.ErrNoRoom, "free space on the engine's disk, remove sandboxes (`workcell sessions gc`), or request a smaller workspace"},
		{exitNoRoom, backend.ErrQuota, "delete files with `workcell sessions rm SANDBOX:PATH`"},
		{exitConflict, backend.ErrExists, ""},
		{exitUsage, backend.ErrInvalid, ""},
		{exitNotFound, backend.ErrNotFound, "run `workcell sessions ls` to list sandboxes"},
	} {
		if errors.Is(err, class.err) {
			return class.code, class.hint
		}
	}
	return exitFailed, ""
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string {
	if e.sig == syscall.SIGINT {
		return "interrupted"
	}
	return "stopped by signal: " + e.sig.String()
}

// exitCode follows the shells: 128 plus the number of the signal.
func (e signalError) exitCode() int { return exitSignalBase + int(e.sig) }

// watchSignals returns a context that the first interrupt, termination or hang-up ends, with a [signalError] as its
// cause; commands then close their sandboxes and return. A second signal exits at once.
//
// genkit.Init also catches these signals, for good. A signal is delivered to everyone who asked for it, so this works
// before and after Init all the same; what Init takes away is only the default action, which is not relied upon here.
func watchSignals(parent context.Context, stderr io.Writer, exit func(int)) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 2)
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		// nohup and a shell's background jobs set some of these to be ignored, and mean it.
		if !signal.Ignored(sig) {
			signal.Notify(ch, sig)
		}
	}
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-ch:
				sig, _ := s.(syscall.Signal)
				if n > 0 {
					exit(signalError{sig}.exitCode())
					return
				}
				fmt.Fprintf(stderr, "workcell: %v, shutting down; repeat the signal to exit immediately\n", signalError{sig})
				cancel(signalError{sig})
			}
		}
	}()
	return ctx, func() {
		signal.Stop(ch)
		close(done)
		cancel(nil)
	}
}

// catchBrokenPipes makes writing to a reader that has gone away an error instead of the end of the process, for good: a
// run goes on without anybody who reads its progress, and closes its sandboxes when nobody reads its result. What is
// caught is not ignored by children, as an ignored signal would be.
func catchBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
