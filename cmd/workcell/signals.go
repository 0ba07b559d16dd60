package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string {
	if e.sig == syscall.SIGINT {
		return "interrupted"
	}
	return "ended by signal: " + e.sig.String()
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
				fmt.Fprintf(stderr, "workcell: %v, closing down; once more to quit at once\n", signalError{sig})
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
