//go:build linux

package local_test

import (
	"context"
	"fmt"
	"os"

	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Run untrusted code in your tests. Only Linux is required.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "state-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	b, err := local.New(ctx, &local.Options{StateDir: dir})
	if err != nil {
		fmt.Println(err) // names the missing isolation and how to enable it
		return
	}
	defer b.Close()
	m, err := session.NewManager(b, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close(ctx)
	s, _, err := m.Open(ctx, session.UserKey("example"), session.Request{Image: "host"})
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := s.Exec(ctx, sandbox.ExecRequest{Command: "id -u; ls /sys/class/net 2>/dev/null || echo no network; cat /etc/shadow 2>&1 | wc -l"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", res.Stdout.Head)
	err = m.CloseSession(ctx, session.UserKey("example"), session.CloseOptions{})
	fmt.Println("closed:", err)
	// Output:
	// 1000
	// no network
	// 1
	// closed: <nil>
}
