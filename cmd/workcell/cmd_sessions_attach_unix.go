//go:build unix

package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// onChange calls fn when the terminal may have another size, until ctx ends. A shell that had stopped this process has
// also changed the terminal's mode meanwhile.
func (t *hostTerminal) onChange(ctx context.Context, fn func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(ch)
	fn() // it may have changed before signals were caught
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-ch:
			if sig == syscall.SIGCONT {
				_ = t.raw() // the mode that there is will do
			}
			fn()
		}
	}
}

// showSequences has nothing to do: terminals understand control sequences.
func showSequences(io.Writer) func() { return nil }
