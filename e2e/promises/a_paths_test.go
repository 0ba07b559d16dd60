package promises

import (
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
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// verdicts does everything with a path that can be done with one, and tells the class of each error. A file of the
// name victim is used as the other end of renames.
func verdicts(t *testing.T, b *box, path, victim string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for op, in := range map[string]obj{
		toolspec.ToolFSRead: {"path": path}, toolspec.ToolFSList: {"path": path}, toolspec.ToolFSDelete: {"path": path, "recursive": true},
		toolspec.ToolFSWrite: {"path": path, "contents": "overwritten by the test", "overwrite": true},
	} {
		out[op] = string(code(b.call(t, op, in)))
	}
	ctx := t.Context()
	for op, f := range map[string]func() error{
		"stat":        func() error { _, err := b.s.StatFile(ctx, path); return err },
		"mkdir":       func() error { _, err := b.s.MakeDir(ctx, path, 0); return err },
		"rename to":   func() error { return b.s.RenameFile(ctx, victim, path, true) },
		"rename from": func() error { return b.s.RenameFile(ctx, path, victim, true) },
	} {
		out[op] = class(f())
	}
	return out
}

// class names the class of an error as the tools do.
func class(err error) string {
	for sentinel, name := range map[error]toolspec.Code{
		backend.ErrPermission: toolspec.CodePermission, backend.ErrNotFound: toolspec.CodeNotFound, backend.ErrInvalid: toolspec.CodeInvalid,
		backend.ErrExists: toolspec.CodeExists, backend.ErrClosed: toolspec.CodeClosed, backend.ErrTooLarge: toolspec.CodeTooLarge,
	} {
		if errors.Is(err, sentinel) {
			return string(name)
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// denied checks that every operation on the path has the one answer that is for paths outside.
func denied(t *testing.T, b *box, path, victim string) {
	t.Helper()
	for op, got := range verdicts(t, b, path, victim) {
		if got != string(toolspec.CodePermission) {
			t.Errorf("%s of %.80q: %q, want %s", op, path, got, toolspec.CodePermission)
		}
	}
}

// outside describes everything outside of the workspace that a test could have damaged.
func outside(t *testing.T, b *box) []string {
	t.Helper()
	return strings.Split(b.sh(t, `find / -xdev \( -path /usr -o -path /var/lib/dpkg -o -path /workspace -o -path /proc -o -path /sys \) -prune \
		-o -printf '%p %y %s %T@ %m %l\n' 2>/dev/null | grep -v '^/tmp ' | sort; sha256sum /etc/passwd`), "\n")
}

// untouched checks that nothing outside changed.
func untouched(t *testing.T, b *box, before []string) {
	t.Helper()
	if diff := cmp.Diff(before, outside(t, b)); diff != "" {
		t.Errorf("outside of the workspace (-before +after):\n%s", diff)
	}
}

func TestA1Traversal(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		before, dir := outside(t, b), b.dir(t)
		victim := dir + "/victim"
		b.ok(t, toolspec.ToolFSWrite, obj{"path": victim, "contents": "x"})
		for _, path := range []string{
			"../etc/passwd", "../../etc/passwd", dir + "/../../x", "/workspace/../etc", "/workspace/../etc/passwd",
			"./../etc/passwd", "/workspace/" + dir + "/../../etc/passwd", "..", "../", "../workspace-evil", "a/b/../../../x",
			"//workspace/../etc/passwd", "/workspace/./../../etc/passwd", dir + "/missing/../../../etc/passwd",
		} {
			denied(t, b, path, victim)
		}
		untouched(t, b, before)
		// What only looks like an escape is a name like any other, for every operation.
		for _, name := range []string{"%2e%2e", "%2e%2e%2fetc%2fpasswd", `..\..\etc\passwd`, "....", "..foo", "...", "~", "%00", "$HOME"} {
			path := dir + "/" + name
			b.ok(t, toolspec.ToolFSWrite, obj{"path": path, "contents": "inside"})
			if got := b.sh(t, "cd "+dir+" && cat -- '"+name+"'"); got != "inside" {
				t.Errorf("%q holds %q", name, got)
			}
			must(t, b.s.RenameFile(t.Context(), path, path+"2", false))
			must(t, b.s.RenameFile(t.Context(), path+"2", path, false))
			b.ok(t, toolspec.ToolFSDelete, obj{"path": path})
		}
		if got := b.sh(t, "ls -A "+dir); got != "victim\n" {
			t.Errorf("the directory holds %q", got)
		}
	})
}

func TestA2AbsolutePaths(t *testing.T) {
	t.Parallel()
	tmp, err := os.MkdirTemp("/tmp", "workcell-a2-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(tmp)) })
	host := filepath.Join(tmp, "canary")
	must(t, os.WriteFile(host, []byte("host canary"), 0o666))
	each(t, func(t *testing.T, b *box) {
		before, dir := outside(t, b), b.dir(t)
		for _, path := range []string{
			"/etc/passwd", "/etc", "/tmpevil", "/tmp/../etc/passwd", "/root/.ssh", "/proc/self/environ", "/proc/1/cmdline", "/sys/kernel",
			"/dev/null", "/.workcell", "/.workcell/workcell-guest", "/var/run/docker.sock", "//etc/passwd",
		} {
			denied(t, b, path, dir+"/victim")
		}
		untouched(t, b, before)
		// An absolute path below a root is inside for all, and the /tmp of the host is another one.
		for path, other := range map[string]string{"/workspace/" + dir + "/f": dir + "/f", host: host} {
			b.ok(t, toolspec.ToolFSWrite, obj{"path": path, "contents": "in"})
			if got := contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": other})); string(got) != "in" || b.sh(t, "cat "+path) != "in" {
				t.Errorf("read %q", got)
			}
			b.ok(t, toolspec.ToolFSDelete, obj{"path": path})
		}
	})
	if got, err := os.ReadFile(host); err != nil || string(got) != "host canary" {
		t.Errorf("the host's file: %q, %v", got, err)
	}
}

func TestA3SiblingPrefix(t *testing.T) {
	t.Parallel()
	b := newBox(t, rootBox())
	b.sh(t, "mkdir -p /workspace-evil /workspace2 && echo secret > /workspace-evil/f && echo secret > /workspace2/f")
	for _, path := range []string{"/workspace-evil", "/workspace-evil/f", "/workspace-evil/new", "/workspace2/f", "../workspace-evil/f", "/workspace-evil/../workspace-evil/f"} {
		denied(t, b, path, "victim")
		denied(t, w.user, path, "victim")
	}
	if got := b.sh(t, "cat /workspace-evil/f /workspace2/f; ls / | grep workspace; ls /workspace-evil"); got != "secret\nsecret\nworkspace\nworkspace-evil\nworkspace2\nf\n" {
		t.Errorf("outside: %q", got)
	}
}

// TestA4SymlinkFile reads and writes through links to files.
func TestA4SymlinkFile(t *testing.T) {
	t.Parallel()
	host := filepath.Join(t.TempDir(), "canary")
	must(t, os.WriteFile(host, []byte("host canary"), 0o666))
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		before := b.sh(t, "cat /etc/passwd | sha256sum")
		for i, target := range []string{"/etc/passwd", "../../etc/passwd", host, "../.." + host, "/proc/self/environ", "/dev/zero", "/tmp/out-" + dir} {
			link := fmt.Sprintf("%s/l%d", dir, i)
			b.sh(t, "ln -s '"+target+"' "+link)
			fails(t, "reading the link to "+target, b.call(t, toolspec.ToolFSRead, obj{"path": link}), toolspec.CodePermission)
			fails(t, "writing to the link to "+target, b.call(t, toolspec.ToolFSWrite, obj{"path": link, "contents": "evil"}), toolspec.CodeExists, toolspec.CodePermission)
			if info, err := b.s.StatFile(t.Context(), link); err != nil || info.Type != session.TypeSymlink {
				t.Errorf("the link to %s is %v, %v", target, info, err)
			}
			// Replacing the link is not following it.
			if out := b.call(t, toolspec.ToolFSWrite, obj{"path": link, "contents": "replaced", "overwrite": true}); code(out) == "" {
				if got := b.sh(t, "test -L "+link+" || cat "+link); got != "replaced" {
					t.Errorf("the link to %s became %q", target, got)
				}
			}
			b.ok(t, toolspec.ToolFSDelete, obj{"path": link})
		}
		if got := b.sh(t, "cat /etc/passwd | sha256sum; test ! -e /tmp/out-"+dir); got != before {
			t.Error("a write followed a link out of the workspace")
		}
		// Links that stay inside work as usual.
		b.ok(t, toolspec.ToolFSWrite, obj{"path": dir + "/real", "contents": "inside"})
		b.sh(t, "cd "+dir+" && ln -s real alias && ln -s $PWD/real absolute && ln -s $PWD current")
		for _, path := range []string{"/alias", "/absolute", "/current/real", "/current/absolute"} {
			if got := contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": dir + path})); string(got) != "inside" {
				t.Errorf("read %q", got)
			}
		}
	})
	if got, err := os.ReadFile(host); err != nil || string(got) != "host canary" {
		t.Errorf("the host's file: %q, %v", got, err)
	}
}

// TestA5SymlinkParent goes through links to directories.
func TestA5SymlinkParent(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		out := "/tmp/out-" + dir
		b.sh(t, "mkdir -p "+out+"/sub && echo canary > "+out+"/f && cd "+dir+" && echo v > victim && ln -s "+out+" abs && ln -s ../../tmp/out-"+dir+" rel && ln -s / slash")
		for _, link := range []string{"abs", "rel", "slash" + out} {
			for _, path := range []string{"f", "new", "sub/new", "new/deep/er", "sub"} {
				denied(t, b, dir+"/"+link+"/"+path, dir+"/victim")
			}
		}
		if code(b.call(t, toolspec.ToolFSList, obj{"path": dir + "/abs"})) == "" {
			t.Error("a listing followed a link out of the workspace")
		}
		if got := b.sh(t, "cd "+out+" && find . | sort && cat f"); got != ".\n./f\n./sub\ncanary\n" {
			t.Errorf("outside: %q", got)
		}
		// A listing names the links and does not go through them, a delete takes the links themselves.
		for _, e := range b.ok(t, toolspec.ToolFSList, obj{"path": dir, "recursive": true})["entries"].([]any) {
			if name := e.(obj)["path"].(string); strings.Count(name, "/") > 1 {
				t.Errorf("listed %s", name)
			}
		}
		b.ok(t, toolspec.ToolFSDelete, obj{"path": dir, "recursive": true})
		if got := b.sh(t, "cat "+out+"/f; ls /etc/passwd; rm -r "+out); got != "canary\n/etc/passwd\n" {
			t.Errorf("outside after the delete: %q", got)
		}
	})
}

func TestA8LinkLoops(t *testing.T) {
	t.Parallel()
	b := w.user
	dir := b.dir(t)
	b.sh(t, "cd "+dir+" && ln -s b a && ln -s a b && ln -s . self && echo x > l0 && for i in $(seq 1 60); do ln -s l$((i-1)) l$i; done")
	began := time.Now()
	for _, path := range []string{"a", "l60", strings.Repeat("self/", 60) + "l0", "a/x"} {
		fails(t, path, b.call(t, toolspec.ToolFSRead, obj{"path": dir + "/" + path}), toolspec.CodeInvalid, toolspec.CodePermission)
	}
	within(t, time.Second, began)
	if n := b.ok(t, toolspec.ToolFSList, obj{"path": dir, "recursive": true})["total"]; n != 64.0 {
		t.Errorf("%v entries listed, want 64", n)
	}
}

func TestA10RootIsKept(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]tools.Sandbox{"user": pythonBox(), "root": rootBox()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, cfg)
			b.sh(t, "mkdir -p a/b && echo kept > a/b/f")
			for _, path := range []string{".", "", "/", "/workspace", "/workspace/", "./", "a/..", "a/../.", "//workspace//", "a/b/../..", "/tmp", "/tmp/."} {
				for _, recursive := range []bool{false, true} {
					fails(t, "delete of "+path, b.call(t, toolspec.ToolFSDelete, obj{"path": path, "recursive": recursive}),
						toolspec.CodeInvalid, toolspec.CodePermission)
				}
				if path != "" {
					if err := b.s.RenameFile(t.Context(), path, "elsewhere", true); err == nil {
						t.Errorf("%q was renamed", path)
					}
					if err := b.s.RenameFile(t.Context(), "a", path, true); err == nil {
						t.Errorf("a took the place of %q", path)
					}
				}
			}
			if got := b.sh(t, "find . -type f | xargs cat; ls -A"); got != "kept\na\n" {
				t.Errorf("the workspace holds %q", got)
			}
		})
	}
}

// TestA11MagicLinks takes the ways through /proc, which lead to other roots and open descriptors.
func TestA11MagicLinks(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		var ways []string
		for _, base := range []string{"/proc/self", "/proc/1", "/proc/thread-self", "/proc/self/task/1"} {
			ways = append(ways, base+"/root", base+"/cwd", base+"/root/etc", base+"/cwd/..", base+"/fd/0", base+"/fd/3", base+"/root/../..")
		}
		for fd := range 10 {
			ways = append(ways, fmt.Sprintf("/dev/fd/%d", fd), fmt.Sprintf("/proc/self/fd/%d", fd), fmt.Sprintf("/proc/self/fd/%d/../../..", fd))
		}
		ways = append(ways, "/dev/stdin", "/proc/self/fd", "/proc", "/proc/self", "/proc/self/ns")
		b.sh(t, "cd "+dir+" && i=0 && for way in "+strings.Join(ways, " ")+"; do ln -s $way l$i; i=$((i+1)); done")
		for i, way := range ways {
			link := fmt.Sprintf("%s/l%d", dir, i)
			for _, path := range []string{way, way + "/etc/passwd", link, link + "/etc/passwd"} {
				fails(t, "reading "+path, b.call(t, toolspec.ToolFSRead, obj{"path": path}), toolspec.CodePermission)
			}
			fails(t, "listing "+link, b.call(t, toolspec.ToolFSList, obj{"path": link}), toolspec.CodePermission)
			fails(t, "writing below "+link, b.call(t, toolspec.ToolFSWrite, obj{"path": link + "/f", "contents": "x"}), toolspec.CodePermission)
			refusedDir(t, b, way)
			refusedDir(t, b, link)
		}
	})
}

// refusedDir checks that a command may not start in a directory.
func refusedDir(t *testing.T, b *box, cwd string) {
	t.Helper()
	if out := b.call(t, toolspec.ToolExec, obj{"cmd": []string{"pwd"}, "cwd": cwd}); code(out) != toolspec.CodeInvalid {
		t.Errorf("a command in %s: %v", cwd, out)
	}
	res, err := b.s.Stream(context.Background(), session.ExecRequest{Argv: []string{"pwd"}, Dir: cwd}, session.Streams{})
	var launch *session.LaunchError
	if !errors.As(err, &launch) || launch.Reason != session.LaunchBadDir {
		t.Errorf("streamed in %s: %+v, %v", cwd, res, err)
	}
}
