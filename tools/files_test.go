package tools_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

func TestFiles(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_fs_write", obj{"path": "a/b/c.txt", "contents": "häl\nlo\n"})
	if out["ok"] != true || out["size_bytes"] != 8.0 || !strings.HasSuffix(str(out["path"]), "/a/b/c.txt") || !strings.HasPrefix(str(out["path"]), "/") {
		t.Errorf("write: %v", out)
	}
	out = set.fails(toolspec.CodeExists, "sandbox_fs_write", obj{"path": "a/b/c.txt", "contents": "x"})
	if !strings.Contains(message(out), "overwrite: true") {
		t.Errorf("existing file: %s", message(out))
	}
	set.ok("sandbox_fs_write", obj{"path": "a/b/c.txt", "contents": "new", "overwrite": true, "mode": "0755"})
	out = set.ok("sandbox_fs_read", obj{"path": "a/b/c.txt"})
	if out["contents"] != "new" || out["truncated"] != false || out["size_bytes"] != 3.0 || keys(out) != "contents size_bytes truncated" {
		t.Errorf("read: %v", out)
	}
	out = set.ok("sandbox_fs_list", obj{"recursive": true})
	entries := items(out["entries"])
	if len(entries) != 3 || out["total"] != 3.0 || out["truncated"] != false {
		t.Fatalf("list: %v", out)
	}
	last := sub(entries[2])
	if last["path"] != "a/b/c.txt" || last["type"] != "file" || last["size"] != 3.0 || last["mode"] != "0755" || num(last["mtime_unix"]) < 1e9 {
		t.Errorf("entry: %v", last)
	}
	if out := set.ok("sandbox_fs_list", obj{"path": "a", "limit": 1}); len(items(out["entries"])) != 1 {
		t.Errorf("list of a: %v", out)
	}
	set.fails(toolspec.CodeInvalid, "sandbox_fs_delete", obj{"path": "a"})
	if out := set.ok("sandbox_fs_delete", obj{"path": "a", "recursive": true}); out["ok"] != true || out["deleted"] != 3.0 {
		t.Errorf("delete: %v", out)
	}
	set.fails(toolspec.CodeNotFound, "sandbox_fs_read", obj{"path": "a/b/c.txt"})
	set.fails(toolspec.CodeNotFound, "sandbox_fs_delete", obj{"path": "a"})
}

func TestFileArguments(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	for name, tt := range map[string]struct {
		tool  string
		input obj
		code  toolspec.Code
		want  string
	}{
		"no contents":         {"sandbox_fs_write", obj{"path": "a"}, toolspec.CodeInvalid, "contents or contents_b64 is required"},
		"both contents":       {"sandbox_fs_write", obj{"path": "a", "contents": "a", "contents_b64": "YQ"}, toolspec.CodeInvalid, "contents and contents_b64 cannot be combined"},
		"bad base64":          {"sandbox_fs_write", obj{"path": "a", "contents_b64": "%"}, toolspec.CodeInvalid, "contents_b64 is not valid base64"},
		"bad mode":            {"sandbox_fs_write", obj{"path": "a", "contents": "", "mode": "rw"}, toolspec.CodeInvalid, "mode \"rw\" must be permissions in octal"},
		"mode too large":      {"sandbox_fs_write", obj{"path": "a", "contents": "", "mode": "4755"}, toolspec.CodeInvalid, "must be permissions in octal"},
		"no path":             {"sandbox_fs_write", obj{"contents": ""}, toolspec.CodeInvalid, "path is required"},
		"empty path":          {"sandbox_fs_write", obj{"path": "", "contents": ""}, toolspec.CodeInvalid, "path is empty"},
		"nul":                 {"sandbox_fs_read", obj{"path": "a\x00b"}, toolspec.CodeInvalid, "NUL"},
		"max_bytes":           {"sandbox_fs_read", obj{"path": "a", "max_bytes": 1 << 27}, toolspec.CodeInvalid, "max_bytes must be 1 to 67108864, not 134217728"},
		"offset":              {"sandbox_fs_read", obj{"path": "a", "offset": -1}, toolspec.CodeInvalid, "offset is -1"},
		"line_offset":         {"sandbox_fs_read", obj{"path": "a", "line_offset": -1}, toolspec.CodeInvalid, "line_offset is -1"},
		"bytes and lines":     {"sandbox_fs_read", obj{"path": "a", "offset": 1, "line_limit": 1}, toolspec.CodeInvalid, "offset counts bytes"},
		"limit":               {"sandbox_fs_list", obj{"limit": 10001}, toolspec.CodeInvalid, "limit must be 1 to 10000, not 10001"},
		"root":                {"sandbox_fs_delete", obj{"path": ".", "recursive": true}, toolspec.CodeInvalid, ""},
		"directory as a file": {"sandbox_fs_read", obj{"path": "."}, toolspec.CodeInvalid, ""},
	} {
		if out := set.fails(tt.code, tt.tool, tt.input); !strings.Contains(message(out), tt.want) {
			t.Errorf("%s: %s, want %q", name, message(out), tt.want)
		}
	}
	for tool, input := range map[string]obj{"sandbox_fs_read": {}, "sandbox_fs_write": {"contents": "x"}, "sandbox_fs_list": {}, "sandbox_fs_delete": {}} {
		input["path"] = "/etc/passwd"
		set.fails(toolspec.CodePermission, tool, input)
	}
}

func TestReadBytes(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": "ab€cd"}) // € is 3 bytes
	for _, tt := range []struct {
		offset, max int
		want        string
		next        any
	}{
		{0, 7, "ab€cd", nil}, {0, 6, "ab€c", 6.0}, {0, 5, "ab€", 5.0}, {0, 4, "ab", 2.0}, {0, 3, "ab", 2.0}, {0, 1, "a", 1.0},
		{2, 3, "€", 5.0}, {5, 100, "cd", nil}, {7, 5, "", nil}, {100, 5, "", nil},
		{3, 2, "gqw=", 5.0}, {2, 2, "4oI=", 4.0}, {2, 1, "4g==", 3.0}, // base64: parts of a character
	} {
		out := set.ok("sandbox_fs_read", obj{"path": "f", "offset": tt.offset, "max_bytes": tt.max})
		got := cmp.Or(out["contents"], out["contents_b64"])
		if got != tt.want || out["next_offset"] != tt.next || out["truncated"] != (tt.next != nil) || out["size_bytes"] != 7.0 {
			t.Errorf("%d bytes from %d: %v", tt.max, tt.offset, out)
		}
		if tt.next != nil && !strings.Contains(str(out["note"]), fmt.Sprintf("call again with offset %v to continue", tt.next)) {
			t.Errorf("note %v", out["note"])
		}
	}
	out := set.ok("sandbox_fs_read", obj{"path": "f", "offset": 10})
	if out["note"] != "offset 10 is past the end of the file, which has 7 bytes" {
		t.Errorf("past the end: %v", out)
	}
}

func TestReadLines(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	var b strings.Builder
	for i := 1; i <= 1000; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": b.String() + "end"})
	set.ok("sandbox_fs_write", obj{"path": "long", "contents": "1\n" + strings.Repeat("x", 100) + "\n3\n"})
	for _, tt := range []struct {
		input     obj
		want      string
		next      any
		truncated bool
		note      string
	}{
		{obj{"path": "f", "line_limit": 2}, "line 1\nline 2\n", 3.0, true, "call again with line_offset 3"},
		{obj{"path": "f", "line_offset": 999, "line_limit": 2}, "line 999\nline 1000\n", 1001.0, true, ""},
		{obj{"path": "f", "line_offset": 999, "line_limit": 3}, "line 999\nline 1000\nend", nil, false, ""},
		{obj{"path": "f", "line_offset": 1001}, "end", nil, false, ""},
		{obj{"path": "f", "line_offset": 1002}, "", nil, false, "the file has no line 1002"},
		{obj{"path": "f", "line_offset": 1, "max_bytes": 20}, "line 1\nline 2\n", 3.0, true, ""},
		{obj{"path": "long", "line_offset": 1, "max_bytes": 10}, "1\n", 2.0, true, ""},
		{obj{"path": "long", "line_offset": 3}, "3\n", nil, false, ""},
	} {
		out := set.ok("sandbox_fs_read", tt.input)
		if out["contents"] != tt.want || out["next_line_offset"] != tt.next || out["truncated"] != tt.truncated || !strings.Contains(fmt.Sprint(out["note"]), tt.note) {
			t.Errorf("%v: %v", tt.input, out)
		}
	}
	out := set.ok("sandbox_fs_read", obj{"path": "long", "line_offset": 2, "max_bytes": 10})
	if out["contents"] != "xxxxxxxxxx" || out["next_offset"] != 12.0 || out["truncated"] != true || out["size_bytes"] != 105.0 {
		t.Errorf("a long line: %v", out)
	}
	set.ok("sandbox_fs_write", obj{"path": "wide", "contents": "1\n€€\n"})
	out = set.ok("sandbox_fs_read", obj{"path": "wide", "line_offset": 2, "max_bytes": 2})
	if out["contents_b64"] != "4oI=" || out["next_offset"] != 4.0 {
		t.Errorf("part of a character in a long line: %v", out)
	}
}
