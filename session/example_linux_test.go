package session_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// newLocal returns a manager on the local backend, which needs no engine and no image. close removes its sandboxes.
func newLocal(ctx context.Context) (m *session.Manager, close func(), err error) {
	dir, err := os.MkdirTemp("", "state-")
	if err != nil {
		return nil, nil, err
	}
	b, err := local.New(ctx, &local.Options{StateDir: dir})
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	if m, err = session.NewManager(b, nil); err != nil {
		return nil, nil, errors.Join(err, b.Close(), os.RemoveAll(dir))
	}
	return m, func() {
		if err := errors.Join(m.Close(ctx), b.Close(), os.RemoveAll(dir)); err != nil {
			log.Print(err)
		}
	}, nil
}

// Closing the scope of a run removes all its sandboxes, however many callers have opened them.
func ExampleManager_CloseScope() {
	ctx := context.Background()
	m, done, err := newLocal(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer done()
	run := session.Run{Namespace: record.NamespaceWorkflow, ID: session.NewRunID()}
	key := run.Key(record.DefaultName)
	for range 2 {
		_, created, err := m.Open(ctx, key, session.Request{Image: "host"})
		fmt.Println("created:", created, err)
	}
	fmt.Println("closed:", m.CloseScope(ctx, run.Scope()))
	_, err = m.Get(key)
	fmt.Println("there:", !errors.Is(err, backend.ErrNotFound))
	// Output:
	// created: true <nil>
	// created: false <nil>
	// closed: <nil>
	// there: false
}

// EditFile does not overwrite concurrent changes. If another program changes the file, EditFile calls the function
// again with the new contents.
func ExampleSession_EditFile() {
	ctx := context.Background()
	m, done, err := newLocal(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer done()
	s, _, err := m.Open(ctx, session.UserKey("example"), session.Request{Image: "host"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := s.WriteFile(ctx, "log", strings.NewReader("one\n"), sandbox.WriteFileOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	calls := 0
	_, err = s.EditFile(ctx, "log", 0, func(old []byte) ([]byte, error) {
		if calls++; calls == 1 { // another program changes the file
			if _, err := s.Exec(ctx, sandbox.ExecRequest{Command: "echo two >>log"}); err != nil {
				return nil, err
			}
		}
		return append(old, "three\n"...), nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	data, _, err := s.ReadFileBytes(ctx, "log", sandbox.ReadFileOptions{})
	fmt.Printf("%s%d calls, %v\n", data, calls, err)
	// Output:
	// one
	// two
	// three
	// 2 calls, <nil>
}
