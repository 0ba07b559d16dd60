package mcpserver_test

import (
	"context"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/mcpserver"
)

// TestReservationOfAClientThatLeft: a client that goes away while its session begins gives one place back, not two, and
// its session, whose id nobody knows, ends.
func TestReservationOfAClientThatLeft(t *testing.T) {
	t.Parallel()
	l := mcpserver.NewSessionLimiter(2)
	reserve := func() (bind func(*mcp.ServerSession), done func()) {
		t.Helper()
		bind, done, ok := l.Reserve()
		if !ok {
			t.Fatal("no place")
		}
		return bind, done
	}
	reserve() // of another session, which stays
	for range 3 {
		bind, done := reserve()
		left := begin(t)
		done() // the request is over before the session has its place
		bind(left)
		waitEnded(t, left)
		done() // once more changes nothing
		if n := l.Taken(); n != 1 {
			t.Fatalf("%d places are taken; one is", n)
		}
	}
	// The usual order: the session has the place when the request is over, and gives it back when it ends.
	bind, done := reserve()
	stays := begin(t)
	bind(stays)
	bind(stays) // a client may shake hands twice
	done()
	if _, _, ok := l.Reserve(); ok {
		t.Error("a third place where there are two")
	}
	if err := stays.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the place is free", func() bool { return l.Taken() == 1 })
}

// waitEnded waits until a session that nobody closes has ended.
func waitEnded(t *testing.T, ss *mcp.ServerSession) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = ss.Wait() // how it ended changes nothing
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the session does not end")
	}
}

// begin returns a session of the SDK's with a client that says nothing.
func begin(t *testing.T) *mcp.ServerSession {
	t.Helper()
	ours, theirs := mcp.NewInMemoryTransports()
	client, err := theirs.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // the other end may have closed it
	ss, err := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(context.Background(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ss
}
