package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Programs for measuring host tool calls in the sandbox. Each prints a JSON object with figures.
const (
	pythonHead = `
import json, sys, threading, time
from workcell import tools
N = int(sys.argv[1])
def times(n, f):
    out = []
    for _ in range(n):
        began = time.perf_counter()
        f()
        out.append((time.perf_counter() - began) * 1000)
    return sorted(out)
def echo(): tools.bench.echo(id="42")
times(20, echo)
`
	pythonKept = pythonHead + `
print(json.dumps({"hosttool_call_p50_ms": times(N, echo)[N // 2]}))
`
	pythonThreads = pythonHead + `
each = max(N // 4, 10)
threads = [threading.Thread(target=times, args=(each, echo)) for _ in range(8)]
began = time.perf_counter()
for t in threads: t.start()
for t in threads: t.join()
rate = 8 * each / (time.perf_counter() - began)
print(json.dumps({"hosttool_per_s_8": rate}))
`
)

// benchTools returns a registry with the measured tools and rules without the usual limits of a run.
func benchTools() (*hosttools.Registry, hosttools.Rules, error) {
	input := map[string]any{"type": "object", "properties": map[string]any{"id": map[string]any{"type": "string"}}}
	registry, err := hosttools.New(nil, hosttools.Static("bench",
		hosttools.Tool{
			Definition: hosttools.Definition{Name: "echo", Description: "Returns its arguments.", Input: input},
			Handle: func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
				return hosttools.Result{Data: c.Args}, nil
			},
		}))
	rules := hosttools.Rules{
		Allow:  []hosttools.Rule{{Tool: "bench.*", When: "size(args) < 10"}},
		Limits: hosttools.Limits{Calls: 1_000_000, PerSecond: 10_000, ResultKB: 64},
	}
	return registry, rules, err
}

// measureHostTools measures host tool calls from a program in a sandbox, in turns with our own exec.
func (c *contest) measureHostTools(ctx context.Context) (err error) {
	registry, rules, err := benchTools()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	set, err := registry.Set(ctx, hosttools.Grant{Rules: rules})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close(context.WithoutCancel(ctx))) }()
	attached := map[*contender]*hosttools.Attachment{}
	return c.each(c.opts.rounds, hasGuest, func(who contestant, b *contender) (got map[string]float64, err error) {
		if attached[b] == nil {
			if attached[b], err = hosttools.Attach(ctx, b.session.Sandbox); err != nil {
				return nil, err
			}
		}
		got = map[string]float64{}
		n := c.calls(who)
		before, err := series(n/2, b.exec)
		if err != nil {
			return nil, err
		}
		if err := runWithTools(ctx, b.session, attached[b], set, pythonKept, n, got); err != nil {
			return nil, err
		}
		after, err := series(n/2, b.exec)
		if err != nil {
			return nil, err
		}
		got["hosttool_exec_p50_ms"] = millis(append(before, after...).quantile(.5))
		return got, runWithTools(ctx, b.session, attached[b], set, pythonThreads, n, got)
	})
}

// runWithTools runs a program with the tools of a set, and adds the figures it prints.
func runWithTools(ctx context.Context, s *session.Session, a *hosttools.Attachment, set *hosttools.Set, program string, n int, got map[string]float64) error {
	req := sandbox.ExecRequest{Argv: []string{"python3", "-c", program, fmt.Sprint(n)}, Timeout: 5 * time.Minute}
	if err := a.Declare(ctx, set); err != nil {
		return err
	}
	a.Grant(ctx, set, &req)
	res, err := s.Exec(ctx, req)
	if err == nil && (res.ExitCode != 0 || res.Status != sandbox.ExecCompleted) {
		err = fmt.Errorf("a program that calls tools: %s, exit code %d: %s", res.Status, res.ExitCode, res.Stderr.Bytes())
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(res.Stdout.Bytes(), &got)
}
