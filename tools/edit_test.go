package tools_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

func TestEdit(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	for name, tt := range map[string]struct {
		text, old, with string
		all             bool
		want            string
		lines           string
	}{
		"a word":                    {"one two\nthree\n", "three", "3", false, "one two\n3\n", "[2]"},
		"several lines":             {"a\nb\nc\nd\n", "b\nc\n", "x\ny\nz\n", false, "a\nx\ny\nz\nd\n", "[2]"},
		"deletes":                   {"a\nb\n", "b\n", "", false, "a\n", "[2]"},
		"everything":                {"abc", "abc", "", false, "", "[1]"},
		"no regular expression":     {"a.b\naxb\n", "a.b", `$1\0`, false, "$1\\0\naxb\n", "[1]"},
		"all":                       {"x x\nx\n", "x", "yy", true, "yy yy\nyy\n", "[1 1 2]"},
		"all, of one":               {"x\n", "x", "y", true, "y\n", "[1]"},
		"all, without overlaps":     {"aaaa", "aa", "b", true, "bb", "[1 1]"},
		"CRLF, old and new with LF": {"a\r\nb\r\nc\r\n", "a\nb", "1\n2\n3", false, "1\r\n2\r\n3\r\nc\r\n", "[1]"},
		"CRLF, new lines in one":    {"a\r\nb\r\n", "b", "1\n2", false, "a\r\n1\r\n2\r\n", "[2]"},
		"CRLF, a line end":          {"a\r\nb\r\n", "a\n", "a\n\n", false, "a\r\n\r\nb\r\n", "[1]"},
		"CRLF, begins with one":     {"a\r\nb\r\n", "\nb", "", false, "a\r\n", "[1]"},
		"CRLF throughout":           {"a\r\nb\r\n", "a\r\nb", "c\r\nd", false, "c\r\nd\r\n", "[1]"},
		"LF, old and new with CRLF": {"a\nb\n", "a\r\nb", "c\r\nd", false, "c\nd\n", "[1]"},
		"mixed, the place decides":  {"a\r\nb\nc\n", "a\nb", "x\ny", false, "x\r\ny\nc\n", "[1]"},
		"mixed, the rest is kept":   {"a\r\nb\nc\r\n", "b", "x\ny", false, "a\r\nx\r\ny\nc\r\n", "[2]"},
		"no line end to go by":      {"ab", "b", "1\r\n2", false, "a1\r\n2", "[1]"},
		"a lone CR is a character":  {"a\rb\n", "\rb", "c", false, "ac\n", "[1]"},
		"other bytes stay":          {"\xff\x00a\xfe", "a", "ä", false, "\xff\x00ä\xfe", "[1]"},
	} {
		set.ok("sandbox_fs_write", obj{"path": "d/f", "contents_b64": base64.StdEncoding.EncodeToString([]byte(tt.text)), "overwrite": true, "mode": "0751"})
		out := set.ok("sandbox_fs_edit", obj{"path": "d/f", "old_string": tt.old, "new_string": tt.with, "replace_all": tt.all})
		read := set.ok("sandbox_exec", obj{"command": "base64 -w0 d/f; stat -c ' %a' d/f"})
		if want := base64.StdEncoding.EncodeToString([]byte(tt.want)) + " 751\n"; read["stdout"] != want {
			t.Errorf("%s: %v, want %v", name, read["stdout"], want)
		}
		if fmt.Sprint(out["lines"]) != tt.lines || num(out["size_bytes"]) != float64(len(tt.want)) || !strings.HasSuffix(str(out["path"]), "/d/f") || out["ok"] != true {
			t.Errorf("%s: %v, want lines %s", name, out, tt.lines)
		}
	}
}

// TestEditRefuses: a file in which the text does not occur as often as it must stays as it is, and the answer says where the
// text is.
func TestEditRefuses(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	text := "if a:\n    b()\n\nif c:\n    b()\n" + strings.Repeat("same\n", 30)
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": text})
	for name, tt := range map[string]struct {
		input   obj
		want    string
		matches float64
	}{
		"twice":        {obj{"old_string": "b()", "new_string": "x"}, "old_string occurs 2 times in f, at lines 2, 5; Add lines around it", 2},
		"often":        {obj{"old_string": "same", "new_string": "x"}, "occurs 30 times in f, at lines 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25 and 10 more", 30},
		"nowhere":      {obj{"old_string": "nothing", "new_string": "x"}, "old_string occurs 0 times in f; Read the file", 0},
		"nowhere, all": {obj{"old_string": "nothing", "new_string": "x", "replace_all": true}, "occurs 0 times", 0},
		"white space":  {obj{"old_string": "if c:\n\tb()", "new_string": "x"}, "the lines from 4 on differ from it in white space alone", 0},
		"the same":     {obj{"old_string": "same", "new_string": "same"}, "old_string and new_string are the same", 0},
		"nothing":      {obj{"old_string": "", "new_string": "x"}, "old_string is empty", 0},
		"no new":       {obj{"old_string": "if a"}, "new_string is required", 0},
	} {
		tt.input["path"] = "f"
		out := set.fails(toolspec.CodeInvalid, "sandbox_fs_edit", tt.input)
		if !strings.Contains(message(out), tt.want) || num(out["matches"]) != tt.matches || len(items(out["lines"])) != int(min(tt.matches, 20)) {
			t.Errorf("%s: %v, want %q", name, out, tt.want)
		}
	}
	set.fails(toolspec.CodeNotFound, "sandbox_fs_edit", obj{"path": "none", "old_string": "a", "new_string": "b"})
	set.fails(toolspec.CodePermission, "sandbox_fs_edit", obj{"path": "/etc/passwd", "old_string": "root", "new_string": "b"})
	set.fails(toolspec.CodeInvalid, "sandbox_fs_edit", obj{"path": ".", "old_string": "root", "new_string": "b"})
	out := set.fails(toolspec.CodeTooLarge, "sandbox_fs_edit", obj{"path": "f", "old_string": "same", "new_string": strings.Repeat("x", 1<<20), "replace_all": true})
	if !strings.Contains(message(out), "16777216") {
		t.Errorf("too large: %v", out)
	}
	set.ok("sandbox_exec", obj{"command": "ln -s f link; head -c 17000000 /dev/zero >big"})
	set.fails(toolspec.CodeTooLarge, "sandbox_fs_edit", obj{"path": "big", "old_string": "a", "new_string": "b"})
	if out := set.ok("sandbox_fs_read", obj{"path": "f"}); out["contents"] != text {
		t.Errorf("a refused edit changed the file: %v", out["contents"])
	}
	set.ok("sandbox_fs_edit", obj{"file_path": "link", "old_str": "if a", "new_str": "if b"})
	if out := set.ok("sandbox_exec", obj{"command": "head -n1 f; readlink link"}); out["stdout"] != "if b:\nf\n" {
		t.Errorf("through a link: %v", out["stdout"])
	}
}

// TestEditsSideBySide: a model may call a tool several times in one answer.
func TestEditsSideBySide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, seen, err := r.generate(context.Background(), codeMode(),
		call("sandbox_fs_write", obj{"path": "f", "contents": "a\nb\nc\nd\n"}),
		call("sandbox_fs_edit", obj{"path": "f", "old_string": "a", "new_string": "1"}, "sandbox_fs_edit", obj{"path": "f", "old_string": "b", "new_string": "2"},
			"sandbox_fs_edit", obj{"path": "f", "old_string": "c", "new_string": "3"}, "sandbox_fs_edit", obj{"path": "f", "old_string": "d", "new_string": "4"}),
		call("sandbox_fs_read", obj{"path": "f"}), say("done"))
	if err != nil {
		t.Fatal(err)
	}
	if out := seen.outputs(); out[len(out)-1]["contents"] != "1\n2\n3\n4\n" {
		t.Errorf("%v", out)
	}
}

// FuzzEdit: but for line ends, an edit does what replacing every occurrence does, and a file of one kind of line end keeps it.
func FuzzEdit(f *testing.F) {
	for _, seed := range [][3]string{{"a\r\nb\r\n", "a\nb", "x\ny"}, {"a\nb", "\n", "\r\n"}, {"aaa", "aa", ""}, {"\r\n\r\n", "\n", "x"}, {"\xff\r\n", "\n", "\n\n"}} {
		f.Add([]byte(seed[0]), seed[1], seed[2])
	}
	plain := func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }
	f.Fuzz(func(t *testing.T, text []byte, old, with string) {
		if old == "" || strings.Contains(plain(string(text))+plain(old)+plain(with), "\r") || len(text)*len(with) > 1<<20 {
			return // nothing to find, or CR that is no part of a line end
		}
		got, lines, err := tools.Edit(text, old, with)
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(plain(string(text)), plain(old), plain(with)); plain(string(got)) != want {
			t.Fatalf("%q: %q by %q is %q, want %q", text, old, with, got, want)
		}
		if len(lines) == 0 && string(got) != string(text) {
			t.Fatalf("%q became %q without a match", text, got)
		}
		ends, crlf := strings.Count(string(text), "\n"), strings.Count(string(text), "\r\n")
		gotEnds, gotCRLF := strings.Count(string(got), "\n"), strings.Count(string(got), "\r\n")
		if ends > 0 && (crlf == 0 && gotCRLF > 0 || crlf == ends && gotCRLF < gotEnds) {
			t.Fatalf("%q: %q by %q is %q, with other line ends", text, old, with, got)
		}
	})
}

// TestEditKeepsWhatOthersWrite writes to the file through the session while the tool edits it.
func TestEditKeepsWhatOthersWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("shared-edit", session.Request{})
	set := r.toolsIn(ctx, codeMode())
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": "count 0\n"})
	done := make(chan error, 1)
	s, err := r.manager.Get(session.Run{Namespace: session.NamespaceWorkflow, ID: "shared-edit"}.Key(session.DefaultName))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for n := 0; n < 50; {
			_, err := s.EditFile(ctx, "f", 0, func(old []byte) ([]byte, error) { return append(old, "x\n"...), nil })
			switch {
			case err == nil:
				n++
			case !errors.Is(err, backend.ErrTimeout):
				done <- err
				return
			}
		}
		done <- nil
	}()
	edits := 0
	for edits < 20 {
		out := set.call(ctx, "sandbox_fs_edit", obj{"path": "f", "old_string": fmt.Sprintf("count %d\n", edits), "new_string": fmt.Sprintf("count %d\n", edits+1)})
		switch {
		case code(out) == "":
			edits++
		case code(out) != string(toolspec.CodeTimeout) || sub(out["error"])["retryable"] != true:
			t.Fatal(out)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if out := set.ok("sandbox_fs_read", obj{"path": "f"}); out["contents"] != "count 20\n"+strings.Repeat("x\n", 50) {
		t.Errorf("%v", out)
	}
}
