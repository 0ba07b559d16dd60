package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/session"
)

// Programs that measure calls of host tools where they are made. Each prints a JSON object of figures.
const (
	pythonHead = `
import json, subprocess, sys, threading, time
import workcell
from workcell import tools
N = int(sys.argv[1])
def times(n, f):
    out = []
    for _ in range(n):
        began = time.perf_counter()
        f()
        out.append((time.perf_counter() - began) * 1000)
    return sorted(out)
def p(out, q): return out[min(len(out) - 1, int(len(out) * q))]
def echo(): tools.bench.echo(id="42")
times(20, echo)
`
	pythonKept = pythonHead + `
t = times(N, echo)
print(json.dumps({"hosttool_call_p50_ms": p(t, .5), "hosttool_call_p99_ms": p(t, .99)}))
`
	// A client that finds none of its connections kept makes another one.
	pythonRest = pythonHead + `
def connect():
    for link in workcell._host.idle: link.sock.close()
    workcell._host.idle.clear()
    echo()
conn = times(max(N // 4, 10), connect)
each = max(N // 4, 10)
threads = [threading.Thread(target=times, args=(each, echo)) for _ in range(8)]
began = time.perf_counter()
for t in threads: t.start()
for t in threads: t.join()
rate = 8 * each / (time.perf_counter() - began)
shell = times(max(N // 20, 5), lambda: subprocess.run(["tools", "call", "bench.echo", '{"id":"42"}'], check=True, stdout=subprocess.DEVNULL))
big = times(max(N // 20, 5), lambda: tools.bench.large())
print(json.dumps({"hosttool_conn_p50_ms": p(conn, .5), "hosttool_per_s_8": rate, "hosttool_shell_p50_ms": p(shell, .5), "hosttool_1m_p50_ms": p(big, .5)}))
`
)

// benchTools returns the registry of the tools that are called, without the limits of a usual run.
func benchTools() (*hosttools.Registry, hosttools.Rules, error) {
	input := map[string]any{"type": "object", "properties": map[string]any{"id": map[string]any{"type": "string"}}}
	large := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	registry, err := hosttools.New(nil, hosttools.Static("bench",
		hosttools.Tool{
			Definition: hosttools.Definition{Name: "echo", Description: "Returns its arguments.", Input: input},
			Handle: func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
				return hosttools.Result{Data: c.Args}, nil
			},
		},
		hosttools.Tool{
			Definition: hosttools.Definition{Name: "large", Description: "Returns 1 MiB.", Input: input},
			Handle: func(context.Context, hosttools.Call) (hosttools.Result, error) {
				return hosttools.Result{Data: large}, nil
			},
		}))
	rules := hosttools.Rules{
		Allow:  []hosttools.Rule{{Tool: "bench.*", When: "size(args) < 10"}},
		Limits: hosttools.Limits{Calls: 1_000_000, PerSecond: 10_000, ResultKB: 64},
	}
	return registry, rules, err
}

// measureHostTools times calls of host tools from a program in a sandbox, in turns with our own exec.
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
	if err := c.measureDispatcher(ctx, set); err != nil {
		return err
	}
	attached := map[*sandbox]*hosttools.Attachment{}
	err = c.each(c.opts.rounds, hasGuest, func(who contestant, b *sandbox) (got map[string]float64, err error) {
		if attached[b] == nil {
			if attached[b], err = hosttools.Attach(ctx, b.session); err != nil {
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
		return got, runWithTools(ctx, b.session, attached[b], set, pythonRest, n, got)
	})
	return cmp.Or(err, c.measureHostToolsOpen(ctx, set))
}

// runWithTools runs a program that may call the tools of a set, and adds the figures it prints.
func runWithTools(ctx context.Context, s *session.Session, a *hosttools.Attachment, set *hosttools.Set, program string, n int, got map[string]float64) error {
	req := session.ExecRequest{Argv: []string{"python3", "-c", program, fmt.Sprint(n)}, Timeout: 5 * time.Minute}
	if err := a.Declare(ctx, set); err != nil {
		return err
	}
	a.Grant(ctx, set, &req)
	res, err := s.Exec(ctx, req)
	if err == nil && (res.ExitCode != 0 || res.Status != session.ExecCompleted) {
		err = fmt.Errorf("a program that calls tools: %s, exit code %d: %s", res.Status, res.ExitCode, res.Stderr.Bytes())
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(res.Stdout.Bytes(), &got)
}

// measureDispatcher times a call from its request to its reply, without a sandbox.
func (c *contest) measureDispatcher(ctx context.Context, set *hosttools.Set) error {
	access := set.Access(hosttools.Command{})
	s, err := series(max(2000*c.opts.scale/100, 20), func() error {
		reply := access.Call(ctx, "bench", trace.SpanContext{}, hosttools.Request{Tool: "bench.echo", Args: json.RawMessage(`{"id":"42"}`)})
		if reply.Error != nil {
			return reply.Error
		}
		return nil
	})
	c.figures["hosttool_dispatch_p50_ms.host"] = millis(s.quantile(.5))
	return err
}

// measureHostToolsOpen times what a first command that may call tools adds to an open and one that may not, in turns.
func (c *contest) measureHostToolsOpen(ctx context.Context, set *hosttools.Set) error {
	for _, who := range c.all {
		w, ok := who.(*workcell)
		if !ok {
			continue
		}
		plain, granted := sample{}, sample{}
		for range c.opts.rounds * max(5*c.opts.scale/100, 1) {
			for _, with := range []bool{false, true} {
				took, err := openTime(ctx, w, set, with)
				if err != nil {
					return fmt.Errorf("%s: %w", w.name(), err)
				}
				if with {
					granted = append(granted, took)
				} else {
					plain = append(plain, took)
				}
			}
		}
		c.figures["hosttool_open_added_ms."+w.name()] = millis(granted.quantile(.5) - plain.quantile(.5))
	}
	return nil
}

// openTime times from nothing to the end of a first command.
func openTime(ctx context.Context, w *workcell, set *hosttools.Set, granted bool) (took time.Duration, err error) {
	began := time.Now()
	b, err := w.open(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.remove()) }()
	req := session.ExecRequest{Argv: []string{"/bin/true"}}
	if granted {
		a, err := hosttools.Attach(ctx, b.session)
		if err != nil {
			return 0, err
		}
		if err := a.Declare(ctx, set); err != nil {
			return 0, err
		}
		a.Grant(ctx, set, &req)
	}
	res, err := b.session.Exec(ctx, req)
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("/bin/true: exit code %d", res.ExitCode)
	}
	return time.Since(began), err
}
