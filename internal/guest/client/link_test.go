//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func TestHello(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	h := c.Hello()
	if h.Version != "test" || h.PID != g.PID || h.Workdir != g.Workdir {
		t.Errorf("got %+v", h)
	}
	if !strings.Contains(strings.Join(h.Programs, " "), "sh") {
		t.Errorf("programs: %v", h.Programs)
	}
	other := dial(t, g)
	if other.Hello().BootID != h.BootID {
		t.Error("the boot id changed without a restart")
	}
}

// TestBrokenConnection verifies that a lost connection kills attached commands, and another host finds the recorded
// commands, including commands with a waiting caller.
func TestBrokenConnection(t *testing.T) {
	t.Parallel()
	g, second := start(t)
	stream := g.Dial()
	first, err := client.New(context.Background(), stream)
	must(t, err)
	defer first.Close()
	recorded := sh("until [ -e go ]; do sleep 0.05; done; echo kept")
	recorded.YieldMillis, recorded.KillOnCancel = 0, true
	mustRun(t, first, recorded)
	id := sleepName(t)
	attached := make(chan error, 1)
	go func() {
		_, err := first.Attach(context.Background(), sh("setsid sleep "+id+" & wait"), nil, nil, nil)
		attached <- err
	}()
	waiting := make(chan error, 1)
	go func() {
		req := sh("until [ -e go ]; do sleep 0.05; done; echo also kept")
		req.KillOnCancel = true
		_, err := first.Run(context.Background(), req)
		waiting <- err
	}()
	eventually(t, "the attached exec runs", func() bool { return sleepers(t, id) > 0 })
	eventually(t, "all of them run", func() bool {
		list, err := first.Execs(testContext(t))
		return err == nil && len(list) == 3
	})

	_ = stream.Close()
	for _, ended := range []chan error{attached, waiting} {
		if err := <-ended; !errors.Is(err, client.ErrConnLost) {
			t.Errorf("a pending call of the first host: %v", err)
		}
	}
	<-first.Done()
	if _, err := first.Run(context.Background(), sh("true")); !errors.Is(err, client.ErrConnLost) {
		t.Errorf("a new call of the first host: %v", err)
	}
	mustPut(t, second, "go", nil)
	st, err := second.Wait(testContext(t), wire.WaitRequest{ExecID: recorded.ExecID, WaitMillis: -1})
	if err != nil || st.State != wire.ExecCompleted || st.StdoutBytes != 5 {
		t.Errorf("the recorded exec: %+v, %v", st, err)
	}
	eventually(t, "the attached exec is gone", func() bool { return sleepers(t, id) == 0 })
	list, err := second.Execs(testContext(t))
	if err != nil || len(list) != 3 || list[0].ExecID != recorded.ExecID { // oldest first
		t.Errorf("Execs: %+v, %v", list, err)
	}
	for _, st := range list { // includes the command with a waiting caller
		if st.State == wire.ExecKilled && st.ExecID == recorded.ExecID {
			t.Errorf("killed: %+v", st)
		}
	}
}

// cut passes n more bytes of a host and then drops the rest, even in the middle of a frame.
type cut struct {
	io.ReadWriteCloser
	mu   sync.Mutex
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	c.mu.Lock()
	n := min(len(p), c.left)
	c.left -= n
	c.mu.Unlock()
	if n > 0 {
		if m, err := c.ReadWriteCloser.Write(p[:n]); err != nil {
			return m, err
		}
	}
	if n < len(p) {
		return n, io.ErrClosedPipe
	}
	return n, nil
}

// TestHostsCutOff verifies that hosts disconnecting in the middle of a frame leave no partial file, and other hosts
// still work.
func TestHostsCutOff(t *testing.T) {
	t.Parallel()
	g, other := start(t)
	data := noise(4 << 20)
	for i := range 25 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		dying, err := client.New(ctx, &cut{ReadWriteCloser: g.Dial(), left: 1010 + i*i*997})
		if err != nil {
			t.Fatalf("host %d: %v", i, err)
		}
		_, err = dying.PutFile(ctx, wire.FilePutRequest{Path: "f", Size: int64(len(data)), Overwrite: true}, bytes.NewReader(data))
		if !errors.Is(err, client.ErrConnLost) {
			t.Errorf("host %d was not cut: %v", i, err)
		}
		_ = dying.Close()
		if res := mustRun(t, other, sh("echo here")); string(res.Stdout.Head) != "here\n" {
			t.Errorf("after host %d: %+v", i, res)
		}
		fails(t, "a partial file exists", second(other.Stat(ctx, wire.PathRequest{Path: "f"})), wire.CodeNotFound)
		cancel()
	}
}

// stopped reports whether every thread of a process is stopped.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("threads of %d: %v", pid, err)
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		must(t, err)
		if !bytes.Contains(text, []byte(") T ")) {
			return false
		}
	}
	return true
}

// TestSuspendedGuest verifies that an unresponsive guest agent is reported as lost within a bounded time, and is
// reachable again after it continues.
func TestSuspendedGuest(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	must(t, syscall.Kill(g.PID, syscall.SIGSTOP))
	for !stopped(t, g.PID) { // each thread stops separately
		time.Sleep(time.Millisecond)
	}
	resumed := false
	resume := func() {
		if !resumed {
			_ = syscall.Kill(g.PID, syscall.SIGCONT)
		}
		resumed = true
	}
	defer resume()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := client.New(ctx, g.Dial()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("New: %v", err)
	}
	if _, err := c.Run(context.Background(), sh("true")); !errors.Is(err, client.ErrConnLost) {
		t.Errorf("got %v", err)
	}
	resume()
	mustRun(t, dial(t, g), sh("true"))
}

// TestCancelThenClose verifies that a request is canceled if the host cancels it and disconnects immediately. The
// goodbye may arrive before the end of the stream.
func TestCancelThenClose(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	_ = c.Close()
	for range 20 {
		host := dial(t, g)
		req := sh("sleep 100")
		req.YieldMillis, req.KillOnCancel = -1, true
		ctx, cancel := context.WithTimeout(testContext(t), 200*time.Millisecond)
		_, err := host.Run(ctx, req)
		_ = host.Close()
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Run: %v", err)
		}
		other := dial(t, g)
		// If a request was canceled before the guest agent read it, it did not start a command.
		st, err := other.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1})
		if codeOf(err) != wire.CodeNotFound && (err != nil || st.State != wire.ExecKilled) {
			t.Errorf("got %+v, %v", st, err)
		}
		_ = other.Close()
	}
	last := dial(t, g)
	execs, err := last.Execs(testContext(t))
	must(t, err)
	for _, st := range execs {
		if st.State == wire.ExecRunning {
			t.Errorf("still runs: %+v", st)
		}
	}
}
