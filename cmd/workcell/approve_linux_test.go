package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// asking returns the arguments of a run whose code makes five calls with required approval.
func asking(t *testing.T) []string {
	self, err := os.Executable()
	checktest.Must(t, err)
	dir := t.TempDir()
	checktest.Must(t, os.Symlink(self, filepath.Join(dir, "shop")))
	for name, text := range map[string]string{
		"hosts.yaml": "servers:\n  orders: {command: [" + filepath.Join(dir, "shop") + ", refund]}\n",
		"desk.prompt": `---
model: anthropic/x
sandbox:
  mode: script
  runtime: bash
  image: host
  host_tools: {allow: [{tool: orders.refund, ask: "true"}]}
---
Go on.
`,
		"script.yaml": `agents:
  desk:
    - - tool: sandbox_run
        input:
          code: |
            for id in zero 'one \u001b[2J' two two three; do
              tools call orders.refund "{\"id\":\"$id\"}" >/dev/null && echo yes || echo no
            done
      - text: "answers: ${ last.stdout }"
`,
	} {
		checktest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return []string{"agent", "run", filepath.Join(dir, "desk.prompt"), "--model",
		"scripted/" + filepath.Join(dir, "script.yaml"), "--host-tools", filepath.Join(dir, "hosts.yaml")}
}

// TestApproveAtATerminal verifies that the command shows a call with its arguments at a terminal and reads the decision
// there. It ignores keys typed before the question. Another process can answer instead.
func TestApproveAtATerminal(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	w := openWindow(u, asking(t)...)
	keys := func(text string) {
		_, err := w.master.WriteString(text)
		w.check(err)
	}
	keys("y\ny\ny\ny\n")
	w.await(`asks to call orders.refund with`)
	w.await("in this run > ")
	for id := ""; id == ""; { // another process answers the first question
		if list, _ := u.run(0, "approvals", "ls"); strings.Contains(list, "zero") {
			id, _, _ = strings.Cut(list[strings.Index(list, "\n")+1:], " ")
			u.run(0, "approvals", "deny", id)
		}
	}
	w.await("orders.refund: denied by ")
	w.await(`asks to call orders.refund with`)
	w.await(`{"id":"one \u001b[2J`)
	for _, answer := range []string{"", "y", "n", "a"} {
		w.await("in this run > ")
		keys(answer + "\n")
	}
	w.await("answers: ")
	for !strings.Contains(w.shown, commandIsOver) {
		w.shown += <-w.more
	}
	if got := strings.Join(strings.Fields(w.shown), " "); !strings.HasPrefix(got, "no no yes no yes") {
		t.Errorf("answers: %s", got)
	}
	w.ends(0)
}
