package promises

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// guestThreads counts the threads of the sandbox's main process.
func guestThreads(t *testing.T, b *box) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(b.sh(t, "sed -n 's/^Threads://p' /proc/1/status")))
	must(t, err)
	return n
}

// notRegular checks that nothing opens a path that is no regular file, and that it is listed as what it is.
func notRegular(t *testing.T, b *box, path string) {
	t.Helper()
	began := time.Now()
	out := b.call(t, toolspec.ToolFSRead, obj{"path": path})
	fails(t, "reading "+path, out, toolspec.CodeInvalid)
	if !strings.Contains(message(out), "not a regular file") {
		t.Errorf("reading %s: %v", path, out["error"])
	}
	fails(t, "reading lines of "+path, b.call(t, toolspec.ToolFSRead, obj{"path": path, "line_limit": 1}), toolspec.CodeInvalid)
	for _, overwrite := range []bool{false, true} {
		fails(t, "writing to "+path, b.call(t, toolspec.ToolFSWrite, obj{"path": path, "contents": "x", "overwrite": overwrite}), toolspec.CodeInvalid)
	}
	fails(t, "listing "+path, b.call(t, toolspec.ToolFSList, obj{"path": path}), toolspec.CodeInvalid)
	fails(t, "writing below "+path, b.call(t, toolspec.ToolFSWrite, obj{"path": path + "/x", "contents": "x"}), toolspec.CodeInvalid)
	info, err := b.s.StatFile(t.Context(), path)
	if err != nil || info.Type != session.TypeOther {
		t.Errorf("%s is %+v, %v", path, info, err)
	}
	within(t, 2*time.Second, began)
}

func TestB1Fifo(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		threads := guestThreads(t, b)
		b.sh(t, "mkfifo "+dir+"/p && ln -s p "+dir+"/l")
		for range 5 {
			notRegular(t, b, dir+"/p")
			fails(t, "reading the link", b.call(t, toolspec.ToolFSRead, obj{"path": dir + "/l"}), toolspec.CodeInvalid)
		}
		// A file that turns into a pipe at any moment is not waited for either.
		b.sh(t, "mkfifo "+dir+"/q && echo text > "+dir+"/f")
		b.background(t, "swap.py", dir+"/f", dir+"/q")
		for range 300 {
			out := b.call(t, toolspec.ToolFSRead, obj{"path": dir + "/f"})
			if code(out) == "" && string(contents(t, out)) != "text\n" {
				t.Errorf("read %v", out)
			}
		}
		// A few threads come with what other tests do in the same sandbox.
		if n := guestThreads(t, b); n > threads+100 {
			t.Errorf("the guest had %d threads and now has %d", threads, n)
		}
	})
}

func TestB2SocketAndDevice(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		b.sh(t, "cd "+dir+" && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'")
		notRegular(t, b, dir+"/s")
		// Nobody can make a device, so the only ones lie in /dev, which is outside.
		b.sh(t, "cd "+dir+" && ! mknod zero c 1 5 && ! mknod disk b 8 0 && ! mknod mem c 1 1 && ln -s /dev/zero z && ln -s /dev/random r")
		for _, path := range []string{"/dev/zero", "/dev/random", "/dev/full", dir + "/z", dir + "/r", "../dev/zero"} {
			fails(t, "reading "+path, b.call(t, toolspec.ToolFSRead, obj{"path": path}), toolspec.CodePermission)
		}
	})
}

func TestB3SpecialFilesListedAndDeleted(t *testing.T) {
	t.Parallel()
	b := w.user
	dir := b.dir(t)
	b.sh(t, "cd "+dir+" && mkdir -p tree/sub && mkfifo tree/p tree/sub/p && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"tree/s\")' && ln -s /etc tree/l")
	types := map[string]string{}
	for _, e := range b.ok(t, toolspec.ToolFSList, obj{"path": dir, "recursive": true})["entries"].([]any) {
		types[strings.TrimPrefix(e.(obj)["path"].(string), dir+"/")] = e.(obj)["type"].(string)
	}
	want := map[string]string{"tree": "dir", "tree/sub": "dir", "tree/p": "other", "tree/sub/p": "other", "tree/s": "other", "tree/l": "symlink"}
	if diff := cmp.Diff(want, types); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	if n := b.ok(t, toolspec.ToolFSDelete, obj{"path": dir + "/tree", "recursive": true})["deleted"]; n != 6.0 {
		t.Errorf("deleted %v entries, want 6", n)
	}
}

// oddNames are names that programs misread.
func oddNames() []string {
	return []string{
		"new\nline", "tab\there", "esc\x1b[31mred\x1b]0;title\x07", "-rf", "--help", "*", "?", "[a-z]", "'single'", `"double"`, "`touch pwned`",
		"$(touch pwned)", "; touch pwned", "a && touch pwned", "| touch pwned", " lead", "trail ", "\\", `back\slash`, "\u00e9", "e\u0301", "日本語", "🚀",
		"\u202egnp.exe", "#hash", "%s%n", "{{x}}", "${HOME}", "~root", "cr\rlf", "\x7f", "\u0085", "a=b", "con", strings.Repeat("n", 255),
	}
}

func TestB4OddNames(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		want := oddNames()
		for i, name := range want {
			b.ok(t, toolspec.ToolFSWrite, obj{"path": dir + "/" + name, "contents": strconv.Itoa(i)})
		}
		slices.Sort(want)
		// What the sandbox itself sees, byte for byte, and the listing.
		var seen []string
		must(t, json.Unmarshal([]byte(b.exec(t, session.ExecRequest{
			Argv: []string{"python3", "-c", "import json, os, sys; print(json.dumps(sorted(os.listdir(sys.argv[1]))))", dir},
		})), &seen))
		slices.Sort(seen)
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("names in the sandbox (-want +got):\n%s", diff)
		}
		var listed []string
		for _, e := range b.ok(t, toolspec.ToolFSList, obj{"path": dir})["entries"].([]any) {
			listed = append(listed, strings.TrimPrefix(e.(obj)["path"].(string), dir+"/"))
		}
		slices.Sort(listed)
		if diff := cmp.Diff(want, listed); diff != "" {
			t.Errorf("listed names (-want +got):\n%s", diff)
		}
		for i, name := range oddNames() {
			if got := string(contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": dir + "/" + name}))); got != strconv.Itoa(i) {
				t.Errorf("%q holds %q, want %d", name, got, i)
			}
			out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"cat", "--", name}, "cwd": dir})
			if out["stdout"] != strconv.Itoa(i) {
				t.Errorf("cat of %q: %v", name, out)
			}
			b.ok(t, toolspec.ToolFSDelete, obj{"path": dir + "/" + name})
		}
		if got := b.sh(t, "ls -A "+dir+"; find / -xdev -name pwned 2>/dev/null; true"); got != "" {
			t.Errorf("left: %q", got)
		}
	})
}

// TestB4Terminal: what the command line says of such names does not reach the terminal raw.
func TestB4Terminal(t *testing.T) {
	t.Parallel()
	state := w.stateDir(t, w.instance)
	const evil = "evil\x1b[31m\x1b]0;owned\x07\x9b2J"
	file := filepath.Join(t.TempDir(), "a\x1b[31m.prompt")
	must(t, os.WriteFile(file, []byte("---\nsandbox: nonsense\x1b[31m\n---\n"), 0o600))
	for _, args := range [][]string{
		{"sessions", "exec", evil, "--", "true"},
		{"sessions", "exec", w.user.s.ID(), "-w", evil, "--", "true"},
		{"sessions", "exec", w.user.s.ID(), "--", evil},
		{"sessions", "rm", evil}, {"sessions", "open", "--name", evil}, {"sessions", "open", "--image", evil},
		{"validate", file}, {"run", file}, {"agent", "run", file}, {evil},
	} {
		res := workcell(t, state, nil, args...)
		if res.code == 0 {
			t.Errorf("%q succeeded", args)
		}
		for _, c := range []string{"\x1b", "\x07", "\x9b"} {
			if strings.Contains(res.stderr+res.stdout, c) {
				t.Errorf("%q: raw control characters in %q %q", args, res.stdout, res.stderr)
			}
		}
	}
}

func TestB5NamesOutOfUTF8(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		names := []string{"\xff\xfe", "a\xc3(", "\xed\xa0\x80", "plain", "\xf0\x9f\x9a"}
		b.exec(t, session.ExecRequest{Argv: append([]string{"python3", "-c", "import os, sys\nfor n in sys.argv[2:]: open(os.path.join(sys.argv[1], n), 'w').write('x')", dir}, names...)})
		found := map[string]bool{}
		for _, e := range b.ok(t, toolspec.ToolFSList, obj{"path": dir})["entries"].([]any) {
			e := e.(obj)
			name := e["path"].(string)
			if raw, ok := e["path_b64"].(string); ok {
				name = string(contents(t, obj{"contents_b64": raw}))
			}
			found[strings.TrimPrefix(name, dir+"/")] = true
		}
		for _, name := range names {
			if !found[name] {
				t.Errorf("%q is not listed: %v", name, found)
			}
			data, _, err := b.s.ReadFileBytes(t.Context(), dir+"/"+name, session.ReadFileOptions{})
			if err != nil || string(data) != "x" {
				t.Errorf("%q: %q, %v", name, data, err)
			}
			if n, err := b.s.RemoveFile(t.Context(), dir+"/"+name, false); n != 1 || err != nil {
				t.Errorf("removing %q: %d, %v", name, n, err)
			}
		}
	})
}

func TestB8NUL(t *testing.T) {
	t.Parallel()
	b := w.user
	dir := b.dir(t)
	for what, in := range map[string]obj{
		"argv": {"cmd": []string{"echo", "a\x00b"}}, "program": {"cmd": []string{"echo\x00x"}}, "command": {"command": "echo a\x00b"},
		"env value": {"cmd": []string{"env"}, "env": obj{"A": "x\x00y"}}, "env name": {"cmd": []string{"env"}, "env": obj{"A\x00B": "x"}},
		"cwd": {"cmd": []string{"pwd"}, "cwd": "/workspace\x00/etc"},
	} {
		fails(t, what, b.call(t, toolspec.ToolExec, in), toolspec.CodeInvalid)
	}
	for _, path := range []string{"a\x00b", "\x00", dir + "/f\x00.txt", "/workspace\x00/../etc/passwd"} {
		for op, got := range verdicts(t, b, path, dir+"/victim") {
			if got != string(toolspec.CodeInvalid) {
				t.Errorf("%s of %q: %q", op, path, got)
			}
		}
	}
	if err := b.s.RenameFile(t.Context(), dir, "x\x00y", true); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("rename: %v", err)
	}
	out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"od", "-An", "-c"}, "stdin": "a\x00b\x00"})
	if got := strings.Join(strings.Fields(out["stdout"].(string)), " "); got != `a \0 b \0` {
		t.Errorf("standard input arrived as %q", got)
	}
	b.ok(t, toolspec.ToolFSWrite, obj{"path": dir + "/nul", "contents": "a\x00b"})
	if got := contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": dir + "/nul"})); string(got) != "a\x00b" {
		t.Errorf("contents %q", got)
	}
}
