package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// The program opens a named sandbox and a run's sandbox. It uses the fifteen names that most programs need.
func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// a
	// b
	// exit code 3
	// begun
	// killed
}

func example(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "state-")
	if err != nil {
		return err
	}
	driver, err := local.New(ctx, &local.Options{StateDir: dir}) // or docker.New(ctx, nil)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() { err = errors.Join(err, driver.Close(), os.RemoveAll(dir)) }()
	manager, err := session.NewManager(driver, &session.Options{MaxSandboxes: 4})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, manager.Close(ctx)) }() // removes the sandboxes
	if err := sortFile(ctx, manager); err != nil {
		return err
	}
	return startCommand(ctx, manager)
}

// sortFile runs a command in a named sandbox. The exit code of a command is a result, not an error.
func sortFile(ctx context.Context, manager *session.Manager) error {
	s, _, err := manager.Open(ctx, session.UserKey("example"), session.Request{Image: "host"})
	if err != nil {
		return err
	}
	if _, err := s.WriteFile(ctx, "in.txt", strings.NewReader("b\na\n"), sandbox.WriteFileOptions{}); err != nil {
		return err
	}
	res, err := s.Exec(ctx, sandbox.ExecRequest{Command: "sort in.txt >out.txt; exit 3"})
	if err != nil {
		return err
	}
	if _, err := s.ReadFile(ctx, "out.txt", os.Stdout, sandbox.ReadFileOptions{}); err != nil {
		return err
	}
	fmt.Println("exit code", res.ExitCode)
	return nil
}

// startCommand starts a command in a run's sandbox and closes all sandboxes of the run.
func startCommand(ctx context.Context, manager *session.Manager) (err error) {
	run := session.Run{Namespace: record.NamespaceWorkflow, ID: session.NewRunID()}
	ctx = session.WithRun(ctx, run) // for tools, which use the run's sandboxes
	defer func() { err = errors.Join(err, manager.CloseScope(ctx, run.Scope())) }()
	var s *session.Session
	if s, _, err = manager.Open(ctx, session.WorkflowKey(run.ID, "default"), session.Request{Image: "host"}); err != nil {
		return err
	}
	command, err := s.Start(ctx, sandbox.ExecRequest{Command: "echo begun; sleep 1000"})
	if err != nil {
		return err
	}
	output, err := command.Read(ctx, sandbox.ReadRequest{Wait: time.Minute})
	if err != nil {
		return err
	}
	for _, chunk := range output.Chunks {
		fmt.Printf("%s", chunk.Data)
	}
	status, err := command.Signal(ctx, "")
	fmt.Println(status.Status)
	return err
}
