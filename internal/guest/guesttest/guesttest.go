// Package guesttest runs a real guest agent for tests without a container.
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

// Options configure Start. The zero value is ready to use.
type Options struct {
	// Workdir is the root directory for file requests. If empty, Start creates a directory and the end of the test removes
	// it.
	Workdir string
	// Scratch is the second root for file requests. If empty, there is no second root.
	Scratch string
	// Binary is the path of a guest agent. If empty, Start uses the embedded guest agent.
	Binary string
	// Args are additional arguments of the guest agent.
	Args []string
}

// Guest is a guest agent in a separate process with a separate workspace. The end of the test stops it.
type Guest struct {
	Workdir string
	PID     int

	socket string
	log    *buffer
}

// Start starts a guest agent. It runs commands as the test's user on the test's file system, so tests must only run
// safe commands.
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
		_ = in.Close() // stops the guest agent
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

// start starts the guest agent with a listening socket and returns standard input.
func (g *Guest) start(t testing.TB, cmd *exec.Cmd) (io.Closer, error) {
	dir, err := os.MkdirTemp("", "guest") // t.TempDir paths are too long for sockets
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
	// A new file can be busy while another test forks.
	for range 3000 {
		if err = cmd.Start(); !errors.Is(err, syscall.ETXTBSY) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return in, err
}

// tempDir returns a directory without links in the path.
func tempDir(t testing.TB) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	return dir
}

// unpacked writes the embedded guest agent to a file.
func unpacked(t testing.TB) string {
	b, err := embed.Binary(runtime.GOARCH)
	if err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	name := filepath.Join(t.TempDir(), "workcell-guest")
	// A child process forked during the write would keep the file open for writing until it calls exec (ETXTBSY).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(name, b, 0o755); err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	return name
}

// Dial connects to the guest agent. Closing the stream does not stop the guest agent. If the guest agent has exited,
// Dial returns a closed stream.
func (g *Guest) Dial() io.ReadWriteCloser {
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		ours, theirs := net.Pipe()
		_ = theirs.Close() // cannot fail
		return ours
	}
	return conn
}

// Log returns the guest agent's standard error.
func (g *Guest) Log() string { return g.log.String() }

// buffer is a bytes.Buffer, safe for concurrent use.
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
