//go:build linux

package promises

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
)

// guestThreads returns the number of threads of the sandbox's main process.
func guestThreads(t *testing.T, b *testSandbox) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(b.sh(t, "sed -n 's/^Threads://p' /proc/1/status")))
	must(t, err)
	return n
}

// TestB1Special: FIFOs, sockets, and devices are refused without being opened. They are listed with their type and can
// be deleted.
func TestB1Special(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *testSandbox) {
		dir := b.dir(t)
		threads := guestThreads(t, b)
		b.sh(t, "cd "+dir+" && mkdir -p tree/sub && mkfifo tree/p tree/sub/p && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"tree/s\")' && ln -s p tree/l")
		for _, name := range []string{"p", "s"} {
			path := dir + "/tree/" + name
			out := b.call(t, toolspec.ToolFSRead, obj{"path": path})
			if fails(t, "reading "+path, out, toolspec.CodeInvalid); !strings.Contains(message(out), "not a regular file") {
				t.Errorf("reading %s: %v", path, out["error"])
			}
			for what, out := range map[string]obj{
				"reading lines": b.call(t, toolspec.ToolFSRead, obj{"path": path, "line_limit": 1}), "listing": b.call(t, toolspec.ToolFSList, obj{"path": path}),
				"writing": b.call(t, toolspec.ToolFSWrite, obj{"path": path, "contents": "x"}), "overwriting": b.call(t, toolspec.ToolFSWrite, obj{"path": path, "contents": "x", "overwrite": true}),
				"writing below": b.call(t, toolspec.ToolFSWrite, obj{"path": path + "/x", "contents": "x"}),
			} {
				fails(t, what+" "+path, out, toolspec.CodeInvalid)
			}
		}
		fails(t, "reading the link", b.call(t, toolspec.ToolFSRead, obj{"path": dir + "/tree/l"}), toolspec.CodeInvalid)
		// Users cannot create devices, so the only devices are in /dev, which is outside of the workspace.
		b.sh(t, "cd "+dir+" && ! mknod zero c 1 5 && ! mknod disk b 8 0 && ! mknod mem c 1 1")
		// A file that changes to a pipe at any moment must not block either.
		b.sh(t, "mkfifo "+dir+"/q && echo text > "+dir+"/f")
		b.background(t, "swap.py", dir+"/f", dir+"/q")
		for range 300 {
			out := b.call(t, toolspec.ToolFSRead, obj{"path": dir + "/f"})
			if code(out) == "" && string(contents(t, out)) != "text\n" {
				t.Errorf("read %v", out)
			}
		}
		// Other tests in the same sandbox may add a few threads.
		if n := guestThreads(t, b); n > threads+100 {
			t.Errorf("the guest had %d threads and now has %d", threads, n)
		}
		types := map[string]string{}
		for _, e := range b.ok(t, toolspec.ToolFSList, obj{"path": dir + "/tree", "recursive": true})["entries"].([]any) {
			types[strings.TrimPrefix(e.(obj)["path"].(string), dir+"/tree/")] = e.(obj)["type"].(string)
		}
		want := map[string]string{"sub": "dir", "p": "other", "sub/p": "other", "s": "other", "l": "symlink"}
		if diff := cmp.Diff(want, types); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
		if n := b.ok(t, toolspec.ToolFSDelete, obj{"path": dir + "/tree", "recursive": true})["deleted"]; n != 6.0 {
			t.Errorf("deleted %v entries, want 6", n)
		}
	})
}

// oddNames returns names often misinterpreted by programs.
func oddNames() []string {
	return []string{
		"new\nline", "tab\there", "esc\x1b[31mred\x1b]0;title\x07", "-rf", "--help", "*", "?", "[a-z]", "'single'", `"double"`, "`touch pwned`",
		"$(touch pwned)", "; touch pwned", "a && touch pwned", "| touch pwned", " lead", "trail ", "\\", `back\slash`, "\u00e9", "e\u0301", "日本語", "🚀",
		"\u202egnp.exe", "#hash", "%s%n", "{{x}}", "${HOME}", "~root", "cr\rlf", "\x7f", "\u0085", "a=b", "con", "%2e%2e%2fetc%2fpasswd", `..\..\etc\passwd`,
		"....", "..foo", strings.Repeat("n", 255),
	}
}

// TestB4OddNames: any possible file name is returned exactly, even if it is not UTF-8.
func TestB4OddNames(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *testSandbox) {
		dir := b.dir(t)
		want := oddNames()
		for i, name := range want {
			b.ok(t, toolspec.ToolFSWrite, obj{"path": dir + "/" + name, "contents": strconv.Itoa(i)})
		}
		slices.Sort(want)
		var seen []string // listed by the sandbox itself, byte for byte
		must(t, json.Unmarshal([]byte(b.exec(t, sandbox.ExecRequest{
			Argv: []string{"python3", "-c", "import json, os, sys; print(json.dumps(sorted(os.listdir(sys.argv[1]))))", dir},
		})), &seen))
		slices.Sort(seen)
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("names in the sandbox (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, namesIn(t, b, dir)); diff != "" {
			t.Errorf("listed names (-want +got):\n%s", diff)
		}
		for i, name := range oddNames() {
			if got := string(contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": dir + "/" + name}))); got != strconv.Itoa(i) {
				t.Errorf("%q holds %q, want %d", name, got, i)
			}
			b.ok(t, toolspec.ToolFSDelete, obj{"path": dir + "/" + name})
		}
		names := []string{"\xed\xa0\x80", "\xf0\x9f\x9a", "\xff\xfe", "a\xc3("}
		b.exec(t, sandbox.ExecRequest{Argv: append([]string{"python3", "-c", "import os, sys\nfor n in sys.argv[2:]: open(os.path.join(sys.argv[1], n), 'w').write('x')", dir}, names...)})
		slices.Sort(names)
		if diff := cmp.Diff(names, namesIn(t, b, dir)); diff != "" {
			t.Errorf("listed names (-want +got):\n%s", diff)
		}
		for _, name := range names {
			if data, _, err := b.s.ReadFileBytes(t.Context(), dir+"/"+name, sandbox.ReadFileOptions{}); err != nil || string(data) != "x" {
				t.Errorf("%q: %q, %v", name, data, err)
			}
			if n, err := b.s.RemoveFile(t.Context(), dir+"/"+name, false); n != 1 || err != nil {
				t.Errorf("removing %q: %d, %v", name, n, err)
			}
		}
		if got := b.sh(t, "ls -A "+dir+"; find / -xdev -name pwned 2>/dev/null; true"); got != "" {
			t.Errorf("left: %q", got)
		}
	})
}

// namesIn returns the sorted names in a directory, as listed by sandbox_fs_list.
func namesIn(t *testing.T, b *testSandbox, dir string) (names []string) {
	t.Helper()
	for _, e := range b.ok(t, toolspec.ToolFSList, obj{"path": dir})["entries"].([]any) {
		path := e.(obj)["path"].(string)
		if raw, ok := e.(obj)["path_b64"].(string); ok {
			path = string(contents(t, obj{"contents_b64": raw}))
		}
		names = append(names, strings.TrimPrefix(path, dir+"/"))
	}
	slices.Sort(names)
	return names
}

// TestB4Terminal: control characters in names do not reach the terminal of the command line.
func TestB4Terminal(t *testing.T) {
	t.Parallel()
	state := w.stateDir(t, w.instance)
	const evil = "evil\x1b[31m\x1b]0;owned\x07\x9b2J"
	file := filepath.Join(t.TempDir(), "a\x1b[31m.prompt")
	must(t, os.WriteFile(file, []byte("---\nsandbox: nonsense\x1b[31m\n---\n"), 0o600))
	for _, args := range [][]string{
		{"sandbox", "exec", evil, "--", "true"},
		{"sandbox", "exec", w.user.s.ID(), "-w", evil, "--", "true"},
		{"sandbox", "exec", w.user.s.ID(), "--", evil},
		{"sandbox", "rm", evil}, {"sandbox", "open", "--name", evil}, {"sandbox", "open", "--image", evil},
		{"validate", file}, {"run", file}, {"agent", "run", file}, {evil},
	} {
		res := workcell(t, state, nil, args...)
		if res.Code == 0 || strings.ContainsAny(res.Stderr+res.Stdout, "\x1b\x07") || strings.Contains(res.Stderr+res.Stdout, "\x9b") {
			t.Errorf("%q: exit code %d, printed %q %q", args, res.Code, res.Stdout, res.Stderr)
		}
	}
}
