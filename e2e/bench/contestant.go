package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// contestant is a sandbox provider.
type contestant interface {
	name() string
	open(ctx context.Context) (*contender, error)
	close() error
}

// contender is an open sandbox. Functions not offered by the contestant are nil.
type contender struct {
	exec   func() error                   // runs /bin/true
	write  func(size int64) error         // writes a file of this size
	read   func() (size int64, err error) // reads the file
	remove func() error

	session *session.Session // nil for contestants other than Workcell
}

// host runs plain processes on the host. It is the lower bound.
type host struct{}

func (host) name() string { return "host" }
func (host) close() error { return nil }
func (host) open(ctx context.Context) (*contender, error) {
	return &contender{
		exec:   func() error { return exec.CommandContext(ctx, "/bin/true").Run() },
		remove: func() error { return nil },
	}, nil
}

// workcell is one of our drivers, used through package session.
type workcell struct {
	engine  string
	driver  backend.SandboxBackend
	manager *session.Manager
	request session.Request
}

func newWorkcell(engine string, driver backend.SandboxBackend, image string) (*workcell, error) {
	m, err := session.NewManager(driver, &session.Options{IdleTimeout: -1})
	if err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	w := &workcell{engine: engine, driver: driver, manager: m, request: session.Request{Image: image, Pull: backend.PullNever}}
	if driver.Capabilities().CPU { // like the baselines
		w.request.Limits.CPUMillis = int64(runtime.NumCPU()) * 1000
	}
	return w, nil
}

func (w *workcell) name() string { return "workcell_" + w.engine }
func (w *workcell) close() error {
	return errors.Join(w.manager.Close(context.Background()), w.driver.Close())
}

func (w *workcell) open(ctx context.Context) (*contender, error) {
	s, _, err := w.manager.Open(ctx, record.AgentKey(session.NewRunID(), record.DefaultName), w.request)
	if err != nil {
		return nil, err
	}
	return &contender{
		session: s,
		exec: func() error {
			_, err := output(ctx, s, "/bin/true")
			return err
		},
		write: func(size int64) error {
			_, err := s.WriteFile(ctx, "file", io.LimitReader(zeros{}, size), sandbox.WriteFileOptions{Overwrite: true, Size: size})
			return err
		},
		read: func() (int64, error) {
			var n counter
			_, err := s.ReadFile(ctx, "file", &n, sandbox.ReadFileOptions{})
			return int64(n), err
		},
		remove: func() error { return s.Close(context.WithoutCancel(ctx)) },
	}, nil
}

func output(ctx context.Context, s *session.Session, argv ...string) (string, error) {
	res, err := s.Exec(ctx, sandbox.ExecRequest{Argv: argv})
	if err == nil && (res.ExitCode != 0 || res.Status != sandbox.ExecCompleted) {
		err = fmt.Errorf("%v: %s, exit code %d", argv, res.Status, res.ExitCode)
	}
	return string(res.Stdout.Bytes()), err
}

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// zeros reads as endless zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
