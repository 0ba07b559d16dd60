package mcpserver_test

import (
	"net/http"
	"testing"

	"github.com/workcell-dev/workcell/mcpserver"
)

// TestPlaces: a session has its place until it ends. A client that goes away while its session begins gives one place
// back, not two, and its session, whose id nobody knows, gets none.
func TestPlaces(t *testing.T) {
	t.Parallel()
	places := mcpserver.NewPlaces(1)
	reserve := func() (bind func() bool, done, give func()) {
		t.Helper()
		bind, done, give, ok := places.Reserve()
		if !ok {
			t.Fatal("no place")
		}
		if _, _, _, ok := places.Reserve(); ok {
			t.Fatal("two places where there is one")
		}
		return bind, done, give
	}
	bind, done, _ := reserve()
	done()
	done() // once more changes nothing
	if bind() {
		t.Error("a session of a client that left has a place")
	}
	bind, done, give := reserve()
	if !bind() {
		t.Error("a session has no place")
	}
	done()
	if _, _, _, ok := places.Reserve(); ok {
		t.Error("the place is free before its session ends")
	}
	give()
	reserve()
}

// TestSharesOfMemory: a client has a quarter of the memory for bodies, but always one message, and what is left to
// others is theirs.
func TestSharesOfMemory(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	take := mcpserver.TakeBytes(20 * mib)
	for _, tc := range []struct {
		client string
		mib    int64
		want   int
	}{
		{"alice", 14, 0}, {"alice", 3, http.StatusTooManyRequests}, {"bob", 3, 0}, {"bob", 7, http.StatusServiceUnavailable}, {"alice", 1, 0},
	} {
		if got := take(tc.client, tc.mib*mib); got != tc.want {
			t.Errorf("%s takes %d MiB: %d, want %d", tc.client, tc.mib, got, tc.want)
		}
	}
}
