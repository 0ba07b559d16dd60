package mcpserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestRefusedOptions verifies that invalid options are errors and not replaced by defaults.
func TestRefusedOptions(t *testing.T) {
	t.Parallel()
	m := newMemoryManager(t)
	for _, o := range []mcpserver.Options{
		{IdleTimeout: -time.Second}, {Policy: &mcpserver.Policy{Limits: mcpserver.PolicyLimits{FileMB: -1}}},
	} {
		if _, err := mcpserver.New(m, &o); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := mcpserver.New(nil, nil); !errors.Is(err, backend.ErrInvalid) {
		t.Error(err)
	}
	s := newServer(t, m, nil)
	over, cancel := context.WithCancel(t.Context())
	cancel() // valid options are served only briefly
	const secret = "0123456789abcdef"
	for _, o := range []mcpserver.HTTPOptions{
		{MaxConns: -1}, {MaxSessions: -1}, {MaxOwnerSessions: -1}, {MaxRequests: -1}, {MaxBodyBytes: -1},
		{Rate: -1}, {BodyTimeout: -1}, {WriteTimeout: -1}, {StopTimeout: -1},
		{Tokens: []mcpserver.Token{{Name: "a", Secret: secret}, {Name: "b", Secret: secret}}},
		{Tokens: []mcpserver.Token{{Name: "a", Secret: "short"}}}, {Tokens: []mcpserver.Token{{Name: "local", Secret: secret}}}, {Origins: []string{"app.example"}},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		checktest.Must(t, err)
		if err := s.ServeHTTP(over, l, &o); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestFilePolicy verifies that the file rules apply to every way of returning a file.
func TestFilePolicy(t *testing.T) {
	t.Parallel()
	policy := mcpserver.DefaultPolicy()
	policy.Files.Refuse, policy.Files.Allow = []string{".env"}, []string{".env", "*.txt"}
	policy.Limits.FileMB = 1
	cs := connect(t, newServer(t, newManager(t), &mcpserver.Options{Policy: &policy}), nil)
	sandbox := must(t, cs, "sandbox_open", nil).text("sandbox_id")
	must(t, cs, "sandbox_exec", map[string]any{"command": "mkdir d; echo x > d/ok.txt; echo x > .env; echo x > a.py; head -c 1048577 /dev/zero > big.txt; ln -s big.txt link.txt"})
	for path, rule := range map[string]string{"d/ok.txt": "", ".env": "files.refuse .env", "a.py": "files.allow", "big.txt": "limits.file_mb", "link.txt": "limits.file_mb"} {
		for _, args := range []map[string]any{{"path": path}, {"path": path, "max_bytes": 1}, {"path": path, "line_limit": 1}} {
			_, message := do(t, cs, "sandbox_fs_read", args).failure()
			if rule == "" && message != "" || rule != "" && !strings.Contains(message, fmt.Sprintf("guard rule %q", rule)) {
				t.Errorf("sandbox_fs_read %v: %q, want rule %q", args, message, rule)
			}
		}
		_, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://" + sandbox + "/" + path})
		if rule == "" && err != nil || rule != "" && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("guard rule %q", rule))) {
			t.Errorf("resource %s: %v, want rule %q", path, err, rule)
		}
	}
	if _, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://" + sandbox + "/d"}); err != nil {
		t.Errorf("a directory: %v", err)
	}
	list, err := cs.ListResources(t.Context(), nil)
	checktest.Must(t, err)
	var names []string
	for _, r := range list.Resources {
		names = append(names, r.Name)
	}
	if diff := cmp.Diff([]string{"d/ok.txt"}, names); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
}

// TestGrownFile verifies that the limit of get_files applies to a file that has grown after it was listed.
func TestGrownFile(t *testing.T) {
	t.Parallel()
	m := newMemoryManager(t)
	s := newServer(t, m, nil)
	key := session.Run{Namespace: record.NamespaceMCP, ID: "run_grown"}.Key("box")
	box, _, err := m.Open(t.Context(), key, session.Request{Image: pythonImage})
	checktest.Must(t, err)
	full, err := box.WriteFile(t.Context(), "full", bytes.NewReader(make([]byte, 10<<20)), sandbox.WriteFileOptions{})
	checktest.Must(t, err)
	grown, err := box.WriteFile(t.Context(), "grown", strings.NewReader("grown"), sandbox.WriteFileOptions{})
	checktest.Must(t, err)
	grown.Size = 0
	got, err := s.GetListed(t.Context(), box, full, grown)
	if err != nil || got.Count != 1 || len(got.Skipped) != 1 || !got.Truncated {
		t.Errorf("%d files, skipped %v, truncated %v, %v", got.Count, got.Skipped, got.Truncated, err)
	}
}

// TestResourcesAreAudited verifies that each resources/read of a sandbox has a record, with or without a file.
func TestResourcesAreAudited(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(file, audit.Options{})
	checktest.Must(t, err)
	cs := connectUnder(t, audit.NewContext(t.Context(), log), newServer(t, newMemoryManager(t), nil), nil)
	sandbox := must(t, cs, "sandbox_open", nil).text("sandbox_id")
	must(t, cs, "sandbox_fs_write", map[string]any{"path": "d/f", "contents": "text"})
	for _, name := range []string{"d", "d/f", "none"} {
		_, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://" + sandbox + "/" + name})
		if (err != nil) != (name == "none") {
			t.Errorf("%s: %v", name, err)
		}
	}
	raw, err := os.ReadFile(file)
	if n := strings.Count(string(raw), `"resources/read"`); err != nil || n != 3 {
		t.Errorf("%d records, %v", n, err)
	}
	checktest.Must(t, log.Close())
}

// TestPatchesWait verifies that one patch of a client with two sessions is in memory at once, and that neither other
// clients nor other files of the client wait for it.
func TestPatchesWait(t *testing.T) {
	t.Parallel()
	busy, done := make(chan struct{}, 16), make(chan struct{})
	var quick atomic.Value // the ID of a sandbox without waits
	s := newServer(t, newMemoryManager(t), &mcpserver.Options{
		Diff: func(_ context.Context, box *session.Session) (*patch.Patch, error) {
			if box.ID() != quick.Load() {
				busy <- struct{}{}
				<-done
				<-busy
			}
			return &patch.Patch{}, nil
		},
	})
	connect := connectOwners(t, s)
	clients := []*mcp.ClientSession{connect("a"), connect("a"), connect("b")}
	for _, cs := range clients {
		quick.Store(must(t, cs, "sandbox_open", nil).text("sandbox_id"))
	}
	args := map[string]any{"format": "patch"}
	var waiting sync.WaitGroup
	for i := range 16 {
		waiting.Go(func() {
			params := &mcp.CallToolParams{Name: "get_files", Arguments: args}
			if _, err := clients[i%2].CallTool(t.Context(), params); err != nil {
				t.Error(err)
			}
		})
	}
	checktest.Eventually(t, "a patch begins", func() bool { return len(busy) > 0 })
	must(t, clients[2], "get_files", args)
	must(t, clients[0], "get_files", nil)
	if len(busy) > 1 {
		t.Errorf("%d patches at once", len(busy))
	}
	close(done)
	waiting.Wait()
}

// TestEditsOfTasks verifies that few edits of execute_task are in memory at once.
func TestEditsOfTasks(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	cs := connect(t, newServer(t, newMemoryManager(t), &mcpserver.Options{
		Tasks: shellTasks, RunTask: func(ctx context.Context, _ mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
			return mcpserver.TaskResult{}, errors.Join(bound.Each(16, 16, func(int) error {
				leave, err := bound.Edits(ctx).Enter(ctx)
				if err != nil {
					return err
				}
				defer leave()
				defer now.Add(-1)
				most.Store(max(most.Load(), now.Add(1)))
				return nil
			})...)
		},
	}), nil)
	must(t, cs, "execute_task", map[string]any{"task": "shell", "input": "true"})
	if n := most.Load(); n < 1 || n > 2 {
		t.Errorf("%d edits at once", n)
	}
}

// TestZipNames verifies that an archive contains no name that leads outside of its directory when it is unpacked.
func TestZipNames(t *testing.T) {
	t.Parallel()
	cs := connect(t, newServer(t, newManager(t), nil), nil)
	must(t, cs, "sandbox_exec", map[string]any{"command": `echo x > '..\..\evil'; echo x > 'C:evil'; echo x > plain`})
	var got mcpserver.GetFilesOutput
	must(t, cs, "get_files", map[string]any{"format": "zip"}).into(t, &got)
	if diff := cmp.Diff(map[string]string{"plain": "x\n"}, unzip(t, got.ZipB64)); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
	var skipped []string
	for _, f := range got.Skipped {
		skipped = append(skipped, f.Path)
	}
	slices.Sort(skipped)
	if diff := cmp.Diff([]string{`..\..\evil`, "C:evil"}, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	must(t, cs, "get_files", nil).into(t, &got)
	if len(got.Files) != 3 {
		t.Errorf("one by one: %+v", got.Files)
	}
}

// TestSessionsAreRenewed verifies that get_files and session_status count as use of a session.
func TestSessionsAreRenewed(t *testing.T) {
	t.Parallel()
	const idle = time.Hour
	m := newManager(t)
	s := newServer(t, m, &mcpserver.Options{Tasks: shellTasks, RunTask: runShellTask(m), IdleTimeout: idle})
	cs := connect(t, s, nil)
	must(t, cs, "execute_task", map[string]any{"task": "shell", "input": "echo x > f", "session_id": "work"})
	list, err := m.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("sandboxes %v, %v", list, err)
	}
	for _, use := range []func(){
		func() { must(t, cs, "get_files", map[string]any{"session_id": "work"}) },
		func() { must(t, cs, "session_status", map[string]any{"session_id": "work"}) },
		func() { must(t, cs, "get_files", map[string]any{"session_id": list[0].ID}) },
		func() {
			_, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://" + list[0].ID + "/f"})
			checktest.Must(t, err)
		},
	} {
		before := time.Now()
		use()
		s.Sweep(before.Add(idle)) // anything not used since before is idle for longer
		if n := sandboxes(t, m); n != 1 {
			t.Fatal("the session is gone")
		}
		if info, err := m.List(t.Context()); err != nil || info[0].LastUsed.Before(before) {
			t.Errorf("the sandbox was not used: %v %v", info, err)
		}
	}
	must(t, cs, "session_status", nil) // listing all sessions does not count as use
	checktest.Eventually(t, "the idle session ends", func() bool {
		s.Sweep(time.Now().Add(idle + time.Second))
		return sandboxes(t, m) == 0
	})
	if code, _ := do(t, cs, "session_status", map[string]any{"session_id": "work"}).failure(); code != "not_found" {
		t.Errorf("status of the session: %s", code)
	}
}

// TestManySessions verifies that the number of a client's sessions is limited.
func TestManySessions(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	cs := connect(t, newServer(t, m, &mcpserver.Options{Tasks: shellTasks, RunTask: runShellTask(m)}), nil)
	for i := range 100 {
		code, message := do(t, cs, "execute_task", map[string]any{"task": "fail", "session_id": "new"}).failure()
		if code == "capacity" {
			if i != 64 || !strings.Contains(message, "(64)") {
				t.Errorf("after %d sessions: %s", i, message)
			}
			return
		}
	}
	t.Error("100 sessions were begun")
}

// TestNoteNamesTheGuard verifies that the policy does not refuse anything that the note of sandbox_open permits.
func TestNoteNamesTheGuard(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	for seconds, want := range map[int64]string{0: "(at most 3600)", 20: "(at most 20)", 300: "(at most 300)", 7200: "(at most 3600)"} {
		policy := mcpserver.DefaultPolicy()
		policy.Limits.ExecTimeout = time.Duration(seconds) * time.Second
		cs := connect(t, newServer(t, m, &mcpserver.Options{Policy: &policy}), nil)
		if note := must(t, cs, "sandbox_open", nil).text("note"); !strings.Contains(note, want) {
			t.Errorf("with %d seconds: %s", seconds, note)
		}
		list, err := cs.ListTools(t.Context(), nil)
		checktest.Must(t, err)
		for _, tool := range list.Tools {
			if tool.Name != "sandbox_exec" && tool.Name != "sandbox_run" {
				continue
			}
			schema, _ := tool.InputSchema.(map[string]any)
			properties, _ := schema["properties"].(map[string]any)
			timeout, _ := properties["timeout_seconds"].(map[string]any)
			if got := fmt.Sprintf("(at most %v)", timeout["maximum"]); got != want {
				t.Errorf("with %d seconds the schema of %s says %s", seconds, tool.Name, got)
			}
		}
	}
}

// TestTaskCeiling verifies that the policy's limits apply to requests of agents and to defaults.
func TestTaskCeiling(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	policy := mcpserver.DefaultPolicy()
	policy.Limits.MemoryMB, policy.Limits.CPUMillicores, policy.Limits.WorkspaceMB = 256, 500, 32
	cs := connect(t, newServer(t, m, &mcpserver.Options{Tasks: shellTasks, RunTask: runShellTask(m), Policy: &policy}), nil)
	must(t, cs, "execute_task", map[string]any{"task": "greedy", "input": "true", "session_id": "work"})
	var out mcpserver.SessionStatusOutput
	must(t, cs, "session_status", map[string]any{"session_id": "work"}).into(t, &out)
	if len(out.Sessions) != 1 || out.Sessions[0].MemoryLimit != 256<<20 || out.Sessions[0].CPUMillicores != 500 || out.Sessions[0].WorkspaceLimit != 32<<20 {
		t.Errorf("sandboxes %+v", out.Sessions)
	}
}
