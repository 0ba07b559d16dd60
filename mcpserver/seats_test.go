package mcpserver_test

import (
	"context"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/mcpserver"
)

// TestSeatOfAClientThatLeft: a client that goes away while its session begins gives one seat back, not two, and its
// session, whose id nobody knows, ends.
func TestSeatOfAClientThatLeft(t *testing.T) {
	t.Parallel()
	seats := mcpserver.NewSeats(2)
	if _, _, ok := seats.Take(); !ok { // of another session, which goes on
		t.Fatal("no seat")
	}
	for range 3 {
		seated, release, ok := seats.Take()
		if !ok {
			t.Fatal("no seat")
		}
		left := begin(t)
		release() // the request is over before the session has its seat
		seated(left)
		waitEnded(t, left)
		release() // once more changes nothing
		if total, client := seats.Taken(); total != 1 || client != 1 {
			t.Fatalf("%d seats are taken, %d of the client; one is", total, client)
		}
	}
	// The usual order: the session has the seat when the request is over, and gives it back when it ends.
	seated, release, ok := seats.Take()
	if !ok {
		t.Fatal("no seat")
	}
	stays := begin(t)
	seated(stays)
	seated(stays) // a client may shake hands twice
	release()
	if _, _, ok := seats.Take(); ok {
		t.Error("a third seat where there are two")
	}
	if err := stays.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the seat is free", func() bool {
		total, client := seats.Taken()
		return total == 1 && client == 1
	})
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

// begin gives a session of the SDK's with a client that says nothing.
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
