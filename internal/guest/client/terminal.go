package client

import (
	"context"
	"errors"
	"io"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Terminal starts an exec on a terminal, which req.Terminal describes, and stays there until it ends. Its input comes
// from stdin (nil means none); its output goes live to stdout, all of it, at the pace of that writer. When ctx ends first, or stdin does,
// the exec runs on; the guest ends it when nobody was at its terminal for req.TimeoutMillis. Terminal may return while a
// Read of stdin is still under way. A viewer that takes nothing while others wait for it may get ErrSlowReader.
func (c *Conn) Terminal(ctx context.Context, req wire.RunRequest, stdin io.Reader, stdout io.Writer) (wire.RunResult, error) {
	return c.terminal(ctx, wire.OpTerminal, &req, req.ExecID, stdin, stdout)
}

// Join goes to the terminal of an exec as Terminal does, with a part of what was written there before.
func (c *Conn) Join(ctx context.Context, req wire.TerminalRequest, stdin io.Reader, stdout io.Writer) (wire.RunResult, error) {
	return c.terminal(ctx, wire.OpJoin, &req, req.ExecID, stdin, stdout)
}

func (c *Conn) terminal(ctx context.Context, op wire.Op, req any, id string, stdin io.Reader, stdout io.Writer) (wire.RunResult, error) {
	k, err := c.open(ctx, op, req)
	if err != nil {
		return wire.RunResult{}, err
	}
	defer k.end()
	f := newFeeder(k)
	defer f.stop()
	if stdin != nil {
		go f.feed(stdin)
	}
	res, err := k.result(&wire.RunRequest{ExecID: id}, f, stdout, nil)
	if errors.Is(err, errUnanswered) {
		err = ErrSlowReader
	}
	return res, err
}

// Resize sets the size of an exec's terminal.
func (c *Conn) Resize(ctx context.Context, req wire.TerminalRequest) error {
	return c.roundTrip(ctx, wire.OpResize, &req, new(wire.Empty))
}
