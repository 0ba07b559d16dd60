package tools_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// asking returns a rig with real sandboxes, and an agent whose code needs an approval for the host tool app.refund.
func asking(t *testing.T) (*rig, tools.Sandbox) {
	t.Helper()
	dir := t.TempDir()
	checktest.Must(t, os.Chmod(dir, 0o700))
	b, err := local.New(t.Context(), &local.Options{StateDir: dir})
	checktest.Must(t, err)
	m, err := session.NewManager(b, &session.Options{Instance: "here", Store: record.NewMemoryStore()})
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, errors.Join(m.Close(context.Background()), b.Close())) })
	refund := hosttools.Tool{Definition: hosttools.Definition{Name: "refund"},
		Handle: func(context.Context, hosttools.Call) (hosttools.Result, error) {
			return hosttools.Result{Text: "refunded", Files: []hosttools.File{{MIME: "text/plain", Bytes: []byte("x")}}}, nil
		}}
	host, err := hosttools.New(nil, hosttools.Static("app", refund))
	checktest.Must(t, err)
	r := &rig{t: t, manager: m, log: &buffertest.Buffer{}}
	r.plugin = &tools.Plugin{Manager: m, HostTools: host, ApprovalInterrupts: true}
	r.g = initGenkit(t, fstest.MapFS{}, r.plugin)
	return r, tools.Sandbox{Mode: "code", Image: "host",
		HostTools: &hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.refund", Ask: "true"}}}}
}

// TestInterruptedExec verifies that a command that waits for an approval, and commands in the background, continue
// after the context of the interrupted call was canceled. The command outlasts yield_ms, and other calls can be
// interrupted. The same applies to the second program of an interpreter, whose exit is reported. The late end of the
// interrupted call keeps a user's sandbox.
func TestInterruptedExec(t *testing.T) {
	t.Parallel()
	r, cfg := asking(t)
	name, seen := r.model(call("sandbox_exec", obj{"command": "echo $$ > /tmp/pid; exec sleep 1000", "yield_ms": 200}),
		call("sandbox_exec", obj{"command": "tools call app.refund {}; tools call app.refund {}", "yield_ms": 5000}),
		call("sandbox_exec", obj{"command": "sleep 0.5; kill -0 $(cat /tmp/pid) && echo alive"}),
		call("sandbox_exec", obj{"interpreter": "python", "code": "from workcell import tools\nimport time"}),
		call("sandbox_exec", obj{"interpreter": "python", "yield_ms": 5000,
			"code": "tools.app.refund()\ntime.sleep(5.5)\ntools.app.refund()\n'twice'"}),
		call("sandbox_exec", obj{"interpreter": "python", "yield_ms": 5000,
			"code": "from workcell import tools\nimport os, time\ntools.app.refund()\ntime.sleep(5.5)\nos._exit(3)"}),
		say("done"))
	cfg.Session, cfg.Keep = "user", "workspace"
	in := session.WithUser(r.within(session.NewRunID(), session.Request{}), "ann")
	options := []ai.GenerateOption{ai.WithModelName(name), ai.WithUse(r.plugin.Use(cfg))}
	ctx, cancel := context.WithCancel(in)
	resp, err := genkit.Generate(ctx, r.g, append(options, ai.WithPrompt("go"))...)
	cancel()
	if err != nil || len(resp.Interrupts()) != 1 {
		t.Fatalf("%+v, %v", seen.outputs(), err)
	}
	// During this call, the first call reaches its yield_ms.
	other, _, err := r.generate(session.WithUser(in, "bob"), cfg,
		call("sandbox_exec", obj{"command": "sleep 5.5; tools call app.refund '{}'", "yield_ms": 30000}))
	if err != nil || len(other.Interrupts()) != 1 {
		t.Errorf("%+v, %v", other, err)
	}
	for len(resp.Interrupts()) > 0 {
		part := ai.NewToolRequestPart(resp.Interrupts()[0].ToolRequest)
		asked, _ := resp.Interrupts()[0].Metadata["interrupt"].(obj)
		part.Metadata = obj{"resumed": obj{"approval": asked["approval"], "allow": true}}
		more := []ai.GenerateOption{ai.WithMessages(resp.History()...), ai.WithToolRestarts(part)}
		// Genkit returns an interrupt of a restarted call with an error.
		if resp, err = genkit.Generate(in, r.g, append(more, options...)...); resp == nil {
			t.Fatal(err)
		}
	}
	if outs := seen.outputs(); outs[1]["stdout"] != "refunded\nrefunded\n" || outs[2]["stdout"] != "alive\n" ||
		outs[4]["value"] != "'twice'" || outs[5]["exit_code"] != float64(3) ||
		!strings.Contains(str(outs[5]["stderr"]), lostVariables) {
		t.Errorf("%v", outs)
	}
}

// TestLeftovers verifies that the end of a Generate call ends its interpreter and removes the result files of host
// tools, even if a command left processes. An agent's own interpreter is not a use of a user's sandbox, unlike another
// agent's interpreter.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	r, cfg := asking(t)
	cfg.HostTools.Allow[0].Ask = ""
	ctx := r.within(session.NewRunID(), session.Request{})
	program := obj{"interpreter": "python", "code": "from workcell import tools\ntools.app.refund()"}
	_, seen, err := r.generate(ctx, cfg, call("sandbox_exec", program),
		call("sandbox_exec", obj{"command": "tools call app.refund '{}'; sleep 1000 >/dev/null 2>&1 &"}), say("done"))
	checktest.Must(t, err)
	cfg.HostTools = nil
	look := obj{"command": "ls .workcell/results; pgrep -f [w]orkcell-interpreter"}
	left := str(r.toolsIn(ctx, cfg).call(ctx, "sandbox_exec", look)["stdout"])
	if outs := seen.outputs(); code(outs[0]) != "" || !strings.Contains(str(outs[1]["stderr"]), "results") || left != "" {
		t.Errorf("%v, left: %s", outs, left)
	}
	cfg.Session, cfg.Keep = "user", "workspace"
	ctx = session.WithUser(ctx, "ann")
	one := obj{"interpreter": "python", "code": "1"}
	for _, another := range []bool{false, true} {
		if another {
			r.toolsIn(ctx, cfg).call(ctx, "sandbox_exec", one)
		}
		_, seen, err = r.generate(ctx, cfg, call("sandbox_exec", one), say("done"))
		checktest.Must(t, err)
		list, err := r.manager.List(ctx)
		kept := slices.ContainsFunc(list, func(i session.Info) bool {
			return i.Key.Namespace == record.NamespaceUser && i.State == session.StateReady
		})
		if err != nil || kept != another {
			t.Errorf("%t, %v: %+v, %v", another, seen.outputs(), list, err)
		}
	}
}

const lostVariables = "variables of earlier programs are lost"

// TestLateLoss verifies that a program that outlasts yield_ms reports the exit of its interpreter.
func TestLateLoss(t *testing.T) {
	t.Parallel()
	r, cfg := asking(t)
	cfg.HostTools = nil
	ctx := r.within(session.NewRunID(), session.Request{})
	set := r.toolsIn(ctx, cfg)
	begun := set.call(ctx, "sandbox_exec", obj{"interpreter": "python", "yield_ms": 100,
		"code": "import os, time\ntime.sleep(2)\nos._exit(3)"})
	ended := set.call(ctx, "sandbox_exec_wait", obj{"exec_id": begun["exec_id"]})
	if text := str(ended["stderr"]); ended["exit_code"] != float64(3) || !strings.Contains(text, lostVariables) {
		t.Errorf("%v, then %v", begun, ended)
	}
}
