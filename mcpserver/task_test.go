package mcpserver_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// shellTasks run their input as a shell line in their run's sandbox.
var shellTasks = []mcpserver.Task{
	{Name: "fail", Kind: "agent"}, {Name: "greedy", Kind: "agent"}, {Name: "panic", Kind: "agent"},
	{Name: "shell", Kind: "agent", Description: "Runs a line.", Fields: []string{"line"}}, {Name: "wait", Kind: "workflow"},
}

func runShellTask(m *session.Manager) func(context.Context, mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
	return func(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
		switch req.Name {
		case "panic":
			panic("on purpose")
		case "fail":
			return mcpserver.TaskResult{Outcome: "failed"}, errors.New("secret: what only operators should know")
		case "wait":
			<-ctx.Done()
			return mcpserver.TaskResult{}, ctx.Err()
		}
		run, ok := session.RunFromContext(ctx)
		if !ok {
			return mcpserver.TaskResult{}, errors.New("no run")
		}
		base, _ := session.BaseFromContext(ctx)
		wish := session.Request{Image: pythonImage}
		if req.Name == "greedy" {
			wish.Limits = backend.Limits{MemoryBytes: 512 << 20}
		}
		s, _, err := m.Open(ctx, run.Key(record.DefaultName), wish.WithDefaults(base))
		if err != nil {
			return mcpserver.TaskResult{}, err
		}
		req.Report("running")
		res, err := s.Exec(ctx, sandbox.ExecRequest{Command: req.Text + req.Fields["line"]})
		return mcpserver.TaskResult{Outcome: "succeeded", Text: string(res.Stdout.Bytes())}, err
	}
}

func TestTasks(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	policy := mcpserver.DefaultPolicy()
	policy.Files.Refuse = []string{"*.exe"}
	policy.Limits.FileMB = 1
	cs := connect(t, newServer(t, m, &mcpserver.Options{Tasks: shellTasks, RunTask: runShellTask(m), Policy: &policy}), nil)
	list, err := cs.ListTools(t.Context(), nil)
	checktest.Must(t, err)
	for _, tool := range list.Tools {
		if tool.Name != "execute_task" {
			continue
		}
		if !strings.Contains(tool.Description, "- shell (agent; inputs: line): Runs a line.") {
			t.Errorf("the description does not name the tasks: %s", tool.Description)
		}
		if raw, err := json.Marshal(tool.InputSchema); err != nil || !strings.Contains(string(raw), `"enum":["fail","greedy","panic","shell","wait"]`) {
			t.Errorf("the schema does not name the tasks: %s %v", raw, err)
		}
	}
	// Without a session, no files are kept.
	if r := must(t, cs, "execute_task", map[string]any{"task": "shell", "input": "echo hi > f; cat f"}); r.text("text") != "hi\n" || r.fields["session_id"] != nil {
		t.Errorf("stateless: %v", r.fields)
	}
	if n := sandboxes(t, m); n != 0 {
		t.Errorf("%d sandboxes after a stateless task", n)
	}
	// With a session, the files are kept and returned.
	for _, line := range []string{"echo one > a.txt", "mkdir d; echo two > d/b.txt; echo x > bad.exe; head -c 2000000 /dev/zero > big; ln -s /etc/passwd link"} {
		must(t, cs, "execute_task", map[string]any{"task": "shell", "inputs": map[string]any{"line": line}, "session_id": "work"})
	}
	r := must(t, cs, "get_files", map[string]any{"session_id": "work"})
	var got mcpserver.GetFilesOutput
	r.into(t, &got)
	files, skipped := map[string]string{}, map[string]bool{}
	for _, f := range got.Files {
		data, err := base64.StdEncoding.DecodeString(f.ContentsB64)
		checktest.Must(t, err)
		files[f.Path] = string(data)
	}
	for _, f := range got.Skipped {
		skipped[f.Path] = true
	}
	if diff := cmp.Diff(map[string]string{"a.txt": "one\n", "d/b.txt": "two\n"}, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"bad.exe": true, "big": true, "link": true}, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	r = must(t, cs, "get_files", map[string]any{"session_id": "work", "format": "zip", "paths": []string{"d", "a.txt", "./a.txt"}})
	r.into(t, &got)
	if diff := cmp.Diff(map[string]string{"a.txt": "one\n", "d/b.txt": "two\n"}, unzip(t, got.ZipB64)); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
	checkStatus(t, must(t, cs, "session_status", map[string]any{"session_id": "work"}))
	if r := must(t, cs, "cleanup_session", map[string]any{"session_id": "work"}); r.fields["removed"] != 1.0 {
		t.Errorf("cleanup: %v", r.fields)
	}
	if code, _ := do(t, cs, "get_files", map[string]any{"session_id": "work"}).failure(); code != "not_found" {
		t.Errorf("files after cleanup: %s", code)
	}
	if n := sandboxes(t, m); n != 0 {
		t.Errorf("%d sandboxes after cleanup", n)
	}
	// The name may be used again. The session_id "new" creates an unguessable id.
	again := must(t, cs, "execute_task", map[string]any{"task": "shell", "input": "ls", "session_id": "work"})
	if again.text("text") != "" {
		t.Errorf("a session of that name has old files: %q", again.text("text"))
	}
	fresh := must(t, cs, "execute_task", map[string]any{"task": "shell", "input": "ls", "session_id": "new"}).text("session_id")
	if len(fresh) < 20 {
		t.Errorf("session_id %q", fresh)
	}
	must(t, cs, "get_files", map[string]any{"session_id": fresh})
}

func unzip(t *testing.T, b64 string) map[string]string {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(b64)
	checktest.Must(t, err)
	z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	checktest.Must(t, err)
	out := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		checktest.Must(t, err)
		data, err := io.ReadAll(r)
		checktest.Must(t, err)
		out[f.Name] = string(data)
	}
	return out
}

func checkStatus(t *testing.T, r result) {
	t.Helper()
	var out mcpserver.SessionStatusOutput
	r.into(t, &out)
	if len(out.Sessions) != 1 {
		t.Fatalf("%d sessions", len(out.Sessions))
	}
	st := out.Sessions[0]
	if st.SessionID != "work" || st.State != "ready" || st.Image != pythonImage || st.Network != "none" || st.IdleLimit != 1800 ||
		st.MemoryLimit == 0 || st.CPUMillicores == 0 || st.MemoryBytes <= 0 || st.CPUTimeMS <= 0 || st.WorkspaceBytes < 2_000_000 {
		t.Errorf("status %+v", st)
	}
}

func TestTaskFailures(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	policy := mcpserver.DefaultPolicy()
	policy.Limits.ExecTimeout = time.Second
	cs := connect(t, newServer(t, m, &mcpserver.Options{Tasks: shellTasks, RunTask: runShellTask(m), Policy: &policy}), nil)
	for _, tc := range []struct {
		args map[string]any
		code string
		text string
	}{
		{map[string]any{"task": "none"}, "not_found", "available: fail, greedy, panic, shell, wait"},
		{map[string]any{"task": "fail"}, "internal", "failed inside"},
		{map[string]any{"task": "panic"}, "internal", "unexpectedly"},
		{map[string]any{"task": "wait"}, "timeout", "limits.exec_timeout"},
		{map[string]any{"task": "shell", "session_id": "../x"}, "invalid_argument", "session_id"},
	} {
		code, message := do(t, cs, "execute_task", tc.args).failure()
		if code != tc.code || !strings.Contains(message, tc.text) || strings.Contains(message, "secret") {
			t.Errorf("%v: %s %s, want %s %s", tc.args, code, message, tc.code, tc.text)
		}
	}
}

// TestTimeoutOfPrograms verifies that the default timeout of commands also applies to programs.
func TestTimeoutOfPrograms(t *testing.T) {
	t.Parallel()
	o := &mcpserver.Options{}
	o.Sandbox.Limits.ExecTimeout = frontmatter.Duration(time.Second)
	cs := connect(t, newServer(t, newManager(t), o), nil)
	code, _ := do(t, cs, "sandbox_run", map[string]any{"code": "sleep 60", "runtime": "bash"}).failure()
	if code != "timeout" {
		t.Errorf("code %q", code)
	}
}

// TestGuard verifies that the policy refuses calls of all tools, and the error contains the rule's name.
func TestGuard(t *testing.T) {
	t.Parallel()
	policy := parsePolicy(t, policyYAML)
	cs := connect(t, newServer(t, newManager(t), &mcpserver.Options{Policy: &policy}), nil)
	for _, tc := range []struct {
		tool string
		args map[string]any
		rule string // empty if allowed
	}{
		{"sandbox_exec", map[string]any{"command": "git push"}, "no-push"},
		{"sandbox_exec", map[string]any{"shell_command": "git push"}, "no-push"}, // an alias that models use
		{"sandbox_exec", map[string]any{"cmd": []string{"git", "push"}}, "no-push"},
		{"sandbox_exec", map[string]any{"argv": []string{"sh", "-c", "git push"}}, "no-push"},
		{"sandbox_exec", map[string]any{"cmd": []string{"sh"}, "stdin": "curl x"}, "curl"},
		{"sandbox_exec", map[string]any{"cmd": []string{"sh"}, "stream": true}, "commands.allow_dynamic"},
		{"sandbox_exec", map[string]any{"command": "cd /tmp; sh", "stream": true}, "commands.allow_dynamic"},
		{"sandbox_exec", map[string]any{"command": "cd /tmp; sh", "stdin": "echo x"}, "commands.allow_dynamic"},
		{"sandbox_exec", map[string]any{"command": "ls"}, ""},
		{"sandbox_exec", map[string]any{"command": "ls", "timeout_seconds": 61}, "limits.exec_timeout"},
		{"sandbox_run", map[string]any{"code": "curl x", "runtime": "bash"}, "curl"},
		{"sandbox_run", map[string]any{"code": "x", "files": map[string]any{"a.exe": ""}}, "files.refuse *.exe"},
		{"sandbox_fs_write", map[string]any{"path": "x.EXE", "contents": ""}, "files.refuse *.exe"},
		{"sandbox_fs_write", map[string]any{"path": "x", "contents": strings.Repeat("x", 1<<20+1)}, "limits.file_mb"},
		{"sandbox_fs_read", map[string]any{"path": ".env"}, "files.refuse .env"},
		{"sandbox_fs_write", map[string]any{"path": "x.txt", "contents": "y"}, ""},
	} {
		_, message := do(t, cs, tc.tool, tc.args).failure()
		if tc.rule == "" && message != "" || tc.rule != "" && !strings.Contains(message, fmt.Sprintf("guard rule %q", tc.rule)) {
			t.Errorf("%s %.80v: %q, want rule %q", tc.tool, tc.args, message, tc.rule)
		}
	}
	if _, message := do(t, cs, "sandbox_exec", map[string]any{"command": "git push"}).failure(); !strings.Contains(message, "pushing is for people") {
		t.Errorf("the reason is missing: %s", message)
	}
}

// TestTaskOutputs verifies that the outputs of a task are kept and available as resources, and a patch contains the
// changes.
func TestTaskOutputs(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	policy := mcpserver.DefaultPolicy()
	policy.Files.Refuse = []string{"*.exe"}
	shell := runShellTask(m)
	base := patch.Tree{"r.csv": {Mode: 0o644, Content: []byte("0,0\n")}}
	began := map[string]patch.Tree{}
	cs := connect(t, newServer(t, m, &mcpserver.Options{
		Tasks: []mcpserver.Task{{Name: "shell", Kind: "agent", Outputs: true}}, Policy: &policy,
		RunTask: func(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
			res, err := shell(ctx, req)
			run, _ := session.RunFromContext(ctx)
			if s, getErr := m.Get(run.Key(record.DefaultName)); getErr == nil {
				res.Outputs = []mcpserver.TaskOutput{{Sandbox: s.ID(), Path: "d/r é.csv", Size: 4}}
			}
			return res, err
		},
		Diff: func(ctx context.Context, s *session.Session) (*patch.Patch, error) {
			if tree, ok := began[s.ID()]; ok {
				return s.Diff(ctx, tree)
			}
			return nil, nil
		},
	}), nil)
	r := must(t, cs, "execute_task", map[string]any{"task": "shell", "input": "mkdir d; echo 1,2 > 'd/r é.csv'; cp d/* r.csv; echo x > bad.exe"})
	var out struct {
		SessionID string `json:"session_id"`
		Outputs   []struct {
			Path string `json:"path"`
			URI  string `json:"uri"`
		} `json:"outputs"`
	}
	r.into(t, &out)
	if out.SessionID == "" || len(out.Outputs) != 1 || out.Outputs[0].Path != "d/r é.csv" {
		t.Fatalf("%+v", out)
	}
	read, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: out.Outputs[0].URI})
	if err != nil || read.Contents[0].Text != "1,2\n" {
		t.Errorf("the resource %s: %+v, %v", out.Outputs[0].URI, read, err)
	}
	get := func(paths ...string) (p string, skipped int) {
		t.Helper()
		args := map[string]any{"session_id": out.SessionID, "format": "patch", "paths": paths}
		if paths == nil {
			delete(args, "paths")
		}
		var got struct {
			Patch   string `json:"patch"`
			Skipped []any  `json:"skipped"`
		}
		must(t, cs, "get_files", args).into(t, &got)
		return got.Patch, len(got.Skipped)
	}
	if p, skipped := get(); strings.Count(p, "new file mode 100644") != 2 || strings.Contains(p, "bad.exe") || skipped != 1 {
		t.Errorf("of a sandbox that began empty, %d skipped: %s", skipped, p)
	}
	if p, _ := get("/workspace/d"); strings.Count(p, "diff --git") != 1 || !strings.Contains(p, "csv") {
		t.Errorf("of one directory: %s", p)
	}
	for _, s := range m.InScope(sandboxRun(t, m).Scope()) {
		began[s.ID()] = base
	}
	if p, _ := get("r.csv"); !strings.Contains(p, "-0,0\n+1,2\n") {
		t.Errorf("of a sandbox that began with a directory: %s", p)
	}
	must(t, cs, "execute_task", map[string]any{"task": "shell", "input": "head -c 9000000 /dev/urandom > noise", "session_id": out.SessionID})
	noise := do(t, cs, "get_files", map[string]any{"session_id": out.SessionID, "format": "patch"})
	for noise.taskID() != "" { // slow machines
		noise = do(t, cs, "task_result", map[string]any{"task_id": noise.taskID()})
	}
	if code, message := noise.failure(); code != "too_large" || message != "the patch has more than 10485760 bytes" {
		t.Errorf("%s: %s", code, message)
	}
}

// sandboxRun returns the run of the only sandbox.
func sandboxRun(t *testing.T, m *session.Manager) session.Run {
	t.Helper()
	list, err := m.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	return session.Run{Namespace: list[0].Key.Namespace, ID: list[0].Run}
}

// TestDeadSandbox verifies that the files of a task are kept if its sandbox dies. The answer reports this, each tool
// finds the files, and the next task of the session continues with them. If the files are lost too, the tools report
// that.
func TestDeadSandbox(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		die  func(b *memory.Backend, info session.Info) error
		kept bool
	}{
		"stopped": {func(b *memory.Backend, info session.Info) error { return b.Stop(t.Context(), info.EngineID) }, true},
		"removed": {func(b *memory.Backend, info session.Info) error {
			return b.Remove(t.Context(), info.EngineID, backend.RemoveOptions{})
		}, true},
		"with its files": {func(b *memory.Backend, info session.Info) error { b.Lose(info.ID); return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine, err := memory.New(nil)
			checktest.Must(t, err)
			m, err := session.NewManager(engine, nil)
			checktest.Must(t, err)
			note, id := noteTask(m), ""
			task := func(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
				res, err := note(ctx, req)
				run, _ := session.RunFromContext(ctx)
				s, getErr := m.Get(run.Key(record.DefaultName))
				if err = errors.Join(err, getErr); err == nil && req.Text == "die" {
					id = s.ID()
					err = test.die(engine, s.Info())
					for err == nil {
						_, err = s.StatFile(ctx, "log")
					}
				}
				return res, err
			}
			tasks := []mcpserver.Task{{Name: "note", Kind: "agent", Outputs: true}}
			cs := connect(t, newServer(t, m, &mcpserver.Options{Tasks: tasks, RunTask: task}), nil)
			r := do(t, cs, "execute_task", map[string]any{"task": "note", "input": "die"})
			told := strings.Contains(fmt.Sprint(r.fields["error"]), "The files are kept")
			if code, _ := r.failure(); code != "sandbox_lost" || told != test.kept {
				t.Fatalf("the answer is %v", r.fields)
			}
			args := map[string]any{"session_id": r.text("session_id"), "format": "patch"}
			got := do(t, cs, "get_files", args)
			has := strings.Contains(got.text("patch"), "+die")
			if code, _ := got.failure(); has != test.kept || !test.kept && code != "sandbox_lost" {
				t.Errorf("the patch is %v", got.fields)
			}
			_, err = cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://" + id + "/log"})
			if (err == nil) != test.kept {
				t.Errorf("the file is read with %v", err)
			}
			want := map[bool]string{true: "dieagain", false: "again"}[test.kept]
			args = map[string]any{"task": "note", "input": "again", "session_id": args["session_id"]}
			if r := must(t, cs, "execute_task", args); r.text("text") != want {
				t.Errorf("the next task answers %q, want %q", r.text("text"), want)
			}
			must(t, cs, "cleanup_session", map[string]any{"session_id": args["session_id"]})
			there, err := engine.HasWorkspace(t.Context(), m.Instance(), id)
			if err = errors.Join(err, m.Close(context.Background()), engine.Close()); err != nil || there {
				t.Errorf("its files are left: %v; %v", there, err)
			}
		})
	}
}
