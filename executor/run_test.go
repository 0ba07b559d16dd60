//go:build linux

package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/sandbox"
)

// TestEvents verifies that events arrive in order, that unknown lines and too long lines are raw, and that the answer
// is the last message.
func TestEvents(t *testing.T) {
	s, _ := newSandbox(t)
	script := begin + `
echo 'no event'; printf '{"kind":"text","text":"first"}\r\n'
echo '{"kind":"tool_start","tool":{"id":"1","name":"x"}}'
head -c 9000000 /dev/zero | tr '\0' x; echo
echo '{"kind":"text","text":"The ","delta":true}'; echo '{"kind":"text","text":"end.","delta":true}'
echo '{"kind":"usage","usage":{"input":5,"output":1}}'; echo '{"kind":"usage","usage":{"input":6,"output":1}}'
printf '{"kind":"end","end":{"outcome":"completed","turns":1}}'`
	var kinds []string
	var kept bytes.Buffer
	res, err := run(t, s, script, executor.Options{Keep: &kept, OnEvent: func(e executor.Event) {
		kinds = append(kinds, string(e.Kind))
		if len(e.Raw) > executor.MaxToolText+2 {
			t.Errorf("%d bytes raw", len(e.Raw))
		}
	}})
	must(t, err)
	want := executor.Result{
		Text: "The end.", SessionID: "s1", Outcome: executor.Completed, Turns: 2, ToolCalls: 1,
		Told: executor.Usage{Input: 11, Output: 2}, Exit: res.Exit,
	}
	if diff := cmp.Diff(want, res); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := strings.Join(kinds, " "); got != "session raw text tool_start raw text text usage usage end" {
		t.Error(got)
	}
	if kept.Len() < 9_000_000 {
		t.Errorf("%d bytes kept", kept.Len())
	}
	if res.Err() != nil {
		t.Error(res.Err())
	}
}

// TestEnds verifies that the whole process tree of a CLI is killed in every case, including a child in another session,
// and the CLI's last output is read.
func TestEnds(t *testing.T) {
	const work = `setsid sleep 1000 & echo $! > child; trap 'echo "{\"kind\":\"notice\"}"; exit 3' TERM; while :; do sleep 0.1; done`
	over := make(chan struct{})
	close(over)
	began := time.Now()
	waiting := executor.Options{Stall: time.Second, Waited: func() time.Duration { return time.Since(began) }}
	usage := `echo '{"kind":"usage","usage":{"input":1,"output":1}}';`
	tests := map[string]struct {
		script string
		turns  int
		o      executor.Options
		want   executor.Outcome
		err    error
		detail string
	}{
		"timeout":          {begin + work, 0, executor.Options{Timeout: time.Second}, executor.TimedOut, backend.ErrTimeout, "after 1s"},
		"stall":            {begin + work, 0, executor.Options{Stall: time.Second, Waited: func() time.Duration { return 3 }}, executor.Stalled, backend.ErrTimeout, "no events for 1s"},
		"approval":         {begin + "sleep 2;" + done, 0, waiting, executor.Completed, nil, ""},
		"start":            {"exec 2>/dev/null;" + work, 0, executor.Options{Start: time.Second}, executor.Crashed, executor.ErrFailed, "no events in its first 1s"},
		"budget":           {begin + work, 0, executor.Options{OverBudget: over}, executor.Budget, executor.ErrBudget, ""},
		"turns":            {begin + usage + usage + work, 2, executor.Options{}, executor.MaxTurns, executor.ErrMaxTurns, ""},
		"left a child":     {begin + "setsid sleep 1000 & echo $! > child;" + done, 0, executor.Options{}, executor.Completed, nil, ""},
		"left a quiet one": {begin + "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $! > child;" + done, 0, executor.Options{}, executor.Completed, nil, ""},
		"crashed over one": {begin + "sh -c 'while :; do sleep 0.1; done' >/dev/null 2>&1 </dev/null & echo $! > child; kill -9 $$", 0, executor.Options{}, executor.Crashed, executor.ErrFailed, "killed by SIGKILL"},
		"does not leave":   {begin + done + work, 0, executor.Options{Stall: time.Second}, executor.Completed, nil, ""},
		"refuses to end":   {begin + `echo $$ > child; trap "" TERM; while :; do sleep 0.1; done`, 0, executor.Options{Stall: time.Second}, executor.Stalled, backend.ErrTimeout, "no events for 1s"},
		"crash":            {begin + "echo why >&2; exit 2", 0, executor.Options{}, executor.Crashed, executor.ErrFailed, "why"},
		"known exit code":  {"exit 41", 0, executor.Options{}, executor.AuthError, executor.ErrFailed, "exit code 41"},
		"says nothing":     {"exit 0", 0, executor.Options{}, executor.Unparsable, executor.ErrFailed, "exit code 0"},
		"signal":           {begin + "kill -9 $$", 0, executor.Options{}, executor.Crashed, executor.ErrFailed, "killed by SIGKILL"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir := newSandbox(t)
			res, err := executor.Run(t.Context(), s, cli{}, executor.Task{Prompt: test.script, MaxTurns: test.turns}, &test.o)
			must(t, err)
			if res.Outcome != test.want || res.Detail != test.detail || !errors.Is(res.Err(), test.err) {
				t.Errorf("%+v: %v", res, res.Err())
			}
			if pid := strings.TrimSpace(file(dir, "child")); pid != "" {
				if state := file("/proc/"+pid, "stat"); state != "" && !strings.Contains(state, ") Z ") {
					t.Errorf("process %s lives: %s", pid, state)
				}
			}
		})
	}
}

// TestCancelled verifies that canceling the context kills the process tree and is the returned error. The hooks after
// the CLI still run.
func TestCancelled(t *testing.T) {
	s, dir := newSandbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	res, err := executor.Run(ctx, s, cli{}, executor.Task{Prompt: begin + `trap 'echo "{\"kind\":\"text\",\"text\":\"last\"}"; exit 1' TERM; while :; do sleep 0.1; done`}, &executor.Options{
		After:   []string{"echo x > after"},
		OnEvent: func(executor.Event) { cancel() },
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(res.Err(), context.Canceled) || res.Text != "last" || res.SessionID != "s1" {
		t.Errorf("%+v, %v", res, err)
	}
	if file(dir, "after") == "" {
		t.Error("the hook did not run")
	}
}

// TestKilledAtALimit verifies that the error of a coding agent killed at a limit of its sandbox differs from an
// ordinary crash.
func TestKilledAtALimit(t *testing.T) {
	t.Parallel()
	for status, want := range map[sandbox.ExecState]bool{
		sandbox.ExecOOMKilled: true, sandbox.ExecQuotaKilled: true, sandbox.ExecCompleted: false,
	} {
		r := executor.Result{Outcome: executor.Crashed, Exit: sandbox.ExecStatus{Status: status}}
		if err := r.Err(); errors.Is(err, backend.ErrQuota) != want || !errors.Is(err, executor.ErrFailed) {
			t.Errorf("%s: %v", status, err)
		}
	}
}

// TestDetail verifies that the detail is the end of the standard error, safe for messages.
func TestDetail(t *testing.T) {
	s, _ := newSandbox(t)
	res, err := run(t, s, `head -c 10000 /dev/zero | tr '\0' x >&2; printf '\033[31mred' >&2; exit 1`, executor.Options{})
	must(t, err)
	if len(res.Detail) > 4<<10 || !strings.HasSuffix(res.Detail, `\x1b[31mred`) {
		t.Errorf("%d bytes: …%q", len(res.Detail), res.Detail[max(0, len(res.Detail)-40):])
	}
}

// TestHooks verifies that a failed hook before the CLI ends the run, and a failed hook after the CLI is reported. The
// hooks after the CLI run in both cases.
func TestHooks(t *testing.T) {
	s, dir := newSandbox(t)
	_, err := run(t, s, "touch ran", executor.Options{Before: []string{"echo no >&2; exit 4", "touch second"}, After: []string{"touch after"}})
	if !errors.Is(err, executor.ErrFailed) || !strings.Contains(err.Error(), "exit code 4: no") {
		t.Error(err)
	}
	_, err = run(t, s, "touch ran", executor.Options{Before: []string{"exit 9"}})
	if !strings.HasSuffix(fmt.Sprint(err), `: before: "exit 9": exit code 9`) {
		t.Errorf("a silent failure: %v", err)
	}
	for name, want := range map[string]bool{"ran": false, "second": false, "after": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	res, err := run(t, s, begin+done, executor.Options{Before: []string{"true"}, After: []string{"exit 5", "touch last"}})
	must(t, err)
	if res.Outcome != executor.Completed || len(res.HookErrors) != 1 || !strings.Contains(res.HookErrors[0], "exit code 5") {
		t.Errorf("%+v", res)
	}
}

// TestSettings verifies that the CLI has the home directory of all commands, and earlier commands, even with links,
// cannot give it settings or skills.
func TestSettings(t *testing.T) {
	s, dir := newSandbox(t)
	for range 2 {
		_, err := run(t, s, `find $SETTINGS -mindepth 1 | sed "s,$SETTINGS/,," | sort > found; cat $SETTINGS/.cli/config > config
cat ~/.gitconfig > seen; ls -A ~ > home; echo x > $SETTINGS/.profile;`+begin+done, executor.Options{
			Before: []string{`echo name > ~/.gitconfig; cd .workcell; mkdir -p agents/cli/.cli/plugins ~/.agents/skills/x; echo evil > agents/cli/.cli/config
echo evil > agents/cli/.cli/plugins/x; ln -sf /etc agents/cli/.claude; ln -sfn /etc ~/.claude`},
		})
		must(t, err)
		got := map[string]string{"found": ".cli\n.cli/config\n", "config": "ours", "seen": "name\n", "home": ".gitconfig\n"}
		for name, want := range got {
			if got := file(dir, name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}

// TestResume verifies which session a run resumes, which files of its home directory remain, and which part of the
// reported usage is its own.
func TestResume(t *testing.T) {
	s, dir := newSandbox(t)
	const script = begin + `echo "$RESUME" > resumed; cd $SETTINGS; mkdir -p .cli/sessions; echo x > .cli/sessions/s1; echo x > .cli/hook; cat .cli/config > $OLDPWD/config; echo x > .cli/config; ln -sf / .cli/link;`
	use := func(n int) string {
		return fmt.Sprintf(`echo '{"kind":"usage","usage":{"input":%d,"output":1,"whole":true}}';`, n) + done
	}
	steps := []struct {
		name    string
		o       executor.Options
		resumed string
		told    int64
	}{
		{"first", executor.Options{Resume: executor.ResumeStep, Step: "a"}, "", 10},
		{"same step", executor.Options{Resume: executor.ResumeStep, Step: "a"}, "s1", 10},
		{"other step", executor.Options{Resume: executor.ResumeStep, Step: "b"}, "", 30},
		{"no step", executor.Options{Resume: executor.ResumeStep}, "", 40},
		{"session", executor.Options{Resume: executor.ResumeSession}, "s1", 10},
		{"never", executor.Options{}, "", 60},
		{"other agent", executor.Options{Resume: executor.ResumeSession, Agent: "other"}, "", 70},
	}
	for i, step := range steps {
		res, err := run(t, s, script+use(10*(i+1)), step.o)
		must(t, err)
		if got := strings.TrimSpace(file(dir, "resumed")); got != step.resumed || res.Resumed != (step.resumed != "") {
			t.Errorf("%s: resumed %q, %v", step.name, got, res.Resumed)
		}
		if res.Told.Input != step.told {
			t.Errorf("%s: told %+v, want %d", step.name, res.Told, step.told)
		}
		if file(dir, "config") != "ours" {
			t.Errorf("%s: the configuration is not ours", step.name)
		}
	}
	// Files that a session left outside its sessions directory are removed, including links.
	must(t, os.WriteFile(filepath.Join(dir, ".workcell/agents/cli/.cli/sessions/kept"), []byte("x"), 0o644))
	_, err := run(t, s, `find $SETTINGS -mindepth 1 | sed "s,$SETTINGS/,," | sort > home;`+begin+done, executor.Options{Resume: executor.ResumeSession})
	must(t, err)
	if got := file(dir, "home"); got != ".cli\n.cli/config\n.cli/sessions\n.cli/sessions/kept\n.cli/sessions/s1\n" {
		t.Error(got)
	}
}

// TestRememberedEarly verifies that the session is recorded while the CLI is working, in case the host dies before the
// end.
func TestRememberedEarly(t *testing.T) {
	s, dir := newSandbox(t)
	_, err := run(t, s, begin+`while ! [ -s .workcell/executor/cli.json ]; do sleep 0.05; done; cp .workcell/executor/cli.json seen;`+done, executor.Options{Step: "a", Stall: time.Minute})
	must(t, err)
	if got := file(dir, "seen"); !strings.Contains(got, `"session":"s1"`) || !strings.Contains(got, `"step":"a"`) || !strings.Contains(got, s.ID()) {
		t.Errorf("on record: %s", got)
	}
}

// TestLostSession verifies that a CLI that does not know the session is started again with a new session.
func TestLostSession(t *testing.T) {
	s, dir := newSandbox(t)
	_, err := run(t, s, begin+done, executor.Options{})
	must(t, err)
	const usage = `echo '{"kind":"usage","usage":{"input":1,"output":1}}';`
	const script = `echo "[$RESUME]" >> calls; if [ -n "$RESUME" ]; then ` + usage + `echo 'no such session' >&2; exit 1; fi;`
	var notice string
	o := executor.Options{Resume: executor.ResumeSession, Before: []string{"echo before >> calls"}, OnEvent: func(e executor.Event) {
		if e.Kind == executor.KindNotice {
			notice = e.Text
		}
	}}
	res, err := run(t, s, script+begin+done, o)
	must(t, err)
	if res.Outcome != executor.Completed || res.Resumed || res.Detail != "" || !strings.Contains(notice, "no such session") {
		t.Errorf("%+v, %q", res, notice)
	}
	if got := file(dir, "calls"); got != "before\n[s1]\n[]\n" {
		t.Error(got)
	}
	task := executor.Task{Prompt: script + begin + usage + done, MaxTurns: 2}
	res, err = executor.Run(t.Context(), s, cli{}, task, &o)
	must(t, err)
	if res.Outcome != executor.Completed || res.Turns != 1 {
		t.Errorf("with a turn that the lost session spent: %+v", res)
	}
	res, err = run(t, s, "exit 1", o)
	must(t, err)
	if res.Outcome != executor.Crashed {
		t.Errorf("%+v", res)
	}
}

// TestForgedState verifies that a state file written by code in the sandbox cannot add a flag to the command line. It
// also verifies that a link that replaces the settings directory is not followed.
func TestForgedState(t *testing.T) {
	s, dir := newSandbox(t)
	for _, id := range []string{"--dangerous", "a b", "", "x;y", strings.Repeat("a", 200), "../x"} {
		must(t, os.MkdirAll(filepath.Join(dir, ".workcell/executor"), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, ".workcell/executor/cli.json"), fmt.Appendf(nil, `{"sandbox":%q,"session":%q}`, s.ID(), id), 0o644))
		res, err := run(t, s, `echo "[$RESUME]" > resumed;`+begin+done, executor.Options{Resume: executor.ResumeSession})
		must(t, err)
		if res.Resumed || strings.TrimSpace(file(dir, "resumed")) != "[]" {
			t.Errorf("%q is resumed", id)
		}
	}
	for _, of := range []string{"", "another"} { // as a repository would contain it, together with the conversation
		must(t, os.WriteFile(filepath.Join(dir, ".workcell/executor/cli.json"), fmt.Appendf(nil, `{"sandbox":%q,"session":"s1"}`, of), 0o644))
		must(t, os.MkdirAll(filepath.Join(dir, ".workcell/agents/cli/.cli/sessions"), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, ".workcell/agents/cli/.cli/sessions/s1"), []byte("forged"), 0o644))
		res, err := run(t, s, `echo "[$RESUME]" > resumed; ls $SETTINGS/.cli/sessions >> resumed;`+begin+done, executor.Options{Resume: executor.ResumeSession})
		must(t, err)
		if res.Resumed || strings.TrimSpace(file(dir, "resumed")) != "[]" {
			t.Errorf("a session of sandbox %q is resumed", of)
		}
	}
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "mine"), nil, 0o644))
	must(t, os.RemoveAll(filepath.Join(dir, ".workcell/agents/cli")))
	must(t, os.Symlink(outside, filepath.Join(dir, ".workcell/agents/cli")))
	_, err := run(t, s, begin+done, executor.Options{Resume: executor.ResumeSession})
	must(t, err)
	if _, err := os.Stat(filepath.Join(outside, "mine")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(outside, ".cli")); err == nil {
		t.Error("settings were written through a link")
	}
}

// TestGrant verifies that a CLI gets the MCP server of the host tools only if they are granted.
func TestGrant(t *testing.T) {
	s, dir := newSandbox(t)
	for want, o := range map[string]executor.Options{
		"[] x\n":                             {Grant: func(_ context.Context, req *sandbox.ExecRequest) { req.Env["GRANTED"] = "x" }},
		"[/.workcell/workcell-guest mcp] \n": {HostTools: true},
	} {
		_, err := run(t, s, `echo "$MCP $GRANTED" > got;`+begin+done, o)
		must(t, err)
		if got := file(dir, "got"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestInvalid verifies that invalid parameters are rejected before any other step.
func TestInvalid(t *testing.T) {
	s, dir := newSandbox(t)
	for name, test := range map[string]struct {
		task executor.Task
		o    executor.Options
	}{
		"no prompt":   {executor.Task{Prompt: " \n"}, executor.Options{}},
		"agent":       {executor.Task{Prompt: "x"}, executor.Options{Agent: "../x"}},
		"session":     {executor.Task{Prompt: "x", ResumeID: "-r"}, executor.Options{}},
		"stall":       {executor.Task{Prompt: "x"}, executor.Options{Stall: -1}},
		"long limit":  {executor.Task{Prompt: "x"}, executor.Options{Timeout: 2 * sandbox.MaxExecTimeout}},
		"short limit": {executor.Task{Prompt: "x"}, executor.Options{Timeout: sandbox.MinExecTimeout - 1}},
	} {
		if _, err := executor.Run(t.Context(), s, cli{}, test.task, &test.o); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, ".workcell/agents")); err == nil {
		t.Error("files were written")
	}
}
