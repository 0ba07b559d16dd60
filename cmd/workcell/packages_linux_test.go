package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli/sandboxcmd"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// depot serves a tool for a setup, and an index without packages. It delays the first answer until it is
// released.
type depot struct {
	addr    string
	fetched atomic.Int64
	asked   chan struct{} // closed by the first request for the tool
	release chan struct{}
}

func newDepot(t *testing.T) *depot {
	t.Helper()
	d := &depot{asked: make(chan struct{}), release: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/tool", func(w http.ResponseWriter, r *http.Request) {
		if d.fetched.Add(1) == 1 {
			close(d.asked)
			select {
			case <-d.release:
			case <-r.Context().Done():
			}
		}
		_, _ = w.Write([]byte("#!/bin/sh\necho hello from a tool\n"))
	})
	l, err := net.Listen("tcp", "127.0.0.4:0")
	checktest.Must(t, err)
	s := httptest.NewUnstartedServer(mux)
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	d.addr = l.Addr().String()
	return d
}

// workflow returns a workflow whose sandbox has the tool installed.
func (d *depot) workflow() string {
	return fmt.Sprintf(`id: tool
sandbox:
  runtime: bash
  setup: {run: ["curl -fsS -o /opt/workcell/bin/tool http://%s/tool && chmod +x /opt/workcell/bin/tool"], network: {allow: ["%[1]s"]}}
steps: [{id: go, type: exec, command: tool}]
`, d.addr)
}

// TestSetupOfProcesses verifies that only one of several processes installs. If it is killed, another process takes
// over. Later runs use the installed tool, and gc shows and removes it.
func TestSetupOfProcesses(t *testing.T) {
	t.Parallel()
	u, d := newUser(t, "local"), newDepot(t)
	file := filepath.Join(write(t, map[string]string{"tool.yaml": d.workflow()}), "tool.yaml")
	args := []string{"run", file, "--egress-allow-private", "127.0.0.0/8"}
	killed := u.command(args...)
	checktest.Must(t, killed.Start())
	<-d.asked
	var others [2]*exec.Cmd
	var outputs [2]strings.Builder
	for i := range others {
		others[i] = u.command(args...)
		others[i].Stdout, others[i].Stderr = &outputs[i], &outputs[i]
		checktest.Must(t, others[i].Start())
	}
	_ = killed.Process.Kill() // it is still running
	_ = killed.Wait()
	var wg sync.WaitGroup
	for i, cmd := range others {
		wg.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, outputs[i].String())
			}
		})
	}
	wg.Wait()
	u.run(0, args...)
	if n := d.fetched.Load(); n != 2 {
		t.Errorf("the tool was fetched %d times, want once by the process that was killed and once by another", n)
	}
	if out, _ := u.run(0, "sandbox", "gc", "-o", "json"); strings.Contains(out, "environment") {
		t.Errorf("gc would remove what was used just now: %s", out)
	}
	var rows []sandboxcmd.GarbageOutput
	for _, removed := range []bool{false, true} {
		flags := []string{"sandbox", "gc", "--environments", "-o", "json"}
		if removed {
			flags = append(flags, "--yes")
		}
		out, _ := u.run(0, flags...)
		if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) == 0 || !strings.HasPrefix(rows[len(rows)-1].Why, "environment of ") || rows[len(rows)-1].Removed != removed {
			t.Errorf("%v: %s", err, out)
		}
	}
	if out, _ := u.run(0, "sandbox", "gc", "--environments", "-o", "json"); strings.Contains(out, "environment") {
		t.Errorf("it is still there: %s", out)
	}
	if left := u.sandboxes(); len(left) != 0 {
		t.Errorf("sandboxes of the process that was killed stay: %v", left)
	}
}

// TestPackagesThatAreNot verifies that the error contains pip's last output, the refused hosts, and a remedy.
func TestPackagesThatAreNot(t *testing.T) {
	t.Parallel()
	u, d := newUser(t, "local"), newDepot(t)
	dir := write(t, map[string]string{
		"pip.yaml":   "id: pip\nsandbox: {runtime: python, pip_packages: [absent]}\nsteps: [{id: go, type: exec, command: 'true'}]\n",
		"setup.yaml": fmt.Sprintf("id: setup\nsandbox: {setup: {run: ['curl -sSf http://other.test/x'], network: {allow: ['%s']}}}\nsteps: [{id: go, type: exec, command: 'true'}]\n", d.addr),
	})
	index := "http://" + d.addr + "/simple"
	for file, want := range map[string][]string{
		"pip.yaml":   {"pip install failed", "No matching distribution found for absent", "--pip-index"},
		"setup.yaml": {"setup[0] failed", "refused host: other.test:80 (network.allow does not name it)", "setup.network.allow"},
	} {
		out, stderr := u.run(app.ExitFailed, "run", filepath.Join(dir, file), "--egress-allow-private", "127.0.0.0/8", "--pip-index", index)
		for _, text := range want {
			if !strings.Contains(out+stderr, text) {
				t.Errorf("%s: no %q in %s%s", file, text, out, stderr)
			}
		}
		if left := u.sandboxes(); len(left) != 0 {
			t.Errorf("%s: left %v", file, left)
		}
	}
	for _, bad := range []string{"pypi.org", "https://u:p@pypi.org/simple", "file:///etc"} {
		if _, stderr := u.run(app.ExitUsage, "run", filepath.Join(dir, "pip.yaml"), "--pip-index", bad); strings.Contains(stderr, "u:p") || !strings.Contains(stderr, "registry:pypi") {
			t.Errorf("%s: %s", bad, stderr)
		}
	}
}
