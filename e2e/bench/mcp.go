package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

// measureMCP measures a command in a Workcell sandbox, in turns with the same command through `workcell mcp` on stdio.
// It uses the installed command and the official client, to measure the overhead of the server.
func (c *contest) measureMCP(ctx context.Context) (err error) {
	program, dir, remove, err := command(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
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
		fronted := func() error { return call(ctx, front) }
		direct, through, err := alternate(c.calls(who), b.exec, fronted)
		if err := errors.Join(err, front.Close()); err != nil {
			return nil, err
		}
		over := millis(through.quantile(.5))
		return map[string]float64{"mcp_exec_p50_ms": over, "mcp_overhead_p50_ms": over - millis(direct.quantile(.5))}, nil
	})
}

// command builds the workcell command in a new directory, which is also its state directory.
func command(ctx context.Context) (program, dir string, remove func() error, err error) {
	if dir, err = os.MkdirTemp("", "workcell-bench-"); err != nil {
		return "", "", nil, err
	}
	program = filepath.Join(dir, "workcell")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/workcell").CombinedOutput(); err != nil {
		return "", "", nil, errors.Join(fmt.Errorf("building the command: %w\n%s", err, out), os.RemoveAll(dir))
	}
	return program, dir, func() error { return os.RemoveAll(dir) }, nil
}

// call runs /bin/true through the server.
func call(ctx context.Context, front *mcp.ClientSession) error {
	return callTool(ctx, front, toolspec.ToolExec, map[string]any{"cmd": []string{"/bin/true"}})
}

// callTool calls a tool. The call must succeed.
func callTool(ctx context.Context, front *mcp.ClientSession, name string, args map[string]any) error {
	res, err := front.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err == nil && res.IsError {
		err = fmt.Errorf("%s: %v", name, res.StructuredContent)
	}
	return err
}

// alternate measures a and b n times in turns, so that both run under the same conditions.
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
