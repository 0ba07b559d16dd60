package proc

import (
	"os"
	"runtime"
	"syscall"
	"testing"
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
