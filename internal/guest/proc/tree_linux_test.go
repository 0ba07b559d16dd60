package proc

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestBeforeExec verifies that a child process that is stopped after exec, because it is traced, does not count as
// stopped before exec.
func TestBeforeExec(t *testing.T) {
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	attr := &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Ptrace: true}}
	pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, attr)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Wait4(pid, nil, 0, nil)
	defer syscall.Kill(pid, syscall.SIGKILL)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("%v, %v", status, err)
	}
	if p, _ := readStat(pid); p.state != 't' || beforeExec(pid) || !beforeExec(os.Getpid()) {
		t.Errorf("state %c, %t", p.state, beforeExec(pid))
	}
}

// TestStoppedBeforeExec starts commands while another process stops them before exec and the garbage collector runs.
func TestStoppedBeforeExec(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(minProcs))
	s, err := NewSpawner("/", Unprotected())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	start := func(files int, argv ...string) *Process {
		p := new(Process)
		attr := &syscall.ProcAttr{Files: slices.Repeat([]uintptr{uintptr(s.null)}, files)}
		if err := s.forkOnce(p, argv[0], argv, attr); err != nil {
			t.Fatal(err)
		}
		return p
	}
	stopper := start(3, "/bin/sh", "-c", `while :; do for f in /proc/$1/task/*/children; do read -r all < $f
		for p in $all; do [ $p = $$ ] || kill -s STOP $p; done; done; done`, "sh", strconv.Itoa(os.Getpid()))
	go func() {
		for t.Context().Err() == nil {
			runtime.KeepAlive(make([]byte, 1<<20)) // a few cause a collection
			time.Sleep(time.Millisecond)
		}
	}()
	killed := 0
	for range 20 {
		p := start(1000, "/bin/sleep", "1000") // copying descriptors takes a millisecond before exec
		if !s.Tree(p).Alive() {
			killed++
		}
		s.Tree(p).Terminate(0)
		<-p.Exited
	}
	s.Tree(stopper).Terminate(0)
	<-stopper.Exited
	if killed == 0 {
		t.Error("no child process was stopped")
	}
}
