// Package guesttest runs a real guest for tests that need no container.
package guesttest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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

	stream *pipe
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
	args := []string{"--workdir", o.Workdir, "--scratch", o.Scratch}
	args = append(args, o.Args...)
	g := &Guest{Workdir: o.Workdir, log: new(buffer)}
	cmd := exec.Command(o.Binary, args...)
	cmd.Stderr = g.log
	stream, err := start(cmd)
	if err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	g.stream, g.PID = stream, cmd.Process.Pid
	t.Cleanup(func() {
		if err := stream.end(); err != nil {
			t.Errorf("guesttest: the guest ended badly: %v\n%s", err, g.log)
		}
		if t.Failed() {
			t.Logf("guest's log:\n%s", g.log)
		}
	})
	return g
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

// Dial returns the guest's own stream. Closing it leaves the guest running, as the end of an attach does: the
// stream can be dialled again, and a newer host takes it over from an older one.
func (g *Guest) Dial() io.ReadWriteCloser { return g.stream.attach() }

// Log is what the guest wrote to its standard error so far.
func (g *Guest) Log() string { return g.log.String() }

// start starts cmd with pipes.
func start(cmd *exec.Cmd) (*pipe, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
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
	if err != nil {
		return nil, err
	}
	p := &pipe{cmd: cmd, in: in, out: out}
	p.cond = sync.NewCond(&p.mu)
	go p.read()
	return p, nil
}

// pipe is a process's standard streams. Like an engine it hands the output to the attached host and drops it when
// nobody is.
type pipe struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser

	mu    sync.Mutex // guards the fields below
	cond  *sync.Cond
	users []*attachment
	ended bool
}

func (p *pipe) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := p.out.Read(buf)
		p.mu.Lock()
		for _, a := range p.users {
			for a.pending.Len() > 1<<20 && !a.closed {
				p.cond.Wait()
			}
			if !a.closed {
				a.pending.Write(buf[:n])
			}
		}
		p.ended = p.ended || err != nil
		p.cond.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *pipe) attach() *attachment {
	a := &attachment{p: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users = append(p.users, a)
	return a
}

// end closes the process's input and waits for it.
func (p *pipe) end() error {
	p.mu.Lock()
	for _, a := range p.users {
		a.closed = true
	}
	p.mu.Unlock()
	p.cond.Broadcast()
	_ = p.in.Close() // ends the guest
	late := time.AfterFunc(2*time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	p.mu.Lock()
	for !p.ended {
		p.cond.Wait()
	}
	p.mu.Unlock()
	return p.cmd.Wait()
}

// attachment is one host's use of a pipe.
type attachment struct {
	p       *pipe
	pending bytes.Buffer // guarded by p.mu, as is closed
	closed  bool
}

func (a *attachment) Read(b []byte) (int, error) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	for a.pending.Len() == 0 && !a.closed && !a.p.ended {
		a.p.cond.Wait()
	}
	if a.closed {
		return 0, os.ErrClosed
	}
	if a.pending.Len() == 0 {
		return 0, io.EOF
	}
	defer a.p.cond.Broadcast()
	return a.pending.Read(b)
}

func (a *attachment) Write(b []byte) (int, error) {
	a.p.mu.Lock()
	closed := a.closed
	a.p.mu.Unlock()
	if closed {
		return 0, os.ErrClosed
	}
	return a.p.in.Write(b)
}

func (a *attachment) Close() error {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.closed = true
	a.p.users = slices.DeleteFunc(slices.Clone(a.p.users), func(u *attachment) bool { return u == a })
	a.p.cond.Broadcast()
	return nil
}

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
