package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func snapshotChecks(h Harness) []check {
	if h.Cluster {
		return []check{{"unsupported", (*suite).snapshotUnsupported}}
	}
	all := []check{
		{"rollback of a full one", (*suite).snapshotFull}, {"commands", (*suite).snapshotCommands},
		{"survivors", (*suite).snapshotSurvivors}, {"links", (*suite).snapshotLinks}, {"refused", (*suite).snapshotRefused},
	}
	for name, test := range map[string]func(*suite, *testing.T, backend.Limits){
		"rollback": (*suite).snapshotRollback, "fork": (*suite).snapshotFork, "copied": (*suite).snapshotCopied,
		"mapped": (*suite).snapshotMapped, "series": (*suite).snapshotSeries, "killed": (*suite).snapshotKilled,
		"fork killed": (*suite).forkKilled,
	} {
		all = append(all, check{name, func(s *suite, t *testing.T) { test(s, t, backend.Limits{}) }},
			check{name + " with limit", func(s *suite, t *testing.T) { test(s, t, backend.Limits{WorkspaceBytes: 32 << 20}) }})
	}
	return all
}

// snapshotUnsupported verifies that a driver without snapshots returns an error for every snapshot call, and the calls
// change nothing.
func (s *suite) snapshotUnsupported(t *testing.T) {
	info := s.create(t, s.spec())
	_, made := s.b.Snapshot(t.Context(), info.ID, "one")
	_, _, listed := s.b.Snapshots(t.Context(), info.ID)
	spec := s.spec()
	spec.Fork = &backend.ForkOf{SessionID: info.SessionID, Snapshot: "one"}
	_, forked := s.b.Create(t.Context(), spec)
	for what, err := range map[string]error{
		"Snapshot": made, "Snapshots": listed, "Create of a fork": forked,
		"CopySnapshot":   s.b.CopySnapshot(t.Context(), info.ID, *spec.Fork),
		"RemoveSnapshot": s.b.RemoveSnapshot(t.Context(), info.ID, "one"),
		"Rollback":       s.b.Rollback(t.Context(), info.ID, "one"),
	} {
		Fails(t, what, err, backend.ErrUnsupported)
	}
	Sh(t, s.dial(t, info.ID), "echo continues > f")
}

// fillScript creates files of each type allowed in a workspace.
const fillScript = `mkdir -p d/deep empty; for i in 0 1 2 3 4 5 6 7 8 9; do echo $i > d/f$i; done; echo run > d/deep/x; chmod 4750 d/deep/x
ln d/f1 hard; ln -s d/f2 soft; ln -s /nowhere dangling; mkfifo pipe; truncate -s 3M sparse; echo end >> sparse; chmod 700 empty
mkdir ro none shut; echo ro > ro/f; chmod 444 ro/f; ln -s f ro/l; ln ro/f ro/h; chmod 555 ro; echo wo > wo; chmod 200 wo; echo in > none/f; chmod 0 none; chmod 300 shut
touch -d '2001-02-03 04:05:06.789' d/f3; touch -d '2002-01-01' d; printf 'a b' > 'a name
of two lines'; head -c 3000000 /dev/urandom > random`

// breakScript removes the owner's permissions from files and from the workspace.
const breakScript = `chmod 755 ro; rm ro/f; echo x > ro/n; chmod 444 ro/n; chmod 0 ro; chmod 700 none; rm none/f; chmod 0 none; chmod 600 wo; echo x > wo; chmod 400 wo; chmod 500 .`

// describeScript prints all attributes preserved by a snapshot, once two passes have the same result. A single pass may
// see wrong modes: while the guest agent measures a workspace, it makes closed directories accessible for a moment.
const describeScript = `look() {
	find . -mindepth 1 -printf '%p %y %m %U:%G %s %l %n ' -type f -exec md5sum {} \; -o -printf '\n' | LC_ALL=C sort
	find . -mindepth 1 -not -type d -printf '%p %T@\n' | LC_ALL=C sort; stat -c '%a %u:%g' .; test d/f1 -ef hard && echo linked; du -k sparse
}
a=$(look); while b=$(look); test "$a" != "$b"; do a=$b; done; printf '%s\n' "$a"`

func (s *suite) snapshotRollback(t *testing.T, limits backend.Limits) {
	info, conn := s.limited(t, s.h.Debian, limits)
	Sh(t, conn, fillScript)
	before := Sh(t, conn, describeScript)
	time.Sleep(100 * time.Millisecond) // recent changes are always copied, and this test needs unchanged files
	snap, err := s.b.Snapshot(t.Context(), info.ID, "one")
	if err != nil || snap.Name != "one" || snap.Mechanism == "" {
		t.Fatalf("Snapshot: %+v, %v", snap, err)
	}
	change := `rm -r d/deep hard soft; echo changed > d/f4; echo more > new; mkdir -p n/e/w; chmod 755 empty; rmdir empty; echo file > empty
rm sparse; mkdir sparse; touch sparse/in; mv d/f5 d/f6; dd if=/dev/zero of=random bs=1 count=1 seek=100 conv=notrunc 2>/dev/null
touch -r d/f3 random; mv 'a name
of two lines' moved
` + breakScript
	for range 2 {
		Sh(t, conn, change)
		if Sh(t, conn, describeScript) == before {
			t.Fatal("nothing changed")
		}
		must(t, s.b.Rollback(t.Context(), info.ID, "one"))
		if after := Sh(t, conn, describeScript); after != before {
			t.Errorf("after the rollback:\n%s\nbefore:\n%s", after, before)
		}
	}
	Sh(t, conn, "echo two > d/f0")
	must(t, second(s.b.Snapshot(t.Context(), info.ID, "two")))
	must(t, s.b.Rollback(t.Context(), info.ID, "one"))
	must(t, s.b.RemoveSnapshot(t.Context(), info.ID, "one"))
	must(t, s.b.RemoveSnapshot(t.Context(), info.ID, "one"))
	must(t, s.b.Rollback(t.Context(), info.ID, "two"))
	if got := Sh(t, conn, "cat d/f0; ls -A"); !strings.HasPrefix(got, "two\n") || strings.Contains(got, ".workcell") {
		t.Errorf("the second: %q", got)
	}
	list, m, err := s.b.Snapshots(t.Context(), info.ID)
	if err != nil || len(list) != 1 || list[0].Name != "two" || m != list[0].Mechanism {
		t.Errorf("Snapshots: %+v, %v, %v", list, m, err)
	}
	must(t, s.b.Stop(t.Context(), info.ID))
	must(t, s.b.Start(t.Context(), info.ID))
	Prints(t, s.dial(t, info.ID), "cat d/f0", "two\n")
}

// snapshotFull verifies a rollback in a full workspace, which has no space for the old files until the new files are
// removed.
func (s *suite) snapshotFull(t *testing.T) {
	info, conn := s.limited(t, s.h.Debian, backend.Limits{WorkspaceBytes: 32 << 20})
	Sh(t, conn, "mkdir -p z/deep; head -c 20000000 /dev/zero > a; echo same > z/same; md5sum a > sum")
	must(t, second(s.b.Snapshot(t.Context(), info.ID, "one")))
	Sh(t, conn, ": > a; head -c 20000000 /dev/zero > z/deep/filler; ln -s x z/link")
	must(t, s.b.Rollback(t.Context(), info.ID, "one"))
	Prints(t, conn, "md5sum -c sum; cat z/same; find z | sort", "a: OK\nsame\nz\nz/deep\nz/same\n")
}

// snapshotFork verifies that forks of a snapshot are independent of the origin and of each other.
func (s *suite) snapshotFork(t *testing.T, limits backend.Limits) {
	info, conn := s.limited(t, s.h.Debian, limits)
	Sh(t, conn, fillScript)
	before := Sh(t, conn, describeScript)
	must(t, second(s.b.Snapshot(t.Context(), info.ID, "base")))
	Sh(t, conn, "echo origin > d/f0; rm random")
	var forks []*client.Conn
	for i := range 3 {
		spec := s.spec()
		spec.Limits, spec.Fork = limits, &backend.ForkOf{SessionID: info.SessionID, Snapshot: "base"}
		fork := s.create(t, spec)
		conn := s.dial(t, fork.ID)
		if got := Sh(t, conn, describeScript); got != before {
			t.Errorf("fork:\n%s\norigin:\n%s", got, before)
		}
		Sh(t, conn, fmt.Sprintf("echo %d > d/f0; echo %d > own; rm -r d/deep", i, i))
		forks = append(forks, conn)
		if list, _, err := s.b.Snapshots(t.Context(), fork.ID); err != nil || len(list) != 0 {
			t.Errorf("a fork has snapshots: %+v, %v", list, err)
		}
	}
	for i, conn := range forks {
		if got := Sh(t, conn, "cat d/f0 own"); got != fmt.Sprintf("%d\n%d\n", i, i) {
			t.Errorf("fork %d: %q", i, got)
		}
	}
	must(t, s.b.Rollback(t.Context(), info.ID, "base"))
	if after := Sh(t, conn, describeScript); after != before {
		t.Errorf("the origin after forks changed:\n%s\nbefore:\n%s", after, before)
	}
}

// snapshotCopied verifies that a sandbox can be rolled back to a snapshot copied from another sandbox.
func (s *suite) snapshotCopied(t *testing.T, limits backend.Limits) {
	origin, conn := s.limited(t, s.h.Debian, limits)
	Sh(t, conn, "echo origin > f; touch gone")
	fork, forkConn := s.limited(t, s.h.Debian, limits)
	Sh(t, forkConn, fillScript+"; echo fork > f")
	want := Sh(t, forkConn, describeScript)
	must(t, second(s.b.Snapshot(t.Context(), fork.ID, "won")))
	from := backend.ForkOf{SessionID: fork.SessionID, Snapshot: "won"}
	must(t, s.b.CopySnapshot(t.Context(), origin.ID, from))
	Fails(t, "again", s.b.CopySnapshot(t.Context(), origin.ID, from), backend.ErrExists)
	Remove(t, s.b, fork.ID)
	from.Snapshot = "won2"
	Fails(t, "from a removed sandbox", s.b.CopySnapshot(t.Context(), origin.ID, from), backend.ErrNotFound)
	must(t, s.b.Rollback(t.Context(), origin.ID, "won"))
	if got := Sh(t, conn, describeScript); got != want {
		t.Errorf("the copied state:\n%s\nwant:\n%s", got, want)
	}
}

// snapshotCommands verifies that no command runs while a snapshot is created, and a rollback kills all processes of
// commands, including daemons.
func (s *suite) snapshotCommands(t *testing.T) {
	info, conn := s.limited(t, s.h.Python, backend.Limits{})
	// The command changes two files in a fixed order. At any moment, a has the same value as b or is larger by one.
	req := command("python3", "-c", `import os
a, b = (os.open(n, os.O_RDWR | os.O_CREAT) for n in "ab")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execlp("sleep", "sleep", "1000")
    os._exit(0)
n = 0
while True:
    n += 1
    for f in (a, b): os.pwrite(f, b"%012d" % n, 0)
`)
	req.YieldMillis = 1
	request(t, conn, req)
	Eventually(t, "the writer", func() bool { return Sh(t, conn, "test -s b && echo yes || true") != "" })
	for i := range 5 {
		must(t, second(s.b.Snapshot(t.Context(), info.ID, fmt.Sprint("s", i))))
	}
	for i := range 5 {
		must(t, s.b.Rollback(t.Context(), info.ID, fmt.Sprint("s", i)))
		var a, b int
		if _, err := fmt.Sscanf(Sh(t, conn, "cat a; echo; cat b"), "%d\n%d", &a, &b); err != nil || a != b && a != b+1 {
			t.Errorf("snapshot %d is of no moment: a %d, b %d, %v", i, a, b, err)
		}
	}
	if got := Sh(t, conn, `cat /proc/[0-9]*/comm 2>/dev/null | grep -c -e sleep -e python || true`); strings.TrimSpace(got) != "0" {
		t.Errorf("%s processes outlived the rollback", got)
	}
	status, err := conn.Wait(t.Context(), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: patience.Milliseconds()})
	if err != nil || status.State == wire.ExecRunning {
		t.Errorf("the writer: %+v, %v", status, err)
	}
}

// snapshotSurvivors verifies that a rollback does not mistake a process of a command for the guest agent or for an
// exited process.
func (s *suite) snapshotSurvivors(t *testing.T) {
	info, conn := s.limited(t, s.h.Python, backend.Limits{})
	req := command("python3", "-c", `import ctypes, os, threading, time
r, w = os.pipe()
if os.fork() == 0: # it runs the guest's program
    os.setsid()
    os.dup2(r, 0)
    os.execv("`+embed.Path+`", ["`+embed.Path+`", "mcp"])
if os.fork() == 0: # its first thread ends, its second thread continues
    os.setsid()
    def write():
        n = 0
        while True:
            n += 1
            open("alive", "w").write(str(n))
    threading.Thread(target=write).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
time.sleep(1000)
`)
	req.YieldMillis = 1
	request(t, conn, req)
	commands := func() string { // all processes except the guest agent and the engine's processes
		return Output(t, conn, "python3", "-c", `import os
for p in filter(str.isdigit, os.listdir("/proc")):
    try: name, rest = open("/proc/%s/stat" % p).read().rsplit(")", 1)
    except OSError: continue
    state, parent = rest.split()[:2]
    if parent != "0" and int(p) != os.getpid(): print(name.split("(")[1], state)
`)
	}
	Eventually(t, "the survivors", func() bool {
		list := commands()
		return strings.Contains(list, "workcell-guest") && strings.Contains(list, "python3 Z") && Sh(t, conn, "test -e alive && echo yes || true") != ""
	})
	must(t, second(s.b.Snapshot(t.Context(), info.ID, "one")))
	must(t, s.b.Rollback(t.Context(), info.ID, "one"))
	Eventually(t, "the end of all commands", func() bool { return commands() == "" })
}

// snapshotMapped verifies that snapshots contain the current contents of files changed through shared memory. The times
// of such files do not show the changes.
func (s *suite) snapshotMapped(t *testing.T, limits backend.Limits) {
	info, conn := s.limited(t, s.h.Python, limits)
	req := command("python3", "-c", `import ctypes, mmap, os, threading, time
def write(name):
    f = os.open(name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(f, 4096)
    m = mmap.mmap(f, 4096)
    n = 0
    while True:
        m[0] = 48 + n
        open("%s-said%d" % (name, n), "w").close()
        while not os.path.exists("say%d" % (n + 1)): time.sleep(0.001)
        n += 1
if os.fork() == 0: # of this one the first thread has ended
    threading.Thread(target=write, args=["g"]).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
write("f")
`)
	req.YieldMillis = 1
	request(t, conn, req)
	const states = 4
	for i := range states {
		Sh(t, conn, fmt.Sprintf("touch say%d", i))
		Eventually(t, "the writer", func() bool {
			return Sh(t, conn, fmt.Sprintf("test -e f-said%d -a -e g-said%d && echo yes || true", i, i)) != ""
		})
		time.Sleep(100 * time.Millisecond) // to make the file's time old; writes continue in the existing page
		must(t, second(s.b.Snapshot(t.Context(), info.ID, fmt.Sprint("s", i))))
	}
	for _, i := range []int{1, 3, 0, 2} {
		must(t, s.b.Rollback(t.Context(), info.ID, fmt.Sprint("s", i)))
		if got := Sh(t, conn, "head -c 1 f; head -c 1 g"); got != fmt.Sprintf("%d%d", i, i) {
			t.Errorf("snapshot %d holds %q", i, got)
		}
	}
}

// snapshotSeries verifies that each of many consecutive snapshots with few differences has its own state, even after
// other snapshots are removed.
func (s *suite) snapshotSeries(t *testing.T, limits backend.Limits) {
	info, conn := s.limited(t, s.h.Debian, limits)
	Sh(t, conn, fillScript)
	changes := []string{
		"true", "echo 1 >> d/f1", "chmod 600 d/f2; touch d/f3", "rm hard; cp -p d/f1 hard", "mv d/f4 d/f40; mv d/f5 d/f4", "ln d/f6 d/f60",
		"cp -a d d2; rm -r d; mv d2 d", "dd if=/dev/zero of=random bs=1 count=1 seek=7 conv=notrunc 2>/dev/null", "mv d/deep deep; mkdir d/deep; mv deep/x d/deep/x",
	}
	want := map[string]string{}
	keep := func(name string) {
		time.Sleep(100 * time.Millisecond) // recent changes are not shared
		want[name] = Sh(t, conn, describeScript)
		must(t, second(s.b.Snapshot(t.Context(), info.ID, name)))
	}
	back := func(name string) {
		must(t, s.b.Rollback(t.Context(), info.ID, name))
		if got := Sh(t, conn, describeScript); got != want[name] {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, want[name])
		}
	}
	for i, change := range changes {
		Sh(t, conn, change)
		keep(fmt.Sprint("s", i))
	}
	for _, i := range []int{4, 8, 0, 6} {
		back(fmt.Sprint("s", i))
		Sh(t, conn, "echo more >> d/f1; echo more >> random; rm -f d/f2 hard; chmod 777 d/f3; rm -rf d/deep")
		if i == 0 { // a new chain of snapshots begins here
			back("s0")
			Sh(t, conn, "echo other >> d/f7")
			keep("other")
		}
		must(t, s.b.RemoveSnapshot(t.Context(), info.ID, fmt.Sprint("s", i+1)))
	}
	for _, name := range []string{"s2", "s4", "other", "s6", "s8", "s3", "s0"} {
		back(name)
	}
	spec := s.spec()
	spec.Limits, spec.Fork = limits, &backend.ForkOf{SessionID: info.SessionID, Snapshot: "s3"}
	if got := Sh(t, s.dial(t, s.create(t, spec).ID), describeScript); got != want["s3"] {
		t.Errorf("a fork:\n%s\nwant:\n%s", got, want["s3"])
	}
}

// snapshotLinks verifies that links of a sandbox cannot redirect a rollback.
func (s *suite) snapshotLinks(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "x")
	must(t, os.WriteFile(secret, []byte("host"), 0o666))
	info, conn := s.limited(t, s.h.Debian, backend.Limits{})
	Sh(t, conn, fmt.Sprintf("mkdir -p d/e; echo inside > d/e/x; echo f > f; ln -s %s/x leak; ln -s %s dir", outside, outside))
	must(t, second(s.b.Snapshot(t.Context(), info.ID, "base")))
	Sh(t, conn, fmt.Sprintf("rm -r d f leak dir; ln -s %s d; ln -s %s/x f; mkdir leak; ln -s %s/x leak/x; ln -s / dir", outside, outside, outside))
	must(t, second(s.b.Snapshot(t.Context(), info.ID, "after")))
	for _, name := range []string{"base", "after", "base"} {
		must(t, s.b.Rollback(t.Context(), info.ID, name))
	}
	Prints(t, conn, "cat d/e/x f; readlink leak dir", fmt.Sprintf("inside\nf\n%s/x\n%s\n", outside, outside))
	entries, err := os.ReadDir(outside)
	b, err2 := os.ReadFile(secret)
	if err = errors.Join(err, err2); err != nil || len(entries) != 1 || string(b) != "host" {
		t.Errorf("outside: %v, %q, %v", entries, b, err)
	}
}

func (s *suite) snapshotRefused(t *testing.T) {
	info, conn := s.limited(t, s.h.Debian, backend.Limits{})
	ctx := t.Context()
	Sh(t, conn, "echo x > f")
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/etc", ".new-x", ".busy", "-x", "a b", "a\n", strings.Repeat("a", 129)} {
		_, err := s.b.Snapshot(ctx, info.ID, name)
		for what, err := range map[string]error{"Snapshot": err, "Rollback": s.b.Rollback(ctx, info.ID, name), "RemoveSnapshot": s.b.RemoveSnapshot(ctx, info.ID, name)} {
			Fails(t, fmt.Sprintf("%s %q", what, name), err, backend.ErrInvalid)
		}
		spec := s.spec()
		spec.Fork = &backend.ForkOf{SessionID: info.SessionID, Snapshot: name}
		Fails(t, fmt.Sprintf("fork of %q", name), second(s.b.Create(ctx, spec)), backend.ErrInvalid)
	}
	for i := range backend.MaxSnapshots {
		must(t, second(s.b.Snapshot(ctx, info.ID, fmt.Sprint("s", i))))
	}
	Fails(t, "one too many", second(s.b.Snapshot(ctx, info.ID, "more")), backend.ErrCapacity)
	must(t, s.b.RemoveSnapshot(ctx, info.ID, "s0"))
	Fails(t, "a name twice", second(s.b.Snapshot(ctx, info.ID, "s1")), backend.ErrExists)
	Fails(t, "Rollback to a removed snapshot", s.b.Rollback(ctx, info.ID, "s0"), backend.ErrNotFound)
	for _, spec := range []backend.Spec{s.spec(), s.lone(t)} {
		spec.Fork = &backend.ForkOf{SessionID: info.SessionID, Snapshot: "s0"}
		if spec.Instance != s.instance {
			spec.Fork.Snapshot = "s1" // exists only in the other installation
		}
		Fails(t, "fork of "+spec.Fork.Snapshot, second(s.b.Create(ctx, spec)), backend.ErrNotFound)
	}
	Fails(t, "of no sandbox", second(s.b.Snapshot(ctx, "no-such-sandbox", "x")), backend.ErrNotFound)
}

// killFiles is the number of files in a snapshot, large enough to interrupt the snapshot.
const killFiles = 400

// fill creates files with this text. filled describes the existing files in the format of filledWith.
func (s *suite) fill(t *testing.T, id, text string) {
	s.run(t, id, fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo %s > f$i; i=$((i+1)); done", killFiles, text))
}

func (s *suite) filled(t *testing.T, id string) string {
	return s.run(t, id, "ls | wc -l; cat f* | sort -u")
}

func filledWith(text string) string { return fmt.Sprintf("%d\n%s\n", killFiles, text) }

// run runs a script on a separate stream.
func (s *suite) run(t *testing.T, id, script string) string {
	t.Helper()
	rw, err := s.b.Dial(t.Context(), id)
	must(t, err)
	conn, err := client.New(t.Context(), rw)
	must(t, err)
	defer conn.Close() //nolint:errcheck // the test has what it wants
	return Sh(t, conn, script)
}

// snapshotKilled kills processes during snapshots and rollbacks. Afterwards, the workspace must be in one of two
// states, existing snapshots must be unchanged, and no other files may exist.
func (s *suite) snapshotKilled(t *testing.T, limits backend.Limits) {
	spec := s.lone(t)
	spec.Limits = limits
	info := s.create(t, spec)
	write := func(text string) { s.fill(t, info.ID, text) }
	state := func() string { return s.filled(t, info.ID) }
	write("old")
	must(t, second(s.b.Snapshot(t.Context(), info.ID, "base")))
	outcomes := map[string]int{}
	write("first")
	begin := time.Now() // measures the child's operations
	must(t, second(s.b.Snapshot(t.Context(), info.ID, "mid")))
	must(t, s.b.Rollback(t.Context(), info.ID, "base"))
	took := time.Since(begin)
	must(t, s.b.RemoveSnapshot(t.Context(), info.ID, "mid"))
	const rounds = 16
	for round := range rounds {
		text := fmt.Sprint("round", round)
		write(text)
		child := s.spawn(t, "snapshots", spec)
		child.hear(t)
		time.Sleep(took * time.Duration(round) / (rounds - 4)) // at all moments and slightly later
		child.kill()
		got := state()
		if got != filledWith(text) && got != filledWith("old") {
			t.Fatalf("round %d: the workspace is neither state: %q", round, got)
		}
		list, _, err := s.b.Snapshots(t.Context(), info.ID)
		must(t, err)
		has := func(name string) bool {
			return slices.ContainsFunc(list, func(s backend.Snapshot) bool { return s.Name == name })
		}
		if !has("base") {
			t.Fatalf("round %d: the snapshot is lost: %+v", round, list)
		}
		outcomes[fmt.Sprint(got == filledWith("old"), has("mid"))]++
		if has("mid") {
			must(t, s.b.Rollback(t.Context(), info.ID, "mid"))
			if got := state(); got != filledWith(text) {
				t.Fatalf("round %d: the new snapshot holds %q", round, got)
			}
			must(t, s.b.RemoveSnapshot(t.Context(), info.ID, "mid"))
		}
		must(t, s.b.Rollback(t.Context(), info.ID, "base"))
		if got := state(); got != filledWith("old") {
			t.Fatalf("round %d: the old snapshot holds %q", round, got)
		}
	}
	t.Logf("rolled back, new snapshot: %v", outcomes)
	// A process killed at any moment must leave a removable sandbox.
	child := s.spawn(t, "snapshots", spec)
	child.hear(t)
	time.Sleep(rand.N(took))
	child.kill()
	must(t, s.b.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true}))
}

// childSnapshots creates a snapshot and rolls back to another snapshot.
func (s *suite) childSnapshots(t *testing.T, spec backend.Spec, tell func(word)) {
	b := s.h.New(t)
	list, err := b.List(t.Context(), backend.Filter{Instance: spec.Instance})
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	tell(word{ID: list[0].ID})
	_, err = b.Snapshot(context.Background(), list[0].ID, "mid")
	must(t, err)
	must(t, b.Rollback(context.Background(), list[0].ID, "base"))
	select {}
}

// forkKilled kills processes while they fork a snapshot, copy it to the fork, and remove it from the origin.
// Afterwards, the origin's workspace must be unchanged. A fork must be complete or can be created again, and each
// snapshot must be complete or removed.
func (s *suite) forkKilled(t *testing.T, limits backend.Limits) {
	spec := s.lone(t)
	spec.Limits = limits
	ctx := t.Context()
	info := s.create(t, spec)
	s.fill(t, info.ID, "old")
	whole := func(round int, id string) {
		t.Helper()
		if got := s.filled(t, id); got != filledWith("old") {
			t.Fatalf("round %d: %s holds %q", round, id, got)
		}
	}
	// kept reports whether a sandbox has the snapshot. If so, it verifies the completeness of the snapshot.
	kept := func(round int, id string) bool {
		t.Helper()
		list, _, err := s.b.Snapshots(ctx, id)
		must(t, err)
		if len(list) == 0 {
			return false
		}
		must(t, s.b.Rollback(ctx, id, "base"))
		whole(round, id)
		return true
	}
	const rounds = 8
	var took time.Duration
	outcomes := map[string]int{}
	for round := range rounds {
		if !kept(round, info.ID) {
			_, err := s.b.Snapshot(ctx, info.ID, "base")
			must(t, err)
		}
		fork := s.spec()
		fork.Instance, fork.Limits, fork.Fork = spec.Instance, limits, &backend.ForkOf{SessionID: info.SessionID, Snapshot: "base"}
		child := s.spawn(t, "forker", fork)
		begin := time.Now()
		child.hear(t)
		if round == 0 { // runs to the end to measure the time
			child.hear(t)
			child.hear(t)
			took = time.Since(begin)
		}
		time.Sleep(took * time.Duration(round) / rounds)
		child.kill()
		whole(round, info.ID)
		origin := kept(round, info.ID)
		made := child.words.Scan() || round == 0
		if !made && origin {
			list, err := s.b.List(ctx, backend.Filter{Instance: spec.Instance, SessionID: fork.ID})
			must(t, err)
			for _, half := range list {
				if s.b.Start(ctx, half.ID) == nil {
					whole(round, half.ID)
				}
			}
			remake(t, s.b, fork)
		}
		list, err := s.b.List(ctx, backend.Filter{Instance: spec.Instance})
		must(t, err)
		copied := false
		for _, other := range list {
			if other.ID == info.ID {
				continue
			}
			whole(round, other.ID)
			copied = kept(round, other.ID)
			must(t, s.b.Remove(ctx, other.ID, backend.RemoveOptions{Volumes: true}))
		}
		outcomes[fmt.Sprintf("fork %v, its snapshot %v, the origin's %v", made, copied, origin)]++
		if !origin && !copied {
			t.Fatalf("round %d: the snapshot is lost", round)
		}
	}
	t.Log(outcomes)
}

// childForker forks a snapshot, copies it to the fork, and removes it from the origin.
func (s *suite) childForker(t *testing.T, spec backend.Spec, tell func(word)) {
	b, ctx := s.h.New(t), context.Background()
	list, err := b.List(ctx, backend.Filter{Instance: spec.Instance})
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	from := backend.ForkOf{SessionID: list[0].SessionID, Snapshot: "base"}
	spec.Fork = &from
	if list[0].Workspace == backend.WorkspaceSized {
		spec.Limits = list[0].Limits
	}
	tell(word{})
	info, err := b.Create(ctx, spec)
	must(t, err)
	tell(word{ID: info.ID})
	must(t, b.CopySnapshot(ctx, info.ID, from))
	must(t, b.RemoveSnapshot(ctx, list[0].ID, from.Snapshot))
	tell(word{})
	select {}
}
