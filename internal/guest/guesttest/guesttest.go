// Package guesttest runs a real guest for tests that need no container.
package guesttest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// Options refine Start. The zero value is good.
type Options struct {
	// Workdir is the root of the file requests; empty makes a directory that the test removes.
	Workdir string
	// Scratch is a second root of the file requests; empty is none.
	Scratch string
	// Binary is the path of a guest; empty means the embedded one.
	Binary string
	// Args are further arguments of the guest.
	Args []string
}

// Guest is a guest in a process of its own, with its own work directory. It ends with the test.
type Guest struct {
	Workdir string
	PID     int

	socket string
	log    *buffer
}

// Start starts a guest. It runs commands as the test's own user, on the test's own file system: only commands that are
// safe there may be run.
func Start(t testing.TB, opts *Options) *Guest {
	t.Helper()
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Workdir == "" {
		o.Workdir = tempDir(t)
	}
	if o.Binary == "" {
		o.Binary = unpacked(t)
	}
	args := []string{"--workdir", o.Workdir, "--scratch", o.Scratch, "--listen-fd", "3"}
	args = append(args, o.Args...)
	g := &Guest{Workdir: o.Workdir, log: new(buffer)}
	cmd := exec.Command(o.Binary, args...)
	cmd.Stderr = g.log
	in, err := g.start(t, cmd)
	if err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	g.PID = cmd.Process.Pid
	t.Cleanup(func() {
		_ = in.Close() // ends the guest
		late := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("guesttest: the guest ended badly: %v\n%s", err, g.log)
		}
		if t.Failed() {
			t.Logf("guest's log:\n%s", g.log)
		}
	})
	return g
}

// start starts the guest with a socket to listen on, and returns its input.
func (g *Guest) start(t testing.TB, cmd *exec.Cmd) (io.Closer, error) {
	dir, err := os.MkdirTemp("", "guest") // t.TempDir makes names too long for sockets
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	g.socket = filepath.Join(dir, "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: g.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	file, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd.ExtraFiles = []*os.File{file}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// A file that was just written can be busy while another test forks.
	for range 3000 {
		if err = cmd.Start(); !errors.Is(err, errBusy) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return in, err
}

// tempDir is a directory without links in its path.
func tempDir(t testing.TB) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	return dir
}

// unpacked writes the embedded guest to a file.
func unpacked(t testing.TB) string {
	b, err := embed.Binary(runtime.GOARCH)
	if err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	name := filepath.Join(t.TempDir(), "workcell-guest")
	// A process that is forked meanwhile would hold the file open for writing until it is another program: ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(name, b, 0o755); err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	return name
}

// Dial connects to the guest. Closing the stream leaves the guest running. If the guest has ended, so has the stream.
func (g *Guest) Dial() io.ReadWriteCloser {
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		ours, theirs := net.Pipe()
		_ = theirs.Close() // cannot fail
		return ours
	}
	return conn
}

// Log returns the guest's standard error.
func (g *Guest) Log() string { return g.log.String() }

// buffer is a bytes.Buffer for concurrent use.
type buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
