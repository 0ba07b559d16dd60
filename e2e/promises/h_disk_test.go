package promises

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
)

// workspaceMB is the limit of these tests' workspaces.
const workspaceMB = 4

// TestH3DiskFull fills the workspace from commands and through the file tools, with one file, many large ones and their
// output. It is told what happened, nothing that was there suffers, others work on, and deleting makes room.
func TestH3DiskFull(t *testing.T) {
	t.Parallel()
	eachLimited(t, frontmatter.Limits{WorkspaceMB: workspaceMB}, func(t *testing.T, b *box) {
		b.ok(t, toolspec.ToolFSWrite, obj{"path": "kept", "contents": "kept"})
		b.ok(t, toolspec.ToolFSWrite, obj{"path": "here/old", "contents": "old"})
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
		if out := b.ok(t, toolspec.ToolFSDelete, obj{"path": "here", "recursive": true}); out["deleted"].(float64) < 20 {
			t.Errorf("making room: %v", out)
		}
		b.ok(t, toolspec.ToolFSWrite, obj{"path": "here/new", "contents": strings.Repeat("x", 192<<10)})
		if out := b.ok(t, toolspec.ToolExec, obj{"command": "head -c 1M /dev/zero > one && cat kept"}); out["stdout"] != "kept" || out["quota_exceeded"] == true {
			t.Errorf("afterwards: %v", out)
		}
	})
}

// TestH3Root fills the root outside of the workspace, where all of it can be written to: with one file, with many, and
// with copies of the image's own. It is told what happened, others work on, and deleting makes room.
func TestH3Root(t *testing.T) {
	t.Parallel()
	cfg := rootBox()
	cfg.Limits = frontmatter.Limits{WorkspaceMB: workspaceMB, MemoryMB: 64}
	b := newBox(t, cfg)
	limits := b.ok(t, toolspec.ToolOpen, obj{})["limits"].(obj)
	watched := limits["root_enforcement"] == "watched"
	if size := limits["root_mb"]; watched && size != float64(workspaceMB) || size == nil {
		t.Errorf("the limits are said to be %v", limits)
	}
	b.sh(t, "mkdir /var/fill")
	out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"dd", "if=/dev/zero", "of=/var/fill/one", "bs=1M", "count=64"}})
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
	if out := b.ok(t, toolspec.ToolExec, obj{"command": "head -c 1M /dev/zero > /var/one && rm /var/one && echo written"}); out["stdout"] != "written\n" || out["quota_exceeded"] == true {
		t.Errorf("with room again: %v", out)
	}
	if !watched {
		return
	}
	out = b.ok(t, toolspec.ToolExec, obj{"command": "find /usr/lib/python3* -name '*.py' -exec chmod a+x {} +", "yield_ms": 600_000})
	if out["quota_exceeded"] != true {
		t.Errorf("copies of the image's files: %v", out)
	}
}

// fillWatchedRoot writes many files, until the watch ends the command. Afterwards nothing can be written.
func fillWatchedRoot(t *testing.T, b *box) {
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

// refusedFor runs what must not come through because the workspace is full, and must be told so.
func refusedFor(t *testing.T, b *box, line string) obj {
	t.Helper()
	out := b.ok(t, toolspec.ToolExec, obj{"command": line, "yield_ms": 600_000})
	if out["exit_code"] == 0.0 || out["quota_exceeded"] != true {
		t.Errorf("%s: %v", line, out)
	}
	return out
}

// whileFull is what a sandbox owes whose workspace is full.
func whileFull(t *testing.T, b *box) {
	t.Helper()
	big := strings.Repeat("x", 192<<10)
	before := b.sh(t, "ls -A . here")
	for what, in := range map[string]obj{
		"a new file":       {"path": "here/new", "contents": big},
		"over another one": {"path": "here/old", "contents": big, "overwrite": true},
		"in a new place":   {"path": "here/new", "contents_b64": b64([]byte(big))},
	} {
		out := b.call(t, toolspec.ToolFSWrite, in)
		if fails(t, what, out, toolspec.CodeQuota); !strings.Contains(fmt.Sprint(out["error"]), "Delete files") {
			t.Errorf("%s: no way out is named: %v", what, out["error"])
		}
	}
	if after := b.sh(t, "ls -A . here"); after != before {
		t.Errorf("there was %q and is %q", before, after)
	}
	if got := contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": "here/old"})); string(got) != "old" {
		t.Errorf("the old file holds %.100q", got)
	}
	b.ok(t, toolspec.ToolFSList, obj{"recursive": true})
	// Output that has no room comes cut, and ends nothing.
	if out := b.ok(t, toolspec.ToolExec, obj{"command": "seq 1 300000; cat kept"}); out["exit_code"] != 0.0 || !strings.HasSuffix(out["stdout"].(string), "\nkept") {
		t.Errorf("output: %v, %v", out["status"], out["exit_code"])
	}
	w.root.alive(t)
}

// TestH3State: while one sandbox has no room, sandboxes are made and removed, which their records need room for.
func TestH3State(t *testing.T) {
	t.Parallel()
	store, err := sqlitestore.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"))
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	m := newManager(t, w.driver, session.Options{Store: store})
	req := request()
	req.Limits.WorkspaceBytes = workspaceMB << 20
	full, _, err := m.Open(t.Context(), session.UserKey("full"), req)
	must(t, err)
	res, err := full.Exec(t.Context(), session.ExecRequest{Command: "exec head -c 16M /dev/zero > one"})
	if err != nil || !res.QuotaExceeded {
		t.Fatalf("filling it: %+v, %v", res.ExecStatus, err)
	}
	other, _, err := m.Open(t.Context(), session.UserKey("other"), req)
	must(t, err)
	check(t, other, "head -c 1M /dev/zero > one && stat -c %s one", "1048576\n")
	must(t, m.CloseSession(t.Context(), full.Key(), session.CloseOptions{}))
	open, err := store.List(t.Context(), session.RecordReady)
	if err != nil || len(open) != 1 || open[0].ID != other.ID() {
		t.Errorf("the records: %+v, %v", open, err)
	}
}

// TestH3Places: nothing can be written to but what has a size of its own, also by a user to whom directories belong that
// are closed.
func TestH3Places(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]string{"user": "", "root": "0:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := pythonBox()
			cfg.User, cfg.Limits = user, frontmatter.Limits{WorkspaceMB: workspaceMB, MemoryMB: 256}
			b := newBox(t, cfg)
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
				if out := b.ok(t, toolspec.ToolExec, obj{"command": "chmod u+w " + dir + "; echo x > " + dir + "/fill"}); out["exit_code"] == 0.0 {
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
	eachLimited(t, frontmatter.Limits{WorkspaceMB: workspaceMB}, func(t *testing.T, b *box) {
		out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"python3", "-c", many}, "yield_ms": 600_000, "timeout_seconds": 600})
		if out["exit_code"] == 0.0 || out["quota_exceeded"] != true {
			t.Errorf("20,000 files: %v", out)
		}
		fails(t, "one more", b.call(t, toolspec.ToolFSWrite, obj{"path": "d/more", "contents": "x"}), toolspec.CodeQuota)
		b.ok(t, toolspec.ToolFSDelete, obj{"path": "d", "recursive": true})
		b.ok(t, toolspec.ToolFSWrite, obj{"path": "d/more", "contents": "x"})
	})
}

// TestC3Whole breaks writes off, wherever they are: there is the old contents or the new, nothing beside it, and no room
// stays taken.
func TestC3Whole(t *testing.T) {
	t.Parallel()
	eachLimited(t, frontmatter.Limits{WorkspaceMB: workspaceMB}, func(t *testing.T, b *box) {
		const size = 256 << 10
		r := rand.New(rand.NewPCG(3, 3))
		versions := [][]byte{noise(0, size)}
		write := func(ctx context.Context, data []byte, hook func(), at int) error {
			body := io.MultiReader(bytes.NewReader(data[:at]), hookReader(hook), bytes.NewReader(data[at:]))
			_, err := b.s.WriteFile(ctx, "f", body, session.WriteFileOptions{Overwrite: true, Size: size})
			return err
		}
		must(t, write(t.Context(), versions[0], func() {}, 0))
		for i := 1; i <= 18; i++ {
			data := noise(uint64(i), size)
			versions = append(versions, data)
			ctx, cancel := context.WithCancel(t.Context())
			at, hook := r.IntN(size), cancel
			if i%3 == 0 { // about when it takes its place
				at, hook = size, func() { go cancel() }
			}
			if err := write(ctx, data, hook, at); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatalf("write %d: %v, want context.Canceled", i, err)
			}
			cancel()
			got, _, err := b.s.ReadFileBytes(t.Context(), "f", session.ReadFileOptions{})
			if must(t, err); !slices.ContainsFunc(versions, func(v []byte) bool { return bytes.Equal(v, got) }) {
				t.Fatalf("after write %d: %d bytes that are no version", i, len(got))
			}
		}
		eventually(t, "nothing but the file is there", func() bool { return b.sh(t, "ls -A") == "f\n" })
		eventually(t, "there is room again", func() bool {
			_, err := b.s.WriteFile(t.Context(), "g", bytes.NewReader(make([]byte, 3<<20)), session.WriteFileOptions{Overwrite: true})
			if err != nil && !errors.Is(err, backend.ErrQuota) {
				t.Fatal(err)
			}
			return err == nil
		})
	})
}

// hookReader gives nothing, and calls a function.
type hookReader func()

func (f hookReader) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
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
