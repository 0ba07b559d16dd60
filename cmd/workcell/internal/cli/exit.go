package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// exitCodeHelp documents the exit codes of package app.
const exitCodeHelp = `Exit codes:
  0        success
  1        the run failed, timed out, or was canceled by another command, or any other error
  2        invalid flags or arguments, for example a limit that is out of range
  3        invalid agent, workflow, script, input, or configuration file
  4        the model cannot be used: missing key or unknown provider
  5        the container engine is not available or cannot run sandboxes; see workcell doctor
  6        sandbox or run not found, or its container or files are gone (sandbox open can rebuild a named sandbox)
  7        conflict: already exists with different settings, is in use, or has ended; or files were skipped because
           they differ (runs get) or changed during the run (runs apply, --out)
  8        capacity: sandbox or process limit reached, or the workspace or host disk is full
  124      sandbox exec, attach: the command in the sandbox timed out
  125      sandbox exec, attach: Workcell failed, or the flags or arguments are invalid
  126      sandbox exec, attach: the program is not executable
  127      sandbox exec, attach: program not found in the sandbox
  128+n    signal n terminated workcell or, with exec and attach, the command: 130 Ctrl-C, 137 SIGKILL, 143 SIGTERM
Otherwise, sandbox exec and attach return the exit code of the command in the sandbox. If one of
these two fails because of Workcell itself, the exit code is 125 instead of 1 to 8. If worker, ui, dev, or
mcp --transport http is stopped by a signal, the exit code is 0.`

// finish prints err for the user and returns the exit code. A command stopped by a signal exits with the code
// for the signal, whatever the error.
func finish(ctx context.Context, stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code, todo := app.Classify(err)
	if sig, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
		code, todo = sig.exitCode(), ""
		if errors.Is(err, context.Canceled) {
			err = sig
		}
	}
	if app.IsResult(err) {
		return code
	}
	printError(stderr, err, todo)
	return code
}

// printError prints the error and the hint. The text may come from a sandbox, so it shows control characters instead of
// sending them to the terminal.
func printError(w io.Writer, err error, hint string) {
	fmt.Fprintf(w, "workcell: error: %s\n", indentLines(sanitize.Text(err.Error())))
	if hint != "" {
		fmt.Fprintf(w, "workcell: hint: %s\n", indentLines(sanitize.Text(hint)))
	}
}

// indentLines indents all lines of a message except the first.
func indentLines(s string) string {
	return strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ")
}

// signalError is the cause of a context canceled by a signal.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string {
	if e.sig == syscall.SIGINT {
		return "interrupted"
	}
	return "stopped by signal: " + e.sig.String()
}

// exitCode returns the shells' exit code: 128 plus the number of the signal.
func (e signalError) exitCode() int { return app.ExitSignalBase + int(e.sig) }

// watchSignals returns a context canceled by the first interrupt, termination, or hang-up signal, with a
// [signalError] as the cause. Commands then close their sandboxes and return. A second signal exits immediately.
//
// genkit.Init also catches these signals permanently. All receivers get a signal, so this works before and after Init.
// Init only disables the default action of the signals, which this function does not need.
func watchSignals(parent context.Context, stderr io.Writer, exit func(int)) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 2)
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		// nohup and background jobs of a shell ignore some signals on purpose.
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
