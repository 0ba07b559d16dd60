package sandbox_test

import (
	"context"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// A handle waits for a background command. Any process can get the handle by the command's ID.
func ExampleSandbox_Start() {
	ctx := context.Background()
	b, err := memory.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	b.On("make test", memory.Answer{Stdout: "ok\n"})
	m, err := session.NewManager(b, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = m.Close(ctx) }()
	s, _, err := m.Open(ctx, session.UserKey("example"), session.Request{Image: "x"})
	if err != nil {
		fmt.Println(err)
		return
	}
	command, err := s.Start(ctx, sandbox.ExecRequest{Command: "make test"})
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := s.Command(command.ID()).Wait(ctx, time.Minute)
	fmt.Printf("%s%s %d %v\n", res.Stdout.Bytes(), res.Status, res.ExitCode, err)
	// Output:
	// ok
	// completed 0 <nil>
}
