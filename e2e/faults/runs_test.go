//go:build linux

package faults

import (
	"bytes"
	"database/sql"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	_ "modernc.org/sqlite" // writes the state of a newer version

	"github.com/workcell-dev/workcell/e2e/rig"
)

// TestCancelledFromOutside: a run of a living process can be canceled and removes the sandbox.
func TestCancelledFromOutside(t *testing.T) {
	on(t, []string{"local"}, func(t *testing.T, h *host) {
		p := h.waiting(t, workflow(t, steps))
		r := h.latest(t)
		if res := h.Run(t, "runs", "resume", r.ID); res.Code != 7 || !strings.Contains(res.Stderr, "running in another process") {
			t.Errorf("resume of a living run: exit code %d\n%s", res.Code, res.Stderr)
		}
		h.OK(t, "runs", "cancel", r.ID[:12])
		if code := p.Wait(); code != 1 {
			t.Errorf("the cancelled run's exit code is %d\n%s", code, p.Text())
		}
		if r = h.show(t, r.ID); r.State != "cancelled" {
			t.Errorf("the cancelled run is %s", r.State)
		}
		if left := h.left(t); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		for _, what := range []string{"cancel", "resume"} {
			if res := h.Run(t, "runs", what, r.ID); res.Code != 7 || !strings.Contains(res.Stderr, "has finished: cancelled") {
				t.Errorf("%s of a run that has finished: exit code %d\n%s", what, res.Code, res.Stderr)
			}
		}
		if res := h.Run(t, "runs", "show", "run_nobody"); res.Code != 6 {
			t.Errorf("an unknown run: exit code %d\n%s", res.Code, res.Stderr)
		}
	})
}

// TestOneResumes: a killed run cannot be resumed with another workflow, and only one of several processes resumes it.
func TestOneResumes(t *testing.T) {
	on(t, []string{"local"}, func(t *testing.T, h *host) {
		file := workflow(t, steps)
		h.waiting(t, file).Kill()
		id := h.latest(t).ID
		must(t, os.WriteFile(file, []byte(strings.Replace(steps, "cat log", "cat log log", 1)), 0o600))
		if res := h.Run(t, "runs", "resume", id); res.Code != 3 || !strings.Contains(res.Stderr, "has changed") {
			t.Errorf("resume with a changed file: exit code %d\n%s", res.Code, res.Stderr)
		}
		must(t, os.WriteFile(file, []byte(steps), 0o600))
		codes := make([]int, 4)
		var wg sync.WaitGroup
		for i := range codes {
			wg.Go(func() {
				cmd := h.Command("runs", "resume", id)
				_ = cmd.Run() // the test checks the exit code
				codes[i] = cmd.ProcessState.ExitCode()
			})
		}
		wg.Wait()
		slices.Sort(codes)
		if !slices.Equal(codes, []int{0, 7, 7, 7}) {
			t.Errorf("exit codes %v", codes)
		}
		if r := h.show(t, id); r.State != "succeeded" || !slices.Equal(r.finished(), []string{"one", "two", "three", "four"}) {
			t.Errorf("the run is %s, with %v", r.State, r.finished())
		}
		h.nothingLeft(t)
	})
}

// waiting starts a run of steps and waits until the second step waits.
func (h *host) waiting(t *testing.T, file string) *rig.Process {
	t.Helper()
	p := h.Start(t, "run", file)
	p.Await(t, "two", "exec")
	h.inSandbox(t, "test -e pid")
	return p
}

// TestExpiredRun: the sandbox of a killed run is removed after the idle timeout, and resuming the run reports this.
func TestExpiredRun(t *testing.T) {
	impatient := strings.Replace(steps, "{runtime: bash}", "{runtime: bash, limits: {idle_timeout: 1s}}", 1)
	on(t, []string{"local"}, func(t *testing.T, h *host) {
		h.waiting(t, workflow(t, impatient)).Kill()
		h.inSandbox(t, "kill -- -$(cat pid)") // a sandbox with a running process is not idle
		id := h.latest(t).ID
		h.nothingLeft(t)
		res := h.Run(t, "runs", "resume", id)
		if res.Code != 6 || !strings.Contains(res.Stderr, "are gone") || !strings.Contains(res.Stderr, "--fresh-sandbox") {
			t.Errorf("resume without the sandbox: exit code %d\n%s", res.Code, res.Stderr)
		}
		p := h.Start(t, "runs", "resume", id, "--fresh-sandbox")
		p.Await(t, "one", "already completed")
		h.inSandbox(t, "test -e pid && ! grep one log")
		p.Kill()
		h.OK(t, "runs", "cancel", id)
		if left := h.left(t); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// TestDeliberateEnds: a run can be resumed after an isolated agent has finished and after an agent removed the run's
// sandbox.
func TestDeliberateEnds(t *testing.T) {
	on(t, []string{"local"}, func(t *testing.T, h *host) {
		file := workflow(t, `id: deliberate
sandbox: {runtime: bash}
steps:
  - {id: alone, type: agent, agent: alone}
  - {id: closer, type: agent, agent: closer, sandbox: scratch}
  - {id: wait, type: exec, command: "if mkdir waited; then sleep 10000; fi"}
`)
		script := filepath.Join(filepath.Dir(file), "script.yaml")
		for name, text := range map[string]string{
			"alone.prompt":  "---\nsandbox: {mode: code, session: isolated}\n---\nWork.\n",
			"closer.prompt": "---\nsandbox: {mode: code}\n---\nWork.\n",
			"script.yaml": `agents:
  alone: [[{tool: sandbox_exec, input: {command: "true"}}, {expect: last.exit_code == 0, text: done}]]
  closer:
    - - {tool: sandbox_exec, input: {command: "true"}}
      - {tool: sandbox_close, input: {delete_workspace: true}}
      - {expect: last.ok, text: done}
`,
		} {
			must(t, os.WriteFile(filepath.Join(filepath.Dir(file), name), []byte(text), 0o600))
		}
		p := h.Start(t, "run", file, "--model", "scripted/"+script)
		p.Await(t, "wait", "exec")
		h.inSandbox(t, "test -d waited")
		p.Kill()
		id := h.latest(t).ID
		if res := h.Run(t, "runs", "resume", id); res.Code != 0 {
			t.Errorf("resume: exit code %d\n%s", res.Code, res.Stderr)
		}
		h.nothingLeft(t)
	})
}

// TestSpoiledState: an unusable state file is an error with a remedy. The file must not change, nothing may be created
// on the engine, and sandboxes must still be listed and usable.
func TestSpoiledState(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"cut": func(t *testing.T, path string) { must(t, os.Truncate(path, 5000)) },
		"no database": func(t *testing.T, path string) {
			must(t, os.WriteFile(path, bytes.Repeat([]byte("something else\n"), 500), 0o600))
		},
		"newer": func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", path)
			must(t, err)
			defer db.Close()
			if _, err := db.ExecContext(t.Context(), `UPDATE component SET version = 99`); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, []string{"local"}, func(t *testing.T, h *host) {
				id := h.OK(t, "sandbox", "open", "--name", "box")
				h.OK(t, "sandbox", "exec", "box", "--", "sh", "-c", "echo kept > file")
				h.OK(t, "runs", "ls")
				path := filepath.Join(h.State, "state.db")
				spoil(t, path)
				before := read(t, path)
				there := len(h.left(t))
				for _, args := range [][]string{
					{"run", workflow(t, steps)}, {"runs", "ls"}, {"sandbox", "open", "--name", "another"},
				} {
					res := h.Run(t, args...)
					if res.Code != 1 || !strings.Contains(res.Stderr, "state file") || !strings.Contains(res.Stderr, "workcell: hint: ") {
						t.Errorf("workcell %s: exit code %d\n%s", args[0], res.Code, res.Stderr)
					}
				}
				if out := h.OK(t, "sandbox", "ls"); !strings.Contains(out, strings.TrimSpace(id)) {
					t.Errorf("the sandbox is not listed:\n%s", out)
				}
				if out := h.OK(t, "sandbox", "exec", "box", "--", "cat", "file"); out != "kept\n" {
					t.Errorf("the sandbox's file: %q", out)
				}
				if after := read(t, path); !bytes.Equal(before, after) || len(h.left(t)) != there {
					t.Error("the spoiled file was changed, or the engine's sandboxes")
				}
				must(t, os.Rename(path, path+".spoiled"))
				if again := h.OK(t, "sandbox", "open", "--name", "box"); again != id {
					t.Errorf("with a new file the name is %s, it was %s", again, id)
				}
			})
		})
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	return raw
}

// TestGarbage: gc lists sandboxes without a process, and removes them only with --yes.
func TestGarbage(t *testing.T) {
	on(t, []string{"local"}, func(t *testing.T, h *host) {
		named := strings.TrimSpace(h.OK(t, "sandbox", "open", "--name", "box"))
		alive, dead := h.Start(t, "run", workflow(t, steps)), h.Start(t, "run", workflow(t, steps))
		alive.Await(t, "two", "exec")
		dead.Await(t, "two", "exec")
		dead.Kill()
		kept := h.Start(t, "run", workflow(t, "id: kept\nsandbox: {runtime: bash}\nsteps: [{id: a, type: exec, command: 'true'}]\n"), "--keep")
		if code := kept.Wait(); code != 0 {
			t.Fatalf("exit code %d\n%s", code, kept.Text())
		}
		type garbage struct {
			ID, Why string
			Removed bool
		}
		gc := func(args ...string) map[string]string {
			t.Helper()
			var list []garbage
			h.Read(t, &list, append([]string{"sandbox", "gc"}, args...)...)
			why := map[string]string{}
			for _, g := range list {
				if g.Why == "old guest" {
					continue // other versions on this engine
				}
				if g.Removed != slices.Contains(args, "--yes") {
					t.Errorf("gc %v: %+v", args, g)
				}
				why[g.Why] = g.ID
			}
			return why
		}
		seen := gc()
		if len(seen) != 2 || seen["interrupted"] == "" || seen["kept"] == "" {
			t.Errorf("gc shows %v", seen)
		}
		if all := gc("--named"); len(all) != 3 || all["named"] != named {
			t.Errorf("gc --named shows %v", all)
		}
		if old := gc("--older-than", "1h"); len(old) != 0 {
			t.Errorf("gc --older-than shows %v", old)
		}
		if removed := gc("--yes"); !maps.Equal(removed, seen) {
			t.Errorf("gc removed %v, it had shown %v", removed, seen)
		}
		var list []struct{ ID string }
		h.Read(t, &list, "sandbox", "ls")
		if len(list) != 2 { // the named sandbox and the living run's sandbox
			t.Errorf("sandboxes after gc: %v", list)
		}
		if err := alive.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if code := alive.Wait(); code != 143 {
			t.Errorf("the living run's exit code is %d\n%s", code, alive.Text())
		}
	})
}
