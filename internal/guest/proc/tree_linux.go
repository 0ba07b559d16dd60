package proc

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Time limits for killing a process tree.
const (
	DefaultGrace = 2 * time.Second
	// killBound is how long the guest agent tries to kill a tree if it does not become empty, for example because a
	// process waits for a broken device.
	killBound = 10 * time.Second
	// reapBound is how long the guest agent waits until the reaper has reaped the killed processes.
	reapBound = time.Second
)

// A forking tree may grow faster than the guest agent can kill the processes one by one. If the sandbox has at least
// crowd processes, or after patience passes, the guest agent stops all processes of the sandbox while it kills the
// tree.
const (
	crowd    = 64
	patience = 3
	// holdBound is the maximum time for which they are stopped, because processes of other commands are also stopped.
	holdBound = 2 * time.Second
	// stoppedBound is the time after which a process that was stopped during its start is killed.
	stoppedBound = 20 * time.Millisecond
	// startBound is the time after which any process is killed that does not get beyond its start.
	startBound = 10 * time.Second
)

// holdTries is the number of attempts, one millisecond apart, to acquire the lock for forking.
const holdTries = 100

// Tree finds and signals all processes of a command.
type Tree struct {
	t     *tracker
	tag   uint64
	every bool // all processes with a tag, not one command
}

// proc describes a process, with data from /proc.
type proc struct {
	pid, ppid int
	state     byte
	threads   int
	start     string // start time; together with the process ID, it identifies a process
}

// members returns the running processes of the tree, without zombies.
func (k *Tree) members() (found []proc) {
	for _, pid := range k.pids() {
		if p, ok := readProc(pid); ok {
			found = append(found, p)
		}
	}
	return found
}

// pids returns the processes of the tree, including zombies. Tags smaller than the last tag of this guest agent belong
// to a nested guest agent.
func (k *Tree) pids() (found []int) {
	for _, pid := range AllPIDs() {
		tag, ok := k.t.TagOf(pid)
		if ok && pid != k.t.own && (tag == k.tag || k.every && tag >= k.t.last.Load()) {
			found = append(found, pid)
		}
	}
	return found
}

// KillTagged kills all remaining processes of all commands.
func (t *tracker) KillTagged(grace time.Duration) {
	k := &Tree{t: t, every: true}
	k.Terminate(grace)
}

// Signal sends signals to the tree's processes and returns the number of processes.
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

// Terminate asks the tree to exit, waits for grace, and kills the remaining processes. It repeats this until two
// consecutive passes find no process, because the first pass may miss a new child. It reports whether the tree is
// empty.
func (k *Tree) Terminate(grace time.Duration) bool {
	if grace > 0 && k.Signal(unix.SIGTERM, unix.SIGCONT) > 0 { // a stopped process handles SIGTERM only after SIGCONT
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

// kill kills the tree's processes. It reports whether it found none.
//
// A process receiving the signal during a fork still creates the child. The child also stops, but it is not in the list
// yet. Therefore the processes stay stopped until a pass finds only dead processes. Neither dead processes nor children
// before their first instruction create children.
func (k *Tree) kill(hold bool) bool {
	until := time.Now()
	if hold || len(AllPIDs()) >= crowd {
		defer k.t.hold()()
		until = until.Add(holdBound)
	}
	for k.signal(unix.SIGKILL) > 0 || k.signal(unix.SIGKILL) > 0 { //nolint:staticcheck // a second, empty pass ends it
		if !time.Now().Before(until) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// hold stops every process of the sandbox and returns a function to continue them. If hundreds of processes fork
// whenever one of them dies, the guest agent never catches up by killing them one by one. A single call reaches all of
// them, even new children. Processes stopped by another command of the sandbox also continue.
func (t *tracker) hold() (release func()) {
	if !t.alone {
		return func() {}
	}
	// A stopped child before exec would block the guest agent. If another process keeps the child stopped, hold gives up.
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

// killStopped kills a starting command if another command stopped the child process before exec, because this blocks
// the guest agent. After exec, the child may be stopped because it is traced. The wait is a system call: the Go runtime
// may not run its own timers on time while a fork is blocked.
func (s *Spawner) killStopped() {
	defer unix.Close(s.alarm)
	var slow *Tree
	for since := time.Now(); ; {
		var expirations [8]byte
		if _, err := unix.Read(s.alarm, expirations[:]); err != nil {
			continue // interrupted by a signal
		}
		k := s.starting.Load()
		if k == nil {
			return
		}
		if k != slow {
			slow, since = k, time.Now()
		}
		for _, p := range k.members() {
			if (p.state == 'T' || p.state == 't' || time.Since(since) > startBound) && beforeExec(p.pid) {
				signalProc(p, unix.SIGKILL)
			}
		}
	}
}

// setAlarm makes killStopped run every d. With 0, it no longer runs.
func (s *Spawner) setAlarm(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.TimerfdSettime(s.alarm, 0, &unix.ItimerSpec{Interval: t, Value: t}, nil) // the values are valid
}

// beforeExec reports whether a child process still shares the guest agent's memory, including the arguments.
func beforeExec(pid int) bool {
	var own, child [4096]byte
	n, err := readProcFile(os.Getpid(), "cmdline", own[:])
	m, cerr := readProcFile(pid, "cmdline", child[:])
	return err == nil && cerr == nil && bytes.Equal(own[:n], child[:m])
}

// await waits until the tree is empty, for at most d.
func (k *Tree) await(d time.Duration) {
	deadline := time.Now().Add(d)
	for pause := time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		if !k.Alive() {
			return
		}
		time.Sleep(min(pause, time.Until(deadline)))
	}
}

// awaitReaped waits until /proc shows no process of a killed tree. Zombies remain if a running parent outside of the
// tree does not reap them.
func (k *Tree) awaitReaped() {
	deadline := time.Now().Add(reapBound)
	for k.t.alone && len(k.pids()) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
}

// signalProc signals a process, unless another process has received the ID.
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
		_ = unix.Kill(p.pid, sig) // on an old kernel, a short race remains
	}
}

// AllPIDs returns the processes in /proc.
func AllPIDs() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // the names before an error
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// readProc reads /proc/PID/stat. It returns false if the process has exited or is a zombie. A process whose first
// thread exited looks like a zombie, but it runs as long as the other threads.
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
	// The name in parentheses may contain any characters.
	at := bytes.LastIndexByte(buf[:n], ')')
	if at < 0 {
		return proc{}, false
	}
	f := bytes.Fields(buf[at+1 : n])
	if len(f) < 20 || len(f[0]) != 1 {
		return proc{}, false
	}
	p := proc{pid: pid, state: f[0][0], start: string(f[19])}
	p.ppid, _ = strconv.Atoi(string(f[1])) // the kernel always writes numbers
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

// Tree returns the process tree of a command.
func (t *tracker) Tree(p *Process) *Tree { return &Tree{t: t, tag: p.tag.Load()} }

// Alive reports whether the tree has a running process.
func (k *Tree) Alive() bool { return len(k.members()) > 0 }

// Program returns the name of a process. It replaces all characters except printable ASCII, because a process can
// choose any name.
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

// Busy reports whether a process of any command is running.
func (t *tracker) Busy() bool { return t.Alive() > 0 }

// Alive returns the number of commands with a running process, including ended commands.
func (t *tracker) Alive() int {
	tags := map[uint64]bool{}
	for _, p := range (&Tree{t: t, every: true}).members() {
		if tag, ok := t.TagOf(p.pid); ok {
			tags[tag] = true
		}
	}
	return len(tags)
}

// Parent returns the ID of a process's parent. It returns false if the process has exited.
func Parent(pid int) (int, bool) {
	p, ok := readProc(pid)
	return p.ppid, ok
}
