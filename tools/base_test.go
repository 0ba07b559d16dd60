package tools_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// TestNarrowerThanTheRun verifies that an agent can request less than the run has. Zero values alone could not express
// that.
func TestNarrowerThanTheRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("narrow", session.Request{Image: "custom:1", Network: backend.NetworkBridge, Root: backend.RootWritable})
	model, _ := r.model(call("sandbox_run", obj{"code": "x", "runtime": "bash"}), say("done"))
	a := r.agent("quiet", "---\nmodel: "+model+"\nsandbox: {network: {enabled: false}, root: readonly}\n---\nx")
	if _, err := a.Run(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := *r.engine.asked.Load(); got.Network != backend.NetworkNone || got.Root != backend.RootReadonly {
		t.Errorf("an agent's file: network %q, root %v", got.Network, got.Root)
	}
	if out := r.tools(tools.Sandbox{Mode: "code"}).call(ctx, "sandbox_open", nil); out["network"] != "bridge" {
		t.Fatalf("an agent without wishes: %v", out)
	}
	strict := tools.Sandbox{Mode: "code", Network: frontmatter.Network{Enabled: new(false)}, Root: frontmatter.RootReadonly}
	out := r.tools(strict).call(ctx, "sandbox_open", nil)
	if code(out) != "exists" || !strings.Contains(message(out), "network") || !strings.Contains(message(out), "root") {
		t.Errorf("an open sandbox has more than the agent may have: %v", out)
	}
}

// TestImageOfRuntime verifies the image selection for agents whose language differs from the run's language.
func TestImageOfRuntime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	python := session.Request{Image: "my/python", Language: "python"}
	unknown := session.Request{Image: "my/image"}
	for name, tt := range map[string]struct {
		base  session.Request
		agent tools.Sandbox
		call  string // runtime of the call, in compute mode
		want  string
	}{
		"run, another":             {python, tools.Sandbox{Runtime: "node"}, "", "node:20-slim"},
		"run, the same":            {python, tools.Sandbox{Runtime: "python"}, "", "my/python"},
		"run, none":                {python, tools.Sandbox{}, "", "my/python"},
		"run, only the call":       {python, tools.Sandbox{}, "node", "node:20-slim"},
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
		r.tools(tt.agent).call(ctx, tool, input) // the result of the code depends on the languages on the host
		if got := r.engine.asked.Load().Image; got != tt.want {
			t.Errorf("%s: image %q, want %q", name, got, tt.want)
		}
	}
}

func TestRunTakesTheRunsTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("timeout", session.Request{Image: "custom:1", ExecTimeout: time.Second})
	out := r.tools(bash()).call(ctx, "sandbox_run", obj{"code": "sleep 60"})
	if code(out) != "timeout" || !strings.Contains(message(out), "timed out after 1 seconds") {
		t.Errorf("%v", out)
	}
}

// TestPorts verifies that sandbox_open returns the ports in the agent's file.
func TestPorts(t *testing.T) {
	t.Parallel()
	out := newRig(t).tools(tools.Sandbox{Mode: "code", Ports: map[string]int64{"web": 8080, "api": 9000}}).ok("sandbox_open", nil)
	want := []any{
		obj{"name": "api", "port": 9000.0, "url": "http://127.0.0.1:9000"},
		obj{"name": "web", "port": 8080.0, "url": "http://127.0.0.1:8080"},
	}
	if diff := cmp.Diff(want, out["ports"]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
