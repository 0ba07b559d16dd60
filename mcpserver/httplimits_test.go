package mcpserver_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
)

// TestPlaces verifies that a session keeps its place until it ends. If a client disconnects while its session starts,
// exactly one place is released, and the session, whose id no client knows, gets none.
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
	done() // a second call has no effect
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

// TestRateOfAddress verifies that requests with invalid tokens count against their address, and do not prevent requests
// with a valid token from the same address.
func TestRateOfAddress(t *testing.T) {
	t.Parallel()
	const good, old = "0123456789abcdef", "0123456789abcdef-old"
	url := serveHTTP(t, newServer(t, newMemoryManager(t), nil), mcpserver.Token{Name: "a", Secret: good},
		mcpserver.Token{Name: "a", Secret: old, Expires: time.Now().Add(-time.Hour)})
	status := func(token string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url, nil)
		checktest.Must(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		checktest.Must(t, err)
		checktest.Must(t, res.Body.Close())
		return res.StatusCode
	}
	for n := 0; status(old) != http.StatusTooManyRequests; n++ {
		if n > 100*mcpserver.DefaultRate {
			t.Fatal("tokens can be guessed without a limit")
		}
	}
	if got := status(good); got == http.StatusTooManyRequests || got == http.StatusUnauthorized {
		t.Errorf("a valid token: %d", got)
	}
}

// TestSharesOfMemory verifies that one client can use a quarter of the memory for bodies, or at least one message, and
// the rest remains for other clients.
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
