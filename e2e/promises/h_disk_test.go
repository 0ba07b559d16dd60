package promises

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// workspaceMB is the limit of these tests' workspaces.
const workspaceMB = 4

// TestH3DiskFull fills the workspace from commands and through the file tools, with one file, many large ones and their
// output. Both are told so, nothing that was there suffers, others work on, and deleting makes room.
func TestH3DiskFull(t *testing.T) {
	t.Parallel()
	eachLimited(t, frontmatter.Limits{WorkspaceMB: workspaceMB}, func(t *testing.T, b *sandbox) {
		b.ok(t, tools.ToolFSWrite, obj{"path": "kept", "contents": "kept"})
		b.ok(t, tools.ToolFSWrite, obj{"path": "here/old", "contents": "old"})
		watched := b.s.Info().Workspace == backend.WorkspaceWatched
		out := refusedFor(t, b, "exec head -c 16M /dev/zero > one")
		if text := out["stderr"].(string); !watched && !strings.Contains(text, "No space left") {
			t.Errorf("one file: %v", out)
		}
		b.sh(t, "rm one")
		// The pace leaves the watch half a minute until far too much is written.
		out = refusedFor(t, b, "i=0; while :; do head -c 131072 /dev/zero > here/$i || exit 3; i=$((i+1)); sleep 0.05; done")
		if want := map[bool]string{true: "quota_killed", false: "completed"}[watched]; out["status"] != want {
			t.Errorf("many files: %v, want %s", out, want)
		}
		if text := out["stderr"].(string); watched && !strings.Contains(text, fmt.Sprint(workspaceMB, " MiB")) {
			t.Errorf("the limit is not named: %q", text)
		}
		if n, err := strconv.Atoi(strings.Fields(b.sh(t, "du -sm ."))[0]); err != nil || n > 64 {
			t.Errorf("%d MiB were written, %v", n, err)
		}
		whileFull(t, b)
		if out := b.ok(t, tools.ToolFSDelete, obj{"path": "here", "recursive": true}); out["deleted"].(float64) < 20 {
			t.Errorf("making room: %v", out)
		}
		b.ok(t, tools.ToolFSWrite, obj{"path": "here/new", "contents": strings.Repeat("x", 192<<10)})
		if out := b.ok(t, tools.ToolExec, obj{"command": "head -c 1M /dev/zero > one && cat kept"}); out["stdout"] != "kept" || out["quota_exceeded"] == true {
			t.Errorf("afterwards: %v", out)
		}
	})
}

// TestH3Root fills the root outside of the workspace, where all of it can be written to: with one file, with many, and
// with copies of the image's own. It is told what happened, others work on, and deleting makes room.
func TestH3Root(t *testing.T) {
	t.Parallel()
	cfg := rootSandbox()
	cfg.Limits = frontmatter.Limits{WorkspaceMB: workspaceMB, MemoryMB: 64}
	b := newSandbox(t, cfg)
	limits := b.ok(t, tools.ToolOpen, obj{})["limits"].(obj)
	watched := limits["root_enforcement"] == "watched"
	if size := limits["root_mb"]; watched && size != float64(workspaceMB) || size == nil {
		t.Errorf("the limits are said to be %v", limits)
	}
	b.sh(t, "mkdir /var/fill")
	out := b.ok(t, tools.ToolExec, obj{"cmd": []string{"dd", "if=/dev/zero", "of=/var/fill/one", "bs=1M", "count=64"}})
	if text := out["stderr"].(string); out["exit_code"] == 0.0 || !watched && !strings.Contains(text, "No space left") ||
		watched && (out["quota_exceeded"] != true || !strings.Contains(text, "outside of /workspace")) {
		t.Errorf("one file: %v", out)
	}
	w.user.alive(t)
	b.sh(t, "rm /var/fill/one")
	if watched {
		fillWatchedRoot(t, b)
		b.sh(t, "rm -r /var/fill")
	}
	if out := b.ok(t, tools.ToolExec, obj{"command": "head -c 1M /dev/zero > /var/one && rm /var/one && echo written"}); out["stdout"] != "written\n" || out["quota_exceeded"] == true {
		t.Errorf("with room again: %v", out)
	}
	if !watched {
		return
	}
	out = b.ok(t, tools.ToolExec, obj{"command": "find /usr/lib/python3* -name '*.py' -exec chmod a+x {} +", "yield_ms": 600_000})
	if out["quota_exceeded"] != true {
		t.Errorf("copies of the image's files: %v", out)
	}
}

// fillWatchedRoot writes many files, until the watch ends the command. Afterwards nothing can be written.
func fillWatchedRoot(t *testing.T, b *sandbox) {
	t.Helper()
	out := refusedFor(t, b, "i=0; while :; do head -c 131072 /dev/zero > /var/fill/$i || exit 3; i=$((i+1)); sleep 0.05; done")
	if text := out["stderr"].(string); out["status"] != "quota_killed" || !strings.Contains(text, fmt.Sprintf("outside of /workspace is over its limit of %d MiB", workspaceMB)) {
		t.Errorf("many files: %v", out)
	}
	if n, err := strconv.Atoi(strings.Fields(b.sh(t, "du -sm /var/fill"))[0]); err != nil || n < workspaceMB || n > 64 {
		t.Errorf("%d MiB were written, %v", n, err)
	}
	for _, at := range []string{"/var/fill/more", "/workspace/more"} {
		if out := refusedFor(t, b, "echo more > "+at); out["status"] != "completed" {
			t.Errorf("one more at %s: %v", at, out)
		}
	}
	w.root.alive(t)
}

// refusedFor runs a command that must fail because the workspace is full, and must be told so.
func refusedFor(t *testing.T, b *sandbox, line string) obj {
	t.Helper()
	out := b.ok(t, tools.ToolExec, obj{"command": line, "yield_ms": 600_000})
	if out["exit_code"] == 0.0 || out["quota_exceeded"] != true {
		t.Errorf("%s: %v", line, out)
	}
	return out
}

// whileFull checks what holds in a sandbox whose workspace is full.
func whileFull(t *testing.T, b *sandbox) {
	t.Helper()
	big := strings.Repeat("x", 192<<10)
	before := b.sh(t, "ls -A . here")
	for what, in := range map[string]obj{
		"a new file":       {"path": "here/new", "contents": big},
		"over another one": {"path": "here/old", "contents": big, "overwrite": true},
		"in a new place":   {"path": "here/new", "contents_b64": b64([]byte(big))},
	} {
		out := b.call(t, tools.ToolFSWrite, in)
		if fails(t, what, out, tools.CodeQuota); !strings.Contains(fmt.Sprint(out["error"]), "Delete files") {
			t.Errorf("%s: no way out is named: %v", what, out["error"])
		}
	}
	if after := b.sh(t, "ls -A . here"); after != before {
		t.Errorf("there was %q and is %q", before, after)
	}
	if got := contents(t, b.ok(t, tools.ToolFSRead, obj{"path": "here/old"})); string(got) != "old" {
		t.Errorf("the old file holds %.100q", got)
	}
	b.ok(t, tools.ToolFSList, obj{"recursive": true})
	// Output that has no room comes cut, and ends nothing.
	if out := b.ok(t, tools.ToolExec, obj{"command": "seq 1 300000; cat kept"}); out["exit_code"] != 0.0 || !strings.HasSuffix(out["stdout"].(string), "\nkept") {
		t.Errorf("output: %v, %v", out["status"], out["exit_code"])
	}
	w.root.alive(t)
}

// TestH3Places: nothing can be written to but what has a size of its own, also by a user to whom directories belong that
// are closed.
func TestH3Places(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]string{"user": "", "root": "0:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := pythonSandbox()
			cfg.User, cfg.Limits = user, frontmatter.Limits{WorkspaceMB: workspaceMB, MemoryMB: 256}
			b := newSandbox(t, cfg)
			seen := map[string]string{} // what was mounted last over a place
			for line := range strings.Lines(b.sh(t, "cat /proc/self/mountinfo")) {
				seen[strings.Fields(line)[4]] = line
			}
			for at, line := range seen {
				mount, source, _ := strings.Cut(line, " - ")
				options, kind := strings.Split(strings.Fields(mount)[5], ","), strings.Fields(source)[0]
				holdsNothing := slices.Contains([]string{"proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"}, kind)
				switch device := b.sh(t, "test -c "+at+" && echo device; true") != ""; {
				case slices.Contains(options, "ro"), holdsNothing, device, at == "/workspace":
				case kind != "tmpfs":
					t.Errorf("%s can be written, and has no size: %s", at, line)
				default:
					var blocks, size int64
					_, err := fmt.Sscan(b.sh(t, "stat -f -c '%b %S' "+at), &blocks, &size)
					if must(t, err); blocks == 0 || blocks*size > 256<<20 {
						t.Errorf("%s has room for %d bytes", at, blocks*size)
					}
				}
			}
			for _, dir := range []string{"/", "/usr", "/etc", "/var/tmp", "/run", "/.workcell", "/proc", "/sys", "/sys/fs/cgroup"} {
				if out := b.ok(t, tools.ToolExec, obj{"command": "chmod u+w " + dir + "; echo x > " + dir + "/fill"}); out["exit_code"] == 0.0 {
					t.Errorf("%s can be written", dir)
				}
			}
		})
	}
}

// TestH4ManyFiles makes more files than there may be. They can be deleted.
func TestH4ManyFiles(t *testing.T) {
	t.Parallel()
	const many = "import os, time\nos.mkdir('d')\nfor i in range(20000):\n  with open(f'd/{i}', 'w') as f: f.write('x')\ntime.sleep(600)"
	eachLimited(t, frontmatter.Limits{WorkspaceMB: workspaceMB}, func(t *testing.T, b *sandbox) {
		out := b.ok(t, tools.ToolExec, obj{"cmd": []string{"python3", "-c", many}, "yield_ms": 600_000, "timeout_seconds": 600})
		if out["exit_code"] == 0.0 || out["quota_exceeded"] != true {
			t.Errorf("20,000 files: %v", out)
		}
		fails(t, "one more", b.call(t, tools.ToolFSWrite, obj{"path": "d/more", "contents": "x"}), tools.CodeQuota)
		b.ok(t, tools.ToolFSDelete, obj{"path": "d", "recursive": true})
		b.ok(t, tools.ToolFSWrite, obj{"path": "d/more", "contents": "x"})
	})
}

// TestH3FileSize: no file of a command gets larger than it may, which the command is told.
func TestH3FileSize(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	req := request()
	req.Limits.FileBytes = 1 << 20
	s, _, err := m.Open(t.Context(), session.UserKey("short-files"), req)
	must(t, err)
	for _, dir := range []string{"/workspace", "/tmp", "/dev/shm"} {
		res, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"dd", "if=/dev/zero", "of=" + dir + "/f", "bs=1M", "count=2"}})
		if err != nil || res.Signal != "SIGXFSZ" && res.ExitCode == 0 {
			t.Errorf("in %s: %+v, %v", dir, res.ExecStatus, err)
		}
		check(t, s, "stat -c %s "+dir+"/f; rm "+dir+"/f", "1048576\n")
	}
}
