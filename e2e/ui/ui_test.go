//go:build linux

package ui

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
)

const scripted = "scripted/flows/script.yaml"

// seedRuns adds n ended runs of several workflows to the journal.
func (s *stage) seedRuns(n int) {
	s.Helper()
	j := s.journal().For("", `{"backend":"local"}`)
	start := time.Now().Add(-time.Duration(n) * time.Minute)
	for i := range n {
		at := start.Add(time.Duration(i) * time.Minute)
		id := fmt.Sprintf("run_%026d", i)
		begin := workflow.Entry{RunID: id, Seq: 1, Time: at, Kind: workflow.EventRunStarted}
		begin.Workflow = fmt.Sprintf("workflow-%d", i%5)
		end := workflow.Entry{RunID: id, Seq: 2, Time: at.Add(40 * time.Second), Kind: workflow.EventRunFinished}
		end.Outcome = workflow.Succeeded
		if i%7 == 0 {
			end.Outcome, end.Error = workflow.Failed, &workflow.Error{Code: "exit_code", Message: fmt.Sprintf("exit %d", i)}
		}
		checktest.Must(s, j.Append(s.Context(), begin))
		checktest.Must(s, j.Append(s.Context(), end))
	}
}

// TestOpen: a login link works once, a second command returns a link of the running server, 10,000 runs are pages of a
// list, and reading needs no script.
func TestOpen(t *testing.T) {
	onEachState(t, func(s *stage) {
		s.serve()
		s.seedRuns(10_000)
		example, err := filepath.Abs("../../examples/workflows/debug-and-fix.yaml")
		checktest.Must(s, err)
		s.run(0, example, "--model", "scripted/"+filepath.Dir(example)+"/scripts/debug-and-fix.yaml")
		s.workcell(0, "sandbox", "open", "--name", "mybox")
		link := s.link
		s.browse("open.mjs", nil, answers{"link": func() any {
			defer func() { link = s.newLink().(string) }()
			return link
		}})
	})
}

// TestWhy: a failed run opens at the failed step, with the error and the end of the output.
func TestWhy(t *testing.T) {
	onEachState(t, func(s *stage) {
		id := s.run(1, "flows/fail.yaml", "--model", scripted)
		s.serve()
		var shown struct{ Error string }
		s.decode(s.workcell(0, "runs", "show", id, "-o", "json"), &shown)
		s.browse("why.mjs", map[string]any{"run": id, "error": shown.Error}, nil)
	})
}

// TestWatch: a page follows the list of runs, a run, and the output of a command without a reload, even if the server
// is killed and starts again, and a hidden page has no connection.
func TestWatch(t *testing.T) {
	onEachState(t, func(s *stage) {
		s.serve()
		var run *rig.Process
		var id string
		started := func() any {
			run = rig.Start(s, s.command("run", "flows/watch.yaml"))
			checktest.Eventually(s, "the second step", func() bool { return strings.Contains(run.Text(), "collect ") })
			id = strings.Fields(run.Text())[1]
			return id
		}
		s.browse("watch.mjs", nil, answers{
			"start": started,
			"let go": func() any {
				s.workcell(0, "sandbox", "exec", id, "--", "touch", "go")
				return run.Wait()
			},
			"kill":  func() any { s.server.Kill(); return nil },
			"serve": func() any { s.serve(); return nil },
			"entries": func() any {
				list, err := s.journal().Entries(s.Context(), id)
				checktest.Must(s, err)
				return len(list)
			},
		})
	})
}

// nasty is text from any source, which must stay text.
const nasty = `</script><script>pwned=1</script><img id=hostile src=x onerror="pwned=1">{{.}}{{printf "%s" .}}${7*7}` +
	"<style>*{display:none}</style><a href=javascript:pwned=1>x</a>' onload=pwned=1 \" " +
	"\x1b[31mred\x1b]0;title\x07\x1b]8;;http://evil.example/\x1b\\link" +
	"\u202egnirts\u2066 zero\u200bwidth \ufeff\u0085"

// TestHostileText: no text of a workflow, model, tool, file, or command becomes anything but text.
func TestHostileText(t *testing.T) {
	t.Parallel()
	s := newStage(t, "")
	dir := filepath.Join(s.dir, "project")
	checktest.Must(s, os.Mkdir(dir, 0o700))
	checktest.Must(s, os.WriteFile(filepath.Join(dir, "payload"), []byte(nasty+"\x00\xff\xc3\n"), 0o600))
	plain := strings.Map(func(r rune) rune { return max(r, ' ') }, nasty)
	real := s.run(1, "flows/hostile.yaml", "--keep", "--model", scripted, "--workspace", dir, "--input", "text="+plain)
	box := s.workcell(0, "sandbox", "open", "--name", "hostile")
	s.workcell(0, "sandbox", "cp", filepath.Join(dir, "payload"), "hostile:payload")
	s.workcell(0, "sandbox", "exec", "hostile", "--", "cp", "payload", "<img id=hostile onerror=pwned=1>.html")
	s.serve()
	seeded := "run_" + strings.Repeat("h", 26)
	failed := &workflow.Error{Code: "exit_code", Step: nasty, Message: nasty}
	step := workflow.Entry{Kind: workflow.EventStepStarted, Path: nasty, Step: nasty, Type: workflow.TypeExec}
	step.Agent, step.Visit, step.Attempt = nasty, 1, 1
	end := step
	end.Kind, end.Status, end.Error = workflow.EventStepFinished, workflow.StatusFailed, failed
	end.Next, end.Has = nasty, true
	flood := nasty + strings.Repeat("z", 1<<20) + nasty
	end.Output = map[string]any{"stdout": flood, "stderr": nasty, "exit_code": nasty, nasty: nasty}
	j := s.journal().For("", `{"workflow":"`+strings.ReplaceAll(plain, `"`, "'")+`","backend":"<b>"}`)
	for i, e := range []workflow.Entry{
		{Kind: workflow.EventRunStarted, Workflow: nasty, Input: map[string]any{nasty: nasty}}, step, end,
		{Kind: workflow.EventRunFinished, Outcome: workflow.Failed, Error: failed},
	} {
		e.RunID, e.Seq, e.Time = seeded, int64(i+1), time.Now()
		checktest.Must(s, j.Append(s.Context(), e))
	}
	outputs := "/runs/" + real + "/raw/out/"
	s.browse("hostile.mjs", map[string]any{
		"runs": []string{seeded, real}, "boxes": []string{box}, "text": plain,
		"raw": []string{
			outputs + "x.svg", outputs + url.PathEscape("<img id=hostile onerror=pwned=1>.html"),
			"/runs/" + seeded + "/steps/3/stdout", "/sandboxes/" + box + "/raw/payload",
		},
	}, nil)
}

// tree describes the files of a directory: modes, targets of links, and contents.
func tree(t testing.TB, dir string) string {
	t.Helper()
	const list = `cd "$1" && find . -printf '%M %P %l\n' | sort && find . -type f | sort | xargs sha256sum`
	out, err := rig.Output(exec.Command("sh", "-c", list, "sh", dir))
	checktest.Must(t, err)
	return out
}

// TestApply: the page shows every kind of change, and the preview and the result match the command.
func TestApply(t *testing.T) {
	t.Parallel()
	s := newStage(t, "")
	dir, twin := filepath.Join(s.dir, "project"), filepath.Join(s.dir, "twin")
	checktest.Must(s, os.Mkdir(dir, 0o700))
	var lines []string
	for i := range 30 {
		lines = append(lines, fmt.Sprintf("line %d\n", i+1))
	}
	write := func(files map[string]string) {
		for name, content := range files {
			checktest.Must(s, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
		}
	}
	write(map[string]string{
		"edit.py": "return 1\n", "both.txt": "return 1\n", "old.txt": "moved\n", "run.sh": "#!/bin/sh\n",
		"logo.bin": "\x00\x01\x02",
		"crlf.txt": "one\r\ntwo\r\n", "gone.txt": "gone\n", "merged.txt": strings.Join(lines, ""),
	})
	id := s.run(0, "flows/review.yaml", "--workspace", dir)
	lines[14] = "mine\n"
	write(map[string]string{"both.txt": "return 3\n", "merged.txt": strings.Join(lines, "")})
	_, err := rig.Output(exec.Command("cp", "-a", dir, twin))
	checktest.Must(s, err)
	plan := map[string]string{}
	for line := range strings.Lines(s.workcell(7, "runs", "apply", id, "--dry-run")) {
		if f := strings.Fields(line); len(f) > 1 {
			plan[f[0]] = f[1]
		}
	}
	delete(plan, "PATH") // the header
	s.workcell(7, "runs", "apply", id, twin)
	s.serve()
	s.browse("apply.mjs", map[string]any{"run": id, "plan": plan}, answers{"difference": func() any {
		if got, want := tree(s.TB, dir), tree(s.TB, twin); got != want {
			return got + "\nwant\n" + want
		}
		return ""
	}})
}

// TestApprove: the calls of a run appear on open pages, a user answers them from the keyboard, one of
// several concurrent answers counts, and the questions of a killed run are no longer open.
func TestApprove(t *testing.T) {
	onEachState(t, func(s *stage) {
		s.serve()
		var run *rig.Process
		var out strings.Builder
		var open []struct{ ID string }
		start := func() any {
			cmd := s.command("run", "flows/desk.yaml", "--model", scripted, "--host-tools", "flows/hosts.yaml")
			cmd.Stdout = &out
			run = rig.Start(s, cmd)
			checktest.Eventually(s, "the run", func() bool { return strings.Contains(run.Text(), " started: ") })
			return regexp.MustCompile(`run_[a-z0-9]{26}`).FindString(run.Text())
		}
		s.browse("approve.mjs", nil, answers{
			"start": start,
			"waiting": func() any {
				s.decode(s.workcell(0, "approvals", "ls", "-o", "json"), &open)
				return len(open)
			},
			"allow":  func() any { return rig.Run(s, s.command("approvals", "allow", open[0].ID)).Code },
			"result": func() any { run.Wait(); return out.String() },
			"kill":   func() any { run.Kill(); return nil },
		})
	})
}

// TestStrangers: pages of other origins, foreign host names, and old cookies reach nothing, and a read-only server has
// no actions.
func TestStrangers(t *testing.T) {
	t.Parallel()
	s := newStage(t, "")
	dir := filepath.Join(s.dir, "project")
	checktest.Must(s, os.Mkdir(dir, 0o700))
	checktest.Must(s, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("as it was"), 0o600))
	done := s.run(0, "flows/small.yaml", "--workspace", dir)
	run := rig.Start(s, s.command("run", "flows/watch.yaml"))
	checktest.Eventually(s, "the second step", func() bool { return strings.Contains(run.Text(), "collect ") })
	id := strings.Fields(run.Text())[1]
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<!doctype html><link rel=icon href=data:,><title>stranger</title>")
	}))
	defer web.Close()
	s.serve()
	port := func(of string) string { return of[strings.LastIndex(of, ":"):] }
	strangers := []string{strings.TrimSuffix(s.url(), port(s.address)) + port(web.URL), "http://stranger.localhost" + port(web.URL)}
	rebound := "http://rebound.localhost" + port(s.address)
	s.browse("strangers.mjs", map[string]any{
		"run": id, "done": done, "strangers": strangers, "rebound": rebound + "/runs",
		"others": slices.Concat(strangers, []string{rebound}),
	}, answers{
		"read only": func() any { s.server.Kill(); s.serve("--read-only"); return nil },
		"state": func() any {
			var shown struct{ State string }
			s.decode(s.workcell(0, "runs", "show", id, "-o", "json"), &shown)
			raw, err := os.ReadFile(filepath.Join(dir, "a.txt"))
			checktest.Must(s, err)
			return []string{shown.State, string(raw)}
		},
	})
	s.workcell(0, "sandbox", "exec", id, "--", "touch", "go")
	run.Wait()
}
