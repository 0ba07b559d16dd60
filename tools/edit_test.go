package tools_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestEditsWait verifies that an edit waits for other edits of its client.
func TestEditsWait(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": "a"})
	gate := bound.Gate{One: semaphore.NewWeighted(1), All: semaphore.NewWeighted(1)}
	leave, err := gate.Enter(t.Context())
	checktest.Must(t, err)
	ctx, cancel := context.WithTimeout(bound.WithEdits(t.Context(), gate), 50*time.Millisecond)
	defer cancel()
	edit := obj{"path": "f", "old_string": "a", "new_string": "b"}
	if out, err := set.tools["sandbox_fs_edit"].RunRaw(ctx, edit); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second edit: %v %v", out, err)
	}
	leave()
	set.call(bound.WithEdits(t.Context(), gate), "sandbox_fs_edit", edit)
}

// TestEdit verifies that an edit keeps the file's mode and all other bytes.
func TestEdit(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	for _, tt := range []struct {
		text, old, with string
		all             bool
		want            string
		lines           string
	}{
		{"a\nb\nc\n", "b\n", "", false, "a\nc\n", "[2]"},
		{"x x\nx\n", "x", "yy", true, "yy yy\nyy\n", "[1 1 2]"},
		{"a\r\nb\r\n\xff\x00", "a\nb", "1\n2\n3", false, "1\r\n2\r\n3\r\n\xff\x00", "[1]"},
	} {
		set.ok("sandbox_fs_write", obj{"path": "d/f", "contents_b64": base64.StdEncoding.EncodeToString([]byte(tt.text)), "overwrite": true, "mode": "0751"})
		out := set.ok("sandbox_fs_edit", obj{"path": "d/f", "old_string": tt.old, "new_string": tt.with, "replace_all": tt.all})
		read := set.ok("sandbox_exec", obj{"command": "base64 -w0 d/f; stat -c ' %a' d/f"})
		if want := base64.StdEncoding.EncodeToString([]byte(tt.want)) + " 751\n"; read["stdout"] != want {
			t.Errorf("%q: %v, want %v", tt.text, read["stdout"], want)
		}
		if fmt.Sprint(out["lines"]) != tt.lines || num(out["size_bytes"]) != float64(len(tt.want)) || !strings.HasSuffix(str(out["path"]), "/d/f") || out["ok"] != true {
			t.Errorf("%q: %v, want lines %s", tt.text, out, tt.lines)
		}
	}
}

// TestEditRefuses verifies that a file with the wrong number of occurrences is unchanged, and that the error lists the
// lines of the occurrences.
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
		"twice":        {obj{"old_string": "b()", "new_string": "x"}, "old_string occurs 2 times in f, at lines 2, 5; Add surrounding lines", 2},
		"often":        {obj{"old_string": "same", "new_string": "x"}, "occurs 30 times in f, at lines 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25 and 10 more", 30},
		"nowhere":      {obj{"old_string": "nothing", "new_string": "x"}, "old_string occurs 0 times in f; Read the file", 0},
		"nowhere, all": {obj{"old_string": "nothing", "new_string": "x", "replace_all": true}, "occurs 0 times", 0},
		"white space":  {obj{"old_string": "if c:\n\tb()", "new_string": "x"}, "the lines from 4 on differ only in white space", 0},
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

// TestEditsSideBySide verifies concurrent edits, because a model may call a tool several times in one answer.
func TestEditsSideBySide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, seen, err := r.generate(context.Background(), codeMode(),
		call("sandbox_fs_write", obj{"path": "f", "contents": "a\nb\nc\nd\n"}),
		call("sandbox_fs_edit", obj{"path": "f", "old_string": "a", "new_string": "1"}, "sandbox_fs_edit", obj{"path": "f", "old_string": "b", "new_string": "2"},
			"sandbox_fs_edit", obj{"path": "f", "old_string": "c", "new_string": "3"}, "sandbox_fs_edit", obj{"path": "f", "old_string": "d", "new_string": "4"}),
		call("sandbox_fs_read", obj{"path": "f"}), say("done"))
	checktest.Must(t, err)
	if out := seen.outputs(); out[len(out)-1]["contents"] != "1\n2\n3\n4\n" {
		t.Errorf("%v", out)
	}
}

// TestEditKeepsWhatOthersWrite verifies that an edit keeps concurrent writes to the file through the session.
func TestEditKeepsWhatOthersWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("shared-edit", session.Request{})
	set := r.toolsIn(ctx, codeMode())
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": "count 0\n"})
	const writers, each = 3, 50
	done := make(chan error, writers)
	s, err := r.manager.Get(session.Run{Namespace: record.NamespaceWorkflow, ID: "shared-edit"}.Key(record.DefaultName))
	checktest.Must(t, err)
	for range writers {
		go func() {
			for n := 0; n < each; {
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
	}
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
	for range writers {
		checktest.Must(t, <-done)
	}
	if out := set.ok("sandbox_fs_read", obj{"path": "f"}); out["contents"] != "count 20\n"+strings.Repeat("x\n", writers*each) {
		t.Errorf("%v", out)
	}
}
