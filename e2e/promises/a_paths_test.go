//go:build linux

package promises

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
)

// verdicts performs all operations on a path and returns the class of each error. A file with the name victim is the
// other path of renames.
func verdicts(t *testing.T, b *testSandbox, path, victim string) map[string]string {
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

// class returns the class of an error, named as in the tools.
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

// outside describes everything outside of the workspace that a test could have damaged.
func outside(t *testing.T, b *testSandbox, out string) string {
	t.Helper()
	return b.sh(t, `find / -xdev \( -path /usr -o -path /var/lib/dpkg -o -path /workspace -o -path /proc -o -path /sys \) -prune \
		-o -printf '%p %y %s %T@ %m %l\n' 2>/dev/null | grep -v '^/tmp \|^/dev/shm ' | sort; sha256sum /etc/passwd; find `+out+` -type f | sort | xargs sha256sum`)
}

// TestA1Outside: no path of a file tool leads out of the workspace: not with "..", an absolute path, a sibling's name,
// a link, or /proc. Every operation must return the same error.
func TestA1Outside(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "workcell-a1-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	host := filepath.Join(dir, "canary")
	must(t, os.WriteFile(host, []byte("host canary"), 0o666))
	each(t, func(t *testing.T, b *testSandbox) {
		dir := b.dir(t)
		out := "/tmp/out-" + dir
		b.sh(t, "mkdir -p "+out+"/sub && echo canary > "+out+"/f && cd "+dir+" && echo v > victim && ln -s "+out+" abs && ln -s ../../tmp/out-"+dir+" rel && ln -s / slash"+
			" && mkdir /workspace-evil 2>/dev/null && echo secret > /workspace-evil/f; true") // only root can create a sibling
		before := outside(t, b, out)
		paths := []string{
			"../etc/passwd", dir + "/../../x", "/workspace/../etc/passwd", "..", "../", "a/b/../../../x", "//workspace/../etc/passwd", dir + "/missing/../../../etc/passwd",
			"/workspace-evil", "/workspace-evil/f", "/workspace-evil/new", "../workspace-evil/f",
			"/etc/passwd", "/etc", "/tmpevil", "/tmp/../etc/passwd", "/proc/self/environ", "/proc/1/root", "/proc/self/fd/0", "/sys/kernel", "/dev/null", "/.workcell/workcell-guest", "//etc/passwd",
		}
		for _, link := range []string{"abs", "rel", "slash" + out} {
			for _, path := range []string{"f", "new", "sub/new", "new/deep/er", "sub"} {
				paths = append(paths, dir+"/"+link+"/"+path)
			}
		}
		for _, path := range paths {
			for op, got := range verdicts(t, b, path, dir+"/victim") {
				if got != string(toolspec.CodePermission) {
					t.Errorf("%s of %.80q: %q, want %s", op, path, got, toolspec.CodePermission)
				}
			}
		}
		for i, target := range []string{
			"/etc/passwd", host, "../.." + host, out, "/dev/zero", "/proc/self/root", "/proc/1/cwd/..", "/proc/thread-self/root/etc", "/proc/self/fd/3", "/dev/fd/0", "/dev/stdin",
		} {
			link := fmt.Sprintf("%s/l%d", dir, i)
			b.sh(t, "ln -s '"+target+"' "+link)
			for _, path := range []string{link, link + "/etc/passwd"} {
				fails(t, "reading "+path, b.call(t, toolspec.ToolFSRead, obj{"path": path}), toolspec.CodePermission, toolspec.CodeInvalid)
			}
			fails(t, "listing "+link, b.call(t, toolspec.ToolFSList, obj{"path": link}), toolspec.CodePermission)
			fails(t, "writing to "+link, b.call(t, toolspec.ToolFSWrite, obj{"path": link, "contents": "evil"}), toolspec.CodeExists, toolspec.CodePermission)
			fails(t, "writing below "+link, b.call(t, toolspec.ToolFSWrite, obj{"path": link + "/f", "contents": "x"}), toolspec.CodePermission)
			if strings.HasPrefix(target, "/proc") {
				refusedDir(t, b, target)
				refusedDir(t, b, link)
			}
		}
		// A listing shows links and does not follow them. A delete removes the links themselves.
		for _, e := range b.ok(t, toolspec.ToolFSList, obj{"path": dir, "recursive": true})["entries"].([]any) {
			if name := e.(obj)["path"].(string); strings.Count(name, "/") > 1 {
				t.Errorf("listed %s", name)
			}
		}
		b.ok(t, toolspec.ToolFSDelete, obj{"path": dir, "recursive": true})
		if diff := cmp.Diff(before, outside(t, b, out)); diff != "" {
			t.Errorf("outside of the workspace (-before +after):\n%s", diff)
		}
		b.sh(t, "rm -rf /workspace-evil "+out)
		// An absolute path below an allowed root is accepted by all tools. The sandbox's /tmp differs from the host's /tmp.
		for path, other := range map[string]string{"/workspace/" + dir + "/f": dir + "/f", host: host} {
			b.ok(t, toolspec.ToolFSWrite, obj{"path": path, "contents": "in"})
			if got := contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": other})); string(got) != "in" || b.sh(t, "cat "+path) != "in" {
				t.Errorf("read %q", got)
			}
			b.ok(t, toolspec.ToolFSDelete, obj{"path": path})
		}
	})
	t.Cleanup(func() { // after the parallel tests, and before the file is removed
		if got, err := os.ReadFile(host); err != nil || string(got) != "host canary" {
			t.Errorf("the host's file: %q, %v", got, err)
		}
	})
}

// refusedDir verifies that a command cannot start in a directory.
func refusedDir(t *testing.T, b *testSandbox, cwd string) {
	t.Helper()
	if out := b.call(t, toolspec.ToolExec, obj{"cmd": []string{"pwd"}, "cwd": cwd}); code(out) != toolspec.CodeInvalid {
		t.Errorf("a command in %s: %v", cwd, out)
	}
	res, err := b.s.Stream(context.Background(), sandbox.ExecRequest{Argv: []string{"pwd"}, Dir: cwd}, sandbox.Streams{})
	if launch, ok := errors.AsType[*sandbox.LaunchError](err); !ok || launch.Reason != sandbox.LaunchBadDir {
		t.Errorf("streamed in %s: %+v, %v", cwd, res, err)
	}
}

// TestA6SwapRace reads and writes thousands of times through a directory, a file, and an absolute link to a directory
// that constantly change to links out of the workspace and back.
func TestA6SwapRace(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *testSandbox) {
		const calls, workers = 2_000, 4
		dir := b.dir(t)
		out := "/tmp/out-" + dir
		b.sh(t, "mkdir -p "+out+" && echo outside > "+out+"/f && echo outside > "+out+"/only-outside && cd "+dir+
			" && mkdir d e && echo inside | tee d/f e/f > f && ln -s "+out+" dl && ln -s "+out+"/f fl && ln -s $PWD/e a && ln -s "+out+" al")
		b.background(t, "swap.py", dir+"/d", dir+"/dl", dir+"/f", dir+"/fl", dir+"/a", dir+"/al")
		var wg sync.WaitGroup
		var done, refused atomic.Int64
		began := time.Now()
		for worker := range workers {
			wg.Go(func() {
				// Continue if the calls have not met both states yet.
				for i := worker; i < calls || done.Load() == 0 || refused.Load() == 0; i += workers {
					if t.Failed() || time.Since(began) > 2*patience {
						return
					}
					if swapCall(t, b, dir, i) {
						done.Add(1)
					} else {
						refused.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if done.Load() == 0 || refused.Load() == 0 {
			t.Errorf("the calls never met both the directory and the link: %d did something, %d were refused", done.Load(), refused.Load())
		}
		if got := b.sh(t, "cd "+out+" && ls -A && cat f only-outside && rm -r "+out); got != "f\nonly-outside\noutside\noutside\n" {
			t.Errorf("outside: %q", got)
		}
	})
}

// swapCall makes the i-th call and reports whether it succeeded. Every tenth call uses the tools.
func swapCall(t *testing.T, b *testSandbox, dir string, i int) bool {
	tool := i%10 < 2
	var out obj
	var data []byte
	var err error
	if i%4 < 2 {
		path := dir + []string{"/d/f", "/f", "/a/f"}[i%3]
		if tool {
			if out = b.call(t, toolspec.ToolFSRead, obj{"path": path}); code(out) == "" {
				data = contents(t, out)
			}
		} else {
			data, _, err = b.s.ReadFileBytes(t.Context(), path, sandbox.ReadFileOptions{})
		}
		if code(out) == "" && err == nil && string(data) != "inside\n" {
			t.Errorf("%s: read %q", path, data)
		}
	} else { // not to f itself, because overwriting it replaces the link, which would end the race
		path := fmt.Sprintf("%s/%s/%s-%d", dir, []string{"d", "a"}[i/4%2], []string{"new", "deep/g"}[i%2], i%64)
		if tool {
			out = b.call(t, toolspec.ToolFSWrite, obj{"path": path, "contents": "evil", "overwrite": true})
		} else {
			_, err = b.s.WriteFile(t.Context(), path, strings.NewReader("evil"), sandbox.WriteFileOptions{Overwrite: true})
		}
	}
	switch got := string(code(out)) + class(err); toolspec.Code(got) {
	case "":
		return true
	case toolspec.CodePermission, toolspec.CodeNotFound, toolspec.CodeInvalid, toolspec.CodeExists:
	default:
		t.Errorf("call %d: %s", i, got)
	}
	return false
}

// TestA7DeleteRace deletes trees while their directories change to links to files that must stay.
func TestA7DeleteRace(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *testSandbox) {
		dir := b.dir(t)
		out := "/tmp/out-" + dir
		b.sh(t, "mkdir -p "+out+"/a/b && echo canary > "+out+"/f && echo canary > "+out+"/a/b/f")
		b.background(t, "swap.py", dir+"/tree/d", dir+"/tree/dl", dir+"/tree/d/e", dir+"/tree/el", dir+"/tree", dir+"/treel")
		gone := 0
		for i := range 60 {
			// Create the tree elsewhere and rename it, because the commands themselves would follow the links. Create
			// it again in each attempt, because rm -f skips a directory that has just become a link. Then only the
			// first mv may succeed.
			b.sh(t, "cd "+dir+" && until rm -rf tree treel made link && mkdir -p made/d/e && touch made/d/1 made/d/2 made/d/e/3 && ln -s "+out+
				" made/dl && ln -s "+out+"/a made/el && ln -s "+out+" link && mv -T made tree && mv -T link treel; do :; done 2>/dev/null")
			for _, path := range []string{"/tree/d", "/tree", "/treel"} {
				switch out := b.call(t, toolspec.ToolFSDelete, obj{"path": dir + path, "recursive": true}); code(out) {
				case "":
					gone++
				case toolspec.CodeNotFound, toolspec.CodePermission, toolspec.CodeInvalid, toolspec.CodeExists:
				default:
					t.Errorf("delete %d of %s: %v", i, path, out["error"])
				}
			}
		}
		if gone == 0 {
			t.Error("nothing was ever deleted")
		}
		if got := b.sh(t, "cd "+out+" && find . | sort && cat f a/b/f && rm -r "+out); got != ".\n./a\n./a/b\n./a/b/f\n./f\ncanary\ncanary\n" {
			t.Errorf("outside: %q", got)
		}
	})
}
