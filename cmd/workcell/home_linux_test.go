package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
)

// write writes files to a new directory.
func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		checktest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// leftRun is a run whose results could not be collected.
type leftRun struct {
	ID         string `json:"run_id"`
	Outcome    string `json:"outcome"`
	Unfinished struct {
		Message string `json:"message"`
	} `json:"unfinished"`
}

// leaves runs a command without collectable results. It verifies that the command prints the reason and a remedy,
// and keeps the sandbox.
func (u user) leaves(why string, args ...string) (r leftRun) {
	u.t.Helper()
	out, stderr := u.run(app.ExitFailed, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		u.t.Fatalf("%v\n%s", err, stderr)
	}
	for _, want := range []string{why, "; to copy them, run: workcell sandbox cp ", "--apply: changes not applied"} {
		if !strings.Contains(stderr, want) {
			u.t.Errorf("it does not say %q:\n%s", want, stderr)
		}
	}
	if got := u.sandboxes(); len(got) != 1 || !strings.Contains(got[0], r.ID) {
		u.t.Errorf("there are %v", got)
	}
	return r
}

// TestFullDiskAtTheEnd verifies that a workflow or agent run can be resumed to collect the results if the disk of the
// state directory was too full for them.
func TestFullDiskAtTheEnd(t *testing.T) {
	t.Parallel()
	dir, u := newDisk(t)
	files := write(t, map[string]string{
		"big.yaml": `id: big
outputs: [out.bin]
steps: [{id: make, type: exec, command: "echo new > a.txt; head -c 3000000 /dev/urandom > out.bin; echo made"}]
`,
		"maker.prompt": "---\nmodel: googleai/gemini-2.5-flash\noutputs: [out.bin]\nsandbox: {mode: code, runtime: bash}\n---\nMake.\n",
		"script.yaml": `agents:
  maker:
    - - {tool: sandbox_exec, input: {cmd: [sh, -c, "echo new > a.txt; head -c 3000000 /dev/urandom > out.bin"]}}
      - {text: done}
`,
	})
	project := write(t, map[string]string{"a.txt": "old\n"})
	r := u.leaves("no space left", "run", filepath.Join(files, "big.yaml"), "--workspace", project, "--apply")
	if r.Outcome != "succeeded" || !strings.Contains(r.Unfinished.Message, "cannot save the run's results") {
		t.Errorf("%+v", r)
	}
	if u.run(app.ExitConflict, "runs", "files", r.ID); u.state(r.ID) != app.RunInterrupted {
		t.Errorf("the run is %s", u.state(r.ID))
	}
	checktest.Must(t, syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT, "size=16m"))
	u.run(0, "runs", "resume", r.ID)
	if got, _ := u.run(0, "runs", "get", r.ID, "out.bin", "-"); len(got) != 3_000_000 {
		t.Errorf("the output has %d bytes", len(got))
	}
	if got, err := os.ReadFile(filepath.Join(project, "a.txt")); err != nil || string(got) != "new\n" {
		t.Errorf("applied: %q, %v", got, err)
	}
	if got := u.sandboxes(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}

	var disk syscall.Statfs_t
	checktest.Must(t, syscall.Statfs(dir, &disk))
	checktest.Must(t, os.WriteFile(filepath.Join(dir, "filler"), make([]byte, int64(disk.Bavail)*disk.Bsize-(2<<20)), 0o600))
	r = u.leaves("no space left", "agent", "run", filepath.Join(files, "maker.prompt"),
		"--model", "scripted/"+filepath.Join(files, "script.yaml"), "--workspace", write(t, map[string]string{"a.txt": "old\n"}), "--apply")
	checktest.Must(t, os.Remove(filepath.Join(dir, "filler")))
	if out, _ := u.run(0, "runs", "resume", r.ID); out != "done\n" {
		t.Errorf("the answer is %q", out)
	}
	if got, _ := u.run(0, "runs", "get", r.ID, "out.bin", "-"); len(got) != 3_000_000 {
		t.Errorf("the output has %d bytes", len(got))
	}
}

// state returns the state of a run.
func (u user) state(id string) string {
	u.t.Helper()
	out, _ := u.run(0, "runs", "show", id, "-o", "json")
	var r app.RunView
	checktest.Must(u.t, json.Unmarshal([]byte(out), &r))
	return r.State
}

// only returns the id of the only sandbox.
func (u user) only() string {
	u.t.Helper()
	out, _ := u.run(0, "sandbox", "ls", "-o", "json")
	var list []app.SandboxView
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
		u.t.Fatalf("%s, %v", out, err)
	}
	return list[0].ID
}

// TestOutputThatCannotBeRead verifies that a run with an unreadable output does not finish and can be resumed
// after the output is fixed in the sandbox.
func TestOutputThatCannotBeRead(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	files := write(t, map[string]string{
		"pipe.yaml": "id: pipe\noutputs: [r.csv]\nsteps: [{id: make, type: exec, command: \"echo new > a.txt; touch r.csv; chmod 0 r.csv\"}]\n",
	})
	project := write(t, map[string]string{"a.txt": "old\n"})
	r := u.leaves("cannot collect output r.csv", "run", filepath.Join(files, "pipe.yaml"), "--workspace", project, "--apply")
	u.run(app.ExitFailed, "runs", "resume", r.ID) // the output is still unreadable
	u.run(0, "sandbox", "exec", u.only(), "--", "sh", "-c", "rm r.csv && echo csv > r.csv")
	u.run(0, "runs", "resume", r.ID)
	if got, _ := u.run(0, "runs", "get", r.ID, "r.csv", "-"); got != "csv\n" || u.state(r.ID) != "succeeded" {
		t.Errorf("the output is %q, the run %s", got, u.state(r.ID))
	}
	if got, err := os.ReadFile(filepath.Join(project, "a.txt")); err != nil || string(got) != "new\n" {
		t.Errorf("applied: %q, %v", got, err)
	}
}

// TestLostAfterTheEnd verifies that the changes of a run are applied even if the command loses its lease after the end
// of the run is in the journal.
func TestLostAfterTheEnd(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"a.yaml": "id: a\nsteps: [{id: b, type: exec, command: \"echo new > a.txt\"}]"})
	p, err := app.LoadProgram(filepath.Join(dir, "a.yaml"), "")
	checktest.Must(t, err)
	o := cli.New(strings.NewReader(""), io.Discard, t.Output(), "").Options
	o.StateDir, o.NoReaper, o.Backend, o.Workspace, o.Apply = t.TempDir(), true, "local", write(t, nil), true
	ctx, lose := context.WithCancelCause(t.Context())
	err = app.New(o).Run(ctx, p, nil, func(*workflow.Workflow, *workflow.Result, app.Answer, error) error {
		lose(workflow.ErrInterrupted)
		return nil
	})
	checktest.Must(t, err)
	if got, err := os.ReadFile(filepath.Join(o.Workspace, "a.txt")); err != nil || string(got) != "new\n" {
		t.Errorf("applied: %q, %v", got, err)
	}
}

// TestKilledAgentRun verifies that an agent run whose process was killed is resumed in the sandbox and prints the
// answer.
func TestKilledAgentRun(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	dir := t.TempDir()
	u.environ = append(u.environ, "WORKCELL_STATE_DIR="+dir, "TMPDIR="+filepath.Join(dir, "none"))
	t.Cleanup(func() { removeSandboxes(t, u.environ, "local") })
	files := write(t, map[string]string{
		"waits.prompt": "---\nmodel: googleai/gemini-2.5-flash\nsandbox: {mode: code, runtime: bash}\n---\nWait.\n",
		"script.yaml": `agents:
  waits:
    - - {tool: sandbox_exec, input: {command: "echo waiting > state; while [ ! -e go ]; do sleep 0.05; done; cat go"}}
      - {text: "answer: ${ last.stdout }"}
`,
	})
	r := u.start("agent", "run", filepath.Join(files, "waits.prompt"), "--workspace", files,
		"--model", "scripted/"+filepath.Join(files, "script.yaml"))
	r.until("run_")
	id := r.runID()
	for late := time.Now().Add(3 * time.Minute); u.command("sandbox", "exec", id, "--", "cat", "state").Run() != nil; {
		if time.Now().After(late) {
			t.Fatalf("the agent does not wait:\n%s", r.stderr.String())
		}
	}
	began := filepath.Join(dir, "runs", id, "base.zip")
	if st, err := os.Stat(filepath.Dir(began)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	checktest.Must(t, r.cmd.Process.Kill())
	<-r.done
	if got := u.state(id); got != app.RunInterrupted {
		t.Errorf("the run is %s", got)
	}
	u.run(0, "sandbox", "exec", id, "--", "sh", "-c", "echo on > go")
	if out, _ := u.run(0, "runs", "resume", id); out != "answer: on\n" {
		t.Errorf("the answer is %q", out)
	}
	if _, err := os.Stat(began); err == nil || u.state(id) != "succeeded" {
		t.Errorf("the run is %s, its workspace %v", u.state(id), err)
	}
}
