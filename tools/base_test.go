package tools_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// specs notes what sandboxes were asked for.
type specs struct {
	mu   sync.Mutex
	last backend.Spec
}

func (s *specs) note(_ context.Context, spec backend.Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = spec
	return nil
}

func (s *specs) latest() backend.Spec { s.mu.Lock(); defer s.mu.Unlock(); return s.last }

// within returns a context of a run that is based on base.
func (r *rig) within(id string, base session.Request) context.Context {
	run := session.Run{Namespace: "workflow", ID: id}
	r.t.Cleanup(func() {
		if err := r.manager.CloseScope(context.Background(), run.Scope()); err != nil {
			r.t.Error(err)
		}
	})
	return session.WithBase(session.WithRun(context.Background(), run), base)
}

// TestNarrowerThanTheRun asks for less than the run has, which zero values alone could not say.
func TestNarrowerThanTheRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var seen specs
	r.engine.onCreate(seen.note)
	no := false
	base := session.Request{Image: "custom:1", Network: backend.NetworkBridge, Root: backend.RootWritable}
	ctx := r.within("narrow", base)
	for name, s := range map[string]tools.Sandbox{
		"network": {Network: frontmatter.Network{Enabled: &no}, Root: frontmatter.RootReadonly},
		"older":   {AllowNetwork: &no, Root: frontmatter.RootReadonly},
	} {
		if out := r.tools(s).call(ctx, "sandbox_run", obj{"code": "x", "runtime": "bash"}); code(out) != "" {
			t.Errorf("%s: %v", name, out)
		}
		if got := seen.latest(); got.Network != backend.NetworkNone || got.Root != backend.RootReadonly {
			t.Errorf("%s: network %q, root %v", name, got.Network, got.Root)
		}
	}
	model, _ := r.model(call("sandbox_run", obj{"code": "x", "runtime": "bash"}), say("done"))
	a := r.agent("quiet", "---\nmodel: "+model+"\nsandbox: {network: {enabled: false}, root: readonly}\n---\nx")
	if _, err := a.Run(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := seen.latest(); got.Network != backend.NetworkNone || got.Root != backend.RootReadonly {
		t.Errorf("an agent's file: network %q, root %v", got.Network, got.Root)
	}
	if out := r.tools(tools.Sandbox{Mode: "code"}).call(ctx, "sandbox_open", nil); out["network"] != "bridge" {
		t.Fatalf("an agent without wishes: %v", out)
	}
	strict := tools.Sandbox{Mode: "code", Network: frontmatter.Network{Enabled: &no}, Root: frontmatter.RootReadonly}
	out := r.tools(strict).call(ctx, "sandbox_open", nil)
	if code(out) != "exists" || !strings.Contains(message(out), "network") || !strings.Contains(message(out), "root") {
		t.Errorf("an open sandbox has more than the agent may have: %v", out)
	}
}

// TestImageOfRuntime picks the image of agents whose language is not that of the run.
func TestImageOfRuntime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var seen specs
	r.engine.onCreate(seen.note)
	python := session.Request{Image: "my/python", Language: "python"}
	unknown := session.Request{Image: "my/image"}
	for name, tt := range map[string]struct {
		base  session.Request
		agent tools.Sandbox
		call  string // runtime of the call, compute mode
		want  string
	}{
		"run, another":             {python, tools.Sandbox{Runtime: "node"}, "", "node:20-slim"},
		"run, the same":            {python, tools.Sandbox{Runtime: "python"}, "", "my/python"},
		"run, none":                {python, tools.Sandbox{}, "", "my/python"},
		"run, none but the call":   {python, tools.Sandbox{}, "node", "node:20-slim"},
		"run, the call's the same": {python, tools.Sandbox{}, "python", "my/python"},
		"run, own image":           {python, tools.Sandbox{Runtime: "node", Image: "my/node"}, "", "my/node"},
		"run, unknown":             {unknown, tools.Sandbox{Runtime: "node"}, "", "node:20-slim"},
		"run, unknown and none":    {unknown, tools.Sandbox{}, "", "my/image"},
		"run, no base":             {session.Request{}, tools.Sandbox{Runtime: "bash"}, "node", "node:20-slim"},
		"own session, another":     {python, tools.Sandbox{Mode: "code", Runtime: "node", Session: "mine"}, "", "node:20-slim"},
		"own session, the same":    {python, tools.Sandbox{Mode: "code", Runtime: "python", Session: "mine"}, "", "my/python"},
		"own session, unknown":     {unknown, tools.Sandbox{Mode: "code", Runtime: "node", Session: "mine"}, "", "node:20-slim"},
		"shared, another":          {python, tools.Sandbox{Mode: "code", Runtime: "node"}, "", "node:20-slim"},
		"shared, unknown":          {unknown, tools.Sandbox{Mode: "code", Runtime: "node"}, "", "my/image"},
		"shared, none":             {python, tools.Sandbox{Mode: "code"}, "", "my/python"},
	} {
		ctx := r.within(session.NewRunID(), tt.base)
		tool, input := "sandbox_open", obj(nil)
		if tt.agent.Mode == "" {
			tool, input = "sandbox_run", obj{"code": "1"}
			if tt.call != "" {
				input["runtime"] = tt.call
			}
		}
		r.tools(tt.agent).call(ctx, tool, input) // what the code gives depends on the languages of this machine
		if got := seen.latest().Image; got != tt.want {
			t.Errorf("%s: image %q, want %q", name, got, tt.want)
		}
	}
}

func TestRunTakesTheRunsTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("timeout", session.Request{Image: "custom:1", ExecTimeout: time.Second})
	out := r.tools(bash()).call(ctx, "sandbox_run", obj{"code": "sleep 60"})
	if code(out) != "timeout" || !strings.Contains(message(out), "ended after 1 seconds") {
		t.Errorf("%v", out)
	}
}
