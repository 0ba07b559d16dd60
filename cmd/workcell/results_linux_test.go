package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
)

// TestResultsAtATerminal verifies that names and contents chosen by a sandbox or a server are displayed on a real terminal without
// effect on it. Pipes receive them unchanged.
func TestResultsAtATerminal(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	dir, _, _ := endedRuns(t, "run_evil")
	u.environ = append(u.environ, "WORKCELL_STATE_DIR="+dir)
	servers := filepath.Join(write(t, map[string]string{"servers.yaml": "servers: {shop: {command: [shop, count]}}"}), "servers.yaml")
	const evil = "\x1b[2J\x1b]0;title\a\u009b31m\u202eover\rwrite\x7f\u2066\b\U000e0041"
	file := func(text string) patch.Entry { return patch.Entry{Mode: 0o644, Content: []byte(text)} }
	p := patch.Compare(patch.Tree{"a": file("old\n")}, patch.Tree{"a": file(evil + "\n"), evil: file(evil), "l": patch.NewLink([]byte("/" + evil))})
	p.Omitted = []patch.Conflict{{Path: evil, Reason: "it cannot be read"}}
	made := runfiles.Made{Outputs: patch.Tree{"f": file(evil), evil: file("x")}, Patch: p, Workspace: t.TempDir()}
	checktest.Must(t, runfiles.Dir(filepath.Join(dir, "runs")).Save("run_evil", made))
	for _, c := range []struct {
		code  int
		shows string
		args  []string
	}{
		{0, `\u202e\u009b`, []string{"tools", "call", "shop.count", `{"id": "\u202e\u009b"}`, "--host-tools", servers}},
		{0, `+\x1b[2J\x1b]0;title\x07\u009b31m\u202eover\x0dwrite\x7f`, []string{"runs", "diff", "run_evil"}},
		{0, `\x1b[2J`, []string{"runs", "files", "run_evil"}},
		{0, `\u009b31m\u202eover`, []string{"runs", "files", "run_evil", "-o", "json"}},
		{0, `\x1b[2J`, []string{"runs", "get", "run_evil", "f", "-"}},
		{7, `skipped: l: the link to /\x1b[2J`, []string{"runs", "apply", "run_evil"}},
		{6, `\x1b[2J`, []string{"runs", "get", "run_evil", evil + "/" + evil, "-"}},
	} {
		w := openWindow(u, c.args...)
		for !strings.Contains(w.shown, commandIsOver) {
			w.shown += <-w.more
		}
		w.shown, _, _ = strings.Cut(w.shown, commandIsOver)
		text := strings.ReplaceAll(w.shown, "\r\n", "\n")
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q: the terminal got %q", c.args, text[i:])
		}
		if !strings.Contains(strings.ReplaceAll(text, "\n", ""), c.shows) {
			t.Errorf("%q: %q is not shown:\n%s", c.args, c.shows, text)
		}
		w.ends(c.code)
	}
	var want bytes.Buffer
	checktest.Must(t, p.Format(&want))
	if out, _ := u.run(0, "runs", "diff", "run_evil"); out != want.String() {
		t.Errorf("a pipe got %q, want %q", out, want.String())
	}
	if out, _ := u.run(0, "runs", "get", "run_evil", "f", "-"); out != evil {
		t.Errorf("a pipe got %q", out)
	}
}
