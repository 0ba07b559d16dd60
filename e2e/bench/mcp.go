package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/commandtest"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// measureMCP measures a command in a Workcell sandbox, in turns with the same command through `workcell mcp` on stdio.
// It uses the installed command and the official client, to measure the overhead of the server.
func (c *contest) measureMCP(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "workcell-bench-") // also the state directory
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, err := commandtest.Build(dir)
	if err != nil {
		return err
	}
	return c.each(c.opts.rounds, hasGuest, func(who contestant, b *contender) (map[string]float64, error) {
		w, ok := who.(*workcell)
		if !ok {
			return nil, fmt.Errorf("%s has no command", who.name())
		}
		server := exec.CommandContext(ctx, program, "mcp", "--state-dir", dir, "--backend", w.engine,
			"--map-image=python:3.11-slim="+c.opts.image)
		client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
		front, err := client.Connect(ctx, &mcp.CommandTransport{Command: server}, nil)
		if err != nil {
			return nil, err
		}
		fronted := func() error {
			res, err := front.CallTool(ctx, &mcp.CallToolParams{
				Name: toolspec.ToolExec, Arguments: map[string]any{"cmd": []string{"/bin/true"}},
			})
			if err == nil && res.IsError {
				err = fmt.Errorf("%s: %v", toolspec.ToolExec, res.StructuredContent)
			}
			return err
		}
		direct, through, err := alternate(c.calls(who), b.exec, fronted)
		if err := errors.Join(err, front.Close()); err != nil {
			return nil, err
		}
		over := millis(through.quantile(.5))
		return map[string]float64{"mcp_exec_p50_ms": over, "mcp_overhead_p50_ms": over - millis(direct.quantile(.5))}, nil
	})
}

// alternate measures a and b n times in turns, to ensure the same conditions for both.
func alternate(n int, a, b func() error) (sa, sb sample, err error) {
	for range 20 { // warm up
		if err := errors.Join(a(), b()); err != nil {
			return nil, nil, err
		}
	}
	for range n {
		begin := time.Now()
		if err := a(); err != nil {
			return nil, nil, err
		}
		between := time.Now()
		if err := b(); err != nil {
			return nil, nil, err
		}
		sa, sb = append(sa, between.Sub(begin)), append(sb, time.Since(between))
	}
	return sa, sb, nil
}
