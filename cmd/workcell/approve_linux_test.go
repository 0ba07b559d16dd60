package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// TestApproveAtATerminal: somebody at a terminal sees a call with its arguments, of which none plays tricks on the terminal,
// and answers; what was typed before the question is no answer.
func TestApproveAtATerminal(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "shop")); err != nil {
		t.Fatal(err)
	}
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
            for id in 'one \u001b[2J` + "\u202e" + `' two two three; do tools call orders.refund "{\"id\":\"$id\"}" >/dev/null && echo yes || echo no; done
      - text: "answers: ${ last.stdout }"
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		types []string
		want  string
	}{
		{[]string{"", "y", "n", "a"}, "no yes no yes"},
		{[]string{"a"}, "yes yes yes yes"},
	} {
		w := openWindow(newUser(t, "local"), "agent", "run", filepath.Join(dir, "desk.prompt"), "--model", "scripted/"+filepath.Join(dir, "script.yaml"),
			"--host-tools", filepath.Join(dir, "hosts.yaml"))
		keys := func(text string) {
			_, err := w.master.WriteString(text)
			w.check(err)
		}
		all := ""
		upTo := func(text string) {
			for !strings.Contains(w.shown, text) {
				if strings.Contains(w.shown, commandIsOver) {
					t.Fatalf("%q is not shown:\n%s", text, all+w.shown)
				}
				w.shown += <-w.more
			}
			before, rest, _ := strings.Cut(w.shown, text)
			all, w.shown = all+before+"\n", rest
		}
		keys("y\ny\ny\ny\n")
		for _, answer := range tt.types {
			upTo("in this run > ")
			keys(answer + "\n")
		}
		upTo(commandIsOver)
		_, answers, _ := strings.Cut(all, "answers: ")
		if got := strings.Join(strings.Fields(answers), " "); !strings.HasPrefix(got, tt.want) {
			t.Errorf("typed %q: %s, want %s\n%s", tt.types, got, tt.want, all)
		}
		plain := strings.NewReplacer("\r\n", "\n", "\r\x1b[K", "").Replace(all) // what the line of progress needs
		if i := strings.IndexFunc(plain, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("the terminal got %q", plain[i:])
		}
		if !strings.Contains(all, `asks to call orders.refund with`) || !strings.Contains(all, `{"id":"one \u001b[2J`) {
			t.Errorf("it was not shown what is asked about:\n%s", all)
		}
		w.ends(0)
	}
}
