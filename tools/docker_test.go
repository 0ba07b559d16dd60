package tools_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// newDockerRig is a rig on the machine's Docker Engine. At the end nothing of it may be left there.
func newDockerRig(t *testing.T) *rig {
	t.Helper()
	b, err := docker.New(t.Context(), &docker.Options{Host: os.Getenv("DOCKER_HOST")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	r := rigOn(t, b, nil, fstest.MapFS{})
	t.Cleanup(func() {
		if n := r.containers(); n != 0 {
			t.Errorf("%d containers are left", n)
		}
	})
	return r
}

// containers counts the rig's sandboxes on the engine.
func (r *rig) containers() int {
	r.t.Helper()
	list, err := r.manager.Backend().List(context.Background(), backend.Filter{Instance: r.manager.Instance()})
	if err != nil {
		r.t.Fatal(err)
	}
	return len(list)
}

// inRun gives tools within a run that ends with the test.
func (r *rig) inRun(s tools.Sandbox) *toolset {
	r.t.Helper()
	run := session.Run{Namespace: session.NamespaceWorkflow, ID: session.NewRunID()}
	r.t.Cleanup(func() {
		if err := r.manager.CloseScope(context.Background(), run.Scope()); err != nil {
			r.t.Error(err)
		}
	})
	list, err := r.plugin.Tools(session.WithRun(context.Background(), run), s)
	if err != nil {
		r.t.Fatal(err)
	}
	set := &toolset{t: r.t, tools: map[string]ai.Tool{}}
	for _, tool := range list {
		set.tools[tool.Name()] = tool
	}
	return set
}

func TestDockerCode(t *testing.T) {
	t.Parallel()
	r := newDockerRig(t)
	set := r.inRun(tools.Sandbox{
		Mode: "code", Image: "workcell/python:3.11", Env: map[string]string{"GREETING": "hi"},
		Limits: frontmatter.Limits{MemoryMB: 256, PIDs: 64, CPUMillicores: 1000},
	})
	open := set.ok("sandbox_open", nil)
	if open["workdir"] != "/workspace" || open["user"] != "1000:1000" || open["network"] != "none" || sub(open["limits"])["memory_mb"] != 256.0 {
		t.Errorf("%v", open)
	}
	for _, part := range []string{"no network", "python3", "/workspace", "256 MiB"} {
		if !strings.Contains(str(open["note"]), part) {
			t.Errorf("the note lacks %q: %s", part, open["note"])
		}
	}
	out := set.ok("sandbox_fs_write", obj{"path": "pkg/m.py", "contents": "import os, sys\nprint(os.getuid(), os.environ['GREETING'], sys.argv[1:], os.getcwd())\n"})
	if out["path"] != "/workspace/pkg/m.py" {
		t.Errorf("%v", out)
	}
	out = set.ok("sandbox_exec", obj{"cmd": []string{"python3", "m.py", "a b", "*"}, "cwd": "pkg"})
	if out["stdout"] != "1000 hi ['a b', '*'] /workspace/pkg\n" {
		t.Errorf("%v", out)
	}
	if out := set.ok("sandbox_fs_read", obj{"path": "/workspace/pkg/m.py", "line_offset": 2}); !strings.HasPrefix(str(out["contents"]), "print(") {
		t.Errorf("%v", out)
	}
	out = set.ok("sandbox_exec", obj{"command": "touch /usr/x /etc/y; id -u; cat /proc/net/route | wc -l; wc -c < /dev/zero & sleep 30", "timeout_seconds": 2})
	if out["status"] != "timed_out" || !strings.Contains(str(out["stderr"]), "Read-only file system") || !strings.HasPrefix(str(out["stdout"]), "1000\n") {
		t.Errorf("%v", out)
	}
	out = set.ok("sandbox_exec", obj{"cmd": []string{"python3", "-c", "b = bytearray(1 << 30); print(len(b))"}})
	if out["status"] != "oom_killed" || !strings.Contains(str(out["stderr"]), "memory limit of 256 MiB was reached") {
		t.Errorf("out of memory: %v", out)
	}
	if out := set.ok("sandbox_exec", obj{"command": "echo alive; ls pkg"}); out["stdout"] != "alive\nm.py\n" {
		t.Errorf("afterwards: %v", out)
	}
	foreign := r.inRun(tools.Sandbox{Mode: "code", Image: "workcell/debian:12"})
	foreign.ok("sandbox_open", nil)
	list, err := r.manager.Backend().List(context.Background(), backend.Filter{Instance: r.manager.Instance()})
	if err != nil || len(list) != 2 {
		t.Fatalf("%v: %v", list, err)
	}
	for _, info := range list {
		for _, id := range []string{info.ID, info.ID[:12], "workcell-" + info.SessionID} {
			foreign.fails(tools.CodeNotFound, "sandbox_exec", obj{"command": "true", "sandbox_id": id})
		}
	}
	foreign.fails(tools.CodeNotFound, "sandbox_fs_read", obj{"path": "pkg/m.py", "sandbox_id": open["sandbox_id"]})
	set.ok("sandbox_close", obj{"delete_workspace": true})
	set.fails(tools.CodeClosed, "sandbox_fs_read", obj{"path": "pkg/m.py", "sandbox_id": open["sandbox_id"]})
	if n := r.containers(); n != 1 {
		t.Errorf("%d containers", n)
	}
}

func TestDockerRun(t *testing.T) {
	t.Parallel()
	r := newDockerRig(t)
	var wg sync.WaitGroup
	for runtime, tt := range map[frontmatter.Runtime]struct{ image, code, want string }{
		"python": {"workcell/python:3.11", "import sys, os\nprint(open('in/a.txt').read(), sys.argv[1], os.environ['A'])", "data x y z\n"},
		"node":   {"workcell/node:22", "console.log(require('fs').readFileSync('in/a.txt', 'utf8'), process.argv[2], process.env.A)", "data x y z\n"},
		"bash":   {"workcell/debian:12", `echo "$(cat in/a.txt) $1 $A"`, "data x y z\n"},
	} {
		wg.Go(func() {
			set := r.inRun(tools.Sandbox{Runtime: runtime, Image: tt.image})
			out := set.ok("sandbox_run", obj{"code": tt.code, "args": []string{"x y"}, "env": obj{"A": "z"}, "files": obj{"in/a.txt": "data"}})
			if out["stdout"] != tt.want || out["ok"] != true || out["runtime"] != string(runtime) {
				t.Errorf("%s: %v", runtime, out)
			}
		})
	}
	wg.Wait()
	set := r.inRun(tools.Sandbox{Image: "workcell/python:3.11", Limits: frontmatter.Limits{MemoryMB: 128}})
	out := set.call(context.Background(), "sandbox_run", obj{"code": "print('before')\nb = bytearray(1 << 30)"})
	if code(out) != "quota_exceeded" || out["stdout"] != "before\n" || !strings.Contains(message(out), "memory limit of 128 MiB") {
		t.Errorf("out of memory: %v", out)
	}
	out = set.call(context.Background(), "sandbox_run", obj{"code": "import time\nprint('before')\ntime.sleep(60)", "timeout_seconds": 1})
	if code(out) != "timeout" || out["stdout"] != "before\n" {
		t.Errorf("timeout: %v", out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := set.tools["sandbox_run"].RunRaw(ctx, obj{"code": "import time\ntime.sleep(60)"}); err == nil {
		t.Error("a cancelled call succeeded")
	}
	eventually(t, "the sandbox goes", func() bool { return r.containers() == 0 })
	missing := r.inRun(tools.Sandbox{Image: "127.0.0.1:1/no/such:image"})
	out = missing.fails(tools.CodeUnavailable, "sandbox_run", obj{"code": "x"})
	if strings.Contains(message(out), "/var/") || strings.Contains(message(out), "docker.sock") {
		t.Errorf("message %s", message(out))
	}
}

func TestDockerAgent(t *testing.T) {
	t.Parallel()
	r := newDockerRig(t)
	model, _ := r.model(
		call("sandbox_fs_write", obj{"path": "t.py", "contents": "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(6*7, 42)\n"}),
		call("sandbox_exec", obj{"cmd": []string{"python3", "-m", "unittest", "-v", "t"}}),
		func(req *ai.ModelRequest) ([]*ai.Part, error) {
			return say(fmt.Sprintf(`{"exit_code": %v}`, outputsOf(req)[1]["exit_code"]))(req)
		})
	file := filepath.Join(t.TempDir(), "tester.prompt")
	src := "---\nmodel: " + model + "\nsandbox:\n  mode: code\n  image: workcell/python:3.11\n---\nTest {{what}}."
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	agent, err := tools.LoadAgent(r.g, file)
	if err != nil {
		t.Fatal(err)
	}
	res, err := agent.Run(context.Background(), map[string]any{"what": "it"}, nil)
	if err != nil || sub(res.Output)["exit_code"] != 0.0 {
		t.Errorf("%+v: %v", res, err)
	}
	if n := r.containers(); n != 0 {
		t.Errorf("%d containers after the run", n)
	}
}
