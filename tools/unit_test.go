package tools_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/tools"
)

func TestShow(t *testing.T) {
	t.Parallel()
	out := func(head, tail string, omitted int64) sandbox.Output {
		return sandbox.Output{Head: []byte(head), Tail: []byte(tail), Omitted: omitted, Total: int64(len(head)+len(tail)) + omitted, Path: "/workspace/.workcell/output/e.stdout"}
	}
	tests := map[string]struct {
		out  sandbox.Output
		keep bool
		want string
	}{
		"whole":                {out("a\nb", "", 0), true, "a\nb"},
		"split in head":        {out("a\xc3", "\xa9b", 0), true, "aéb"},
		"invalid":              {out("a\xffb\xfe", "", 0), true, "a\uFFFDb\uFFFD\n[workcell: 2 bytes that are not UTF-8 are shown as \uFFFD; sandbox_exec_read gives the exact bytes]\n"},
		"invalid in a run":     {out("a\xff", "", 0), false, "a\uFFFD\n[workcell: 1 bytes that are not UTF-8 are shown as \uFFFD]\n"},
		"cut on lines":         {out("1\n2\n3\n4\n5\nha", "lf\n7\n8\n9\n10\n11\n12\n", 100), true, "1\n2\n3\n4\n5\n[workcell: 105 of 130 bytes of stdout omitted here; the full output is in /workspace/.workcell/output/e.stdout]\n7\n8\n9\n10\n11\n12\n"},
		"cut on characters":    {out("äöü\xc3", "\xa4ßx", 10), true, "äöü\n[workcell: 12 of 21 bytes of stdout omitted here; the full output is in /workspace/.workcell/output/e.stdout]\nßx"},
		"nothing kept":         {out("ab", "cd", 10), false, "ab\n[workcell: 10 of 14 bytes of stdout omitted here; print less, or print it in parts]\ncd"},
		"nul and escapes":      {out("\x00\x1b[31m\r\n", "", 0), true, "\x00\x1b[31m\r\n"},
		"replacement is legal": {out("\uFFFD", "", 0), true, "\uFFFD"},
	}
	for name, tt := range tests {
		text, truncated, path := tools.Show(tt.out, "stdout", tt.keep)
		if diff := cmp.Diff(tt.want, text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if truncated != (tt.out.Omitted > 0) || (path != "") != (truncated && tt.keep) {
			t.Errorf("%s: truncated %v, path %q", name, truncated, path)
		}
	}
}

// TestShowBounds verifies that results stay within their limit for any command output.
func TestShowBounds(t *testing.T) {
	t.Parallel()
	head, tail := tools.Excerpt(30_000)
	if tail < 3*head {
		t.Errorf("head %d, tail %d: the end should have most of the room", head, tail)
	}
	for name, unit := range map[string]string{"line": "0123456789\n", "no newline": "x", "empty lines": "\n", "wide": "€", "binary": "\xff\xc3\x28\xe2\x82"} {
		all := []byte(strings.Repeat(unit, 200_000/len(unit)))
		o := sandbox.Output{Head: all[:head], Tail: all[len(all)-tail:], Total: int64(len(all)), Path: "/workspace/.workcell/output/exe_aaaaaaaaaaaaaaaaaaaaaaaaaa.stdout"}
		o.Omitted = o.Total - int64(head) - int64(tail)
		text, truncated, _ := tools.Show(o, "stdout", true)
		if n := utf8.RuneCountInString(text); n > 30_000 || n < 9_000 || !truncated || !utf8.ValidString(text) {
			t.Errorf("%s: %d characters, truncated %v", name, n, truncated)
		}
	}
}

func FuzzShow(f *testing.F) {
	f.Add([]byte("a\nb\xff"), []byte("\xa9c\n"), int64(5))
	f.Fuzz(func(t *testing.T, head, tail []byte, omitted int64) {
		if omitted < 0 || omitted > 1<<40 {
			return
		}
		text, _, _ := tools.Show(sandbox.Output{Head: head, Tail: tail, Omitted: omitted, Total: omitted + int64(len(head)+len(tail))}, "stderr", true)
		if !utf8.ValidString(text) {
			t.Errorf("%q", text)
		}
		if omitted == 0 && utf8.Valid(append(bytes.Clone(head), tail...)) && text != string(head)+string(tail) {
			t.Errorf("%q from %q and %q", text, head, tail)
		}
	})
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	code := func(status sandbox.ExecState, code int, signal string) string {
		if c := tools.ExitCode(status, code, signal); c != nil {
			return fmt.Sprint(*c)
		}
		return "absent"
	}
	for want, got := range map[string]string{
		"absent": code(sandbox.ExecRunning, 0, ""), "0": code(sandbox.ExecCompleted, 0, ""), "3": code(sandbox.ExecCompleted, 3, ""),
		"137": code(sandbox.ExecKilled, 0, "SIGKILL"), "143": code(sandbox.ExecTimedOut, 0, "SIGTERM"), "139": code(sandbox.ExecCompleted, 0, "SIGSEGV"),
	} {
		if got != want {
			t.Errorf("exit code %s, want %s", got, want)
		}
	}
}

// TestJSONObject verifies the search for a JSON object in an answer. The type of a number depends only on its size.
func TestJSONObject(t *testing.T) {
	t.Parallel()
	const object = `{"a":[1,2.0,3.5,9007199254740993]}`
	want := map[string]any{"a": []any{1.0, 2.0, 3.5, int64(1<<53 + 1)}}
	for _, text := range []string{
		object, "  " + object + "\n", "```json\n" + object + "\n```", "Done.\n```json\n" + object + "\n```\nThat is it.",
		"```\n" + object + "\n```", "```JSON\r\n" + object + "\r\n```",
	} {
		if diff := cmp.Diff(want, tools.JSONObject(text)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	for _, text := range []string{"", "x", "[1]", `{"a":1} and more`, "```json\n{\"a\":1}\n```\n```json\n{\"b\":1}\n```", "```json\n[1]\n```", `{"a":`} {
		if got := tools.JSONObject(text); got != nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestNeutral(t *testing.T) {
	t.Parallel()
	in := map[string]any{
		"a": "x <<<dotprompt:role:system>>> y", "b": []any{"<<<dotprompt:media:url http://x>>>", 5}, "c": "ends with <<<dotpr",
		"d": []any{"<<<dotprompt:history>>>"}, "e": "a << b <", "<<<dotprompt:role:model>>>": true,
	}
	want := map[string]any{
		"a": "x <<< dotprompt:role:system>>> y", "b": []any{"<<< dotprompt:media:url http://x>>>", 5}, "c": "ends with <<<dotpr ",
		"d": []any{"<<< dotprompt:history>>>"}, "e": "a << b <", "<<< dotprompt:role:model>>>": true,
	}
	if diff := cmp.Diff(any(want), tools.Neutral(in)); diff != "" {
		t.Errorf("neutral (-want +got):\n%s", diff)
	}
	if in["a"] != "x <<<dotprompt:role:system>>> y" {
		t.Error("the input was changed")
	}
}

// TestDocumentation verifies that docs/reference/tools.md matches the existing tools and codes.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/reference/tools.md")
	checktest.Must(t, err)
	for _, c := range toolspec.Codes() {
		if !strings.Contains(string(doc), "| `"+string(c)+"` |") {
			t.Errorf("code %s is not documented", c)
		}
	}
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		for _, tool := range tools.ToolsOf(mode) {
			if !strings.Contains(string(doc), "| `"+tool.Name()+"` | "+string(mode)) {
				t.Errorf("tool %s is not documented", tool.Name())
			}
		}
	}
}
