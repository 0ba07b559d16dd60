package proc

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Times of a tree's end.
const (
	DefaultGrace = 2 * time.Second
	// killBound is how long the guest kills a tree that does not get empty, as one that waits for a broken
	// device would not.
	killBound = 10 * time.Second
	// reapBound is how long the guest waits for its reaper to take what was killed.
	reapBound = time.Second
)

// A tree that forks may grow faster than the guest kills one process after the other. The guest stops all processes of
// the sandbox while it kills the tree, when there are as many as crowd, or when it has looked as often as patience.
const (
	crowd    = 64
	patience = 3
	// holdBound is how long they are stopped at a time: those of other commands are among them.
	holdBound = 2 * time.Second
)

// holdTries is how often, a millisecond apart, the guest looks whether it is between fork and exec.
const holdTries = 100

// Tree finds and signals all processes of one exec.
type Tree struct {
	t     *tracker
	tag   uint64
	every bool // all that has a tag, not one exec
}

// proc is a process as /proc shows it.
type proc struct {
	pid, ppid int
	state     byte
	threads   int
	start     string // start time: with the pid, what names a process for good
}

// members lists the living processes of the tree, zombies left out.
func (k *Tree) members() (found []proc) {
	for _, pid := range k.pids() {
		if p, ok := readProc(pid); ok {
			found = append(found, p)
		}
	}
	return found
}

// pids lists the processes of the tree, zombies included. Tags below the last one that this guest gave belong to a
// guest inside this one.
func (k *Tree) pids() (found []int) {
	for _, pid := range AllPIDs() {
		tag, ok := k.t.TagOf(pid)
		if ok && pid != k.t.own && (tag == k.tag || k.every && tag >= k.t.last.Load()) {
			found = append(found, pid)
		}
	}
	return found
}

// KillTagged ends whatever any exec left behind.
func (t *tracker) KillTagged(grace time.Duration) {
	k := &Tree{t: t, every: true}
	k.Terminate(grace)
}

// Signal sends signals to the tree's processes and returns how many there are.
func (k *Tree) Signal(signals ...unix.Signal) int {
	if len(AllPIDs()) >= crowd {
		defer k.t.hold()()
	}
	return k.signal(signals...)
}

func (k *Tree) signal(signals ...unix.Signal) int {
	members := k.members()
	for _, p := range members {
		for _, sig := range signals {
			signalProc(p, sig)
		}
	}
	return len(members)
}

// Terminate asks the tree to end, gives it grace to do so, and kills what is left, over and over until two looks in
// a row find nothing: the first may miss a new child. It reports whether the tree is empty.
func (k *Tree) Terminate(grace time.Duration) bool {
	if grace > 0 && k.Signal(unix.SIGTERM, unix.SIGCONT) > 0 { // a stopped process acts on TERM only when it is continued
		k.await(grace)
	}
	deadline := time.Now().Add(killBound)
	for looks := 1; !k.kill(looks > patience); looks++ {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(time.Duration(min(looks, 20)) * time.Millisecond)
	}
	k.awaitReaped()
	return true
}

// kill kills the tree's processes and reports whether there were none.
//
// One that is told to stop in the middle of a fork still makes its child, which stops as well but is in no list yet. So
// the processes stay stopped until a look finds all dead: the dead make no more, and a child that has not run has none.
func (k *Tree) kill(hold bool) bool {
	until := time.Now()
	if hold || len(AllPIDs()) >= crowd {
		defer k.t.hold()()
		until = until.Add(holdBound)
	}
	for k.signal(unix.SIGKILL) > 0 || k.signal(unix.SIGKILL) > 0 {
		if !time.Now().Before(until) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// hold stops every process of the sandbox and returns what continues them. Against some hundred that fork whenever
// one of them dies, the guest gets too little time to ever catch up one by one; this one call reaches all of them, also
// children that are just being made. What another command of the sandbox had stopped itself is continued with the rest.
func (t *tracker) hold() (release func()) {
	if !t.alone {
		return func() {}
	}
	// The guest itself would wait for a child that is stopped before it runs its program. If one stays so, because
	// somebody else stops it, the rest has to do without.
	for tries := 0; !t.forking.TryLock(); tries++ {
		if tries == holdTries {
			return func() {}
		}
		_ = unix.Kill(-1, unix.SIGCONT)
		time.Sleep(time.Millisecond)
	}
	_ = unix.Kill(-1, unix.SIGSTOP)
	return func() {
		_ = unix.Kill(-1, unix.SIGCONT)
		t.forking.Unlock()
	}
}

// await waits until the tree is empty, at most for d.
func (k *Tree) await(d time.Duration) {
	deadline := time.Now().Add(d)
	for pause := time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		if !k.Alive() {
			return
		}
		time.Sleep(min(pause, time.Until(deadline)))
	}
}

// awaitReaped waits until /proc shows nothing of a killed tree. Zombies stay where a living parent outside the tree
// does not wait for them.
func (k *Tree) awaitReaped() {
	deadline := time.Now().Add(reapBound)
	for k.t.alone && len(k.pids()) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
}

// signalProc signals a process unless its pid has passed to another one meanwhile.
func signalProc(p proc, sig unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == nil {
		defer unix.Close(fd)
		if now, ok := readProc(p.pid); !ok || now.start != p.start {
			return
		}
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if err == unix.ENOSYS || err == unix.EPERM {
		_ = unix.Kill(p.pid, sig) // an old kernel: the moment since the look is all there is
	}
}

// AllPIDs lists the processes that /proc shows.
func AllPIDs() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	var pids []int
	for {
		names, err := d.Readdirnames(256)
		for _, n := range names {
			if pid, err := strconv.Atoi(n); err == nil {
				pids = append(pids, pid)
			}
		}
		if err != nil {
			return pids
		}
	}
}

// readProc reads /proc/PID/stat; false for what is gone or a zombie. A process whose first thread ended looks like a
// zombie, but lives as long as its other threads.
func readProc(pid int) (proc, bool) {
	p, ok := readStat(pid)
	return p, ok && (p.state != 'Z' && p.state != 'X' || p.threads > 1)
}

func readStat(pid int) (proc, bool) {
	var buf [512]byte
	n, err := readProcFile(pid, "stat", buf[:])
	if err != nil {
		return proc{}, false
	}
	// The name, in parentheses, may hold anything.
	at := bytes.LastIndexByte(buf[:n], ')')
	if at < 0 {
		return proc{}, false
	}
	f := bytes.Fields(buf[at+1 : n])
	if len(f) < 20 || len(f[0]) != 1 {
		return proc{}, false
	}
	p := proc{pid: pid, state: f[0][0], start: string(f[19])}
	p.ppid, _ = strconv.Atoi(string(f[1])) // the kernel writes numbers here
	p.threads, _ = strconv.Atoi(string(f[17]))
	return p, true
}

func readProcFile(pid int, name string, buf []byte) (int, error) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.Read(fd, buf)
}

// Tree returns the processes of an exec.
func (t *tracker) Tree(p *Process) *Tree { return &Tree{t: t, tag: p.tag.Load()} }

// Alive reports whether the tree has a process left.
func (k *Tree) Alive() bool { return len(k.members()) > 0 }

// Program returns the name of a process, with what is not printable ASCII replaced: a process chooses its name.
func Program(pid int) string {
	var buf [16]byte
	n, err := readProcFile(pid, "comm", buf[:])
	if err != nil {
		return ""
	}
	name := bytes.TrimSuffix(buf[:n], []byte{'\n'})
	for i, c := range name {
		if c < ' ' || c > '~' {
			name[i] = '?'
		}
	}
	return string(name)
}

// Busy reports whether a process of any exec lives.
func (t *tracker) Busy() bool { return t.Alive() > 0 }

// Alive returns how many execs have a living process, those that ended included.
func (t *tracker) Alive() int {
	tags := map[uint64]bool{}
	for _, p := range (&Tree{t: t, every: true}).members() {
		if tag, ok := t.TagOf(p.pid); ok {
			tags[tag] = true
		}
	}
	return len(tags)
}

// Parent returns the pid of a process's parent; false for a process that is gone.
func Parent(pid int) (int, bool) {
	p, ok := readProc(pid)
	return p.ppid, ok
}
