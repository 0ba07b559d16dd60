package session_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

func TestWithDefaults(t *testing.T) {
	t.Parallel()
	base := session.Request{
		Image: "python:3.11-slim", User: "1001:1001", Env: map[string]string{"A": "base", "B": "base"},
		Limits: backend.Limits{MemoryBytes: 1 << 30, PIDs: 64}, Network: backend.NetworkBridge, Retention: time.Hour,
	}
	mine := session.Request{Env: map[string]string{"A": "mine"}, Limits: backend.Limits{PIDs: 128}}
	want := session.Request{
		Image: "python:3.11-slim", User: "1001:1001", Env: map[string]string{"A": "mine", "B": "base"},
		Limits: backend.Limits{MemoryBytes: 1 << 30, PIDs: 128}, Network: backend.NetworkBridge, Retention: time.Hour,
	}
	if diff := cmp.Diff(want, mine.WithDefaults(base), cmpopts.IgnoreUnexported(session.Request{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	writable := session.Request{Root: backend.RootWritable}
	if got := mine.WithDefaults(writable).Root; got != backend.RootWritable {
		t.Errorf("without a wish for the root: %v", got)
	}
	if got := (session.Request{RootSet: true}).WithDefaults(writable).Root; got != backend.RootReadonly {
		t.Errorf("a read-only root was wished for: %v", got)
	}
	low := session.Request{Ceiling: backend.Limits{MemoryBytes: 64 << 20, PIDs: 32}}
	high := session.Request{Ceiling: backend.Limits{MemoryBytes: 128 << 20, CPUMillis: 500}}
	for _, r := range []session.Request{low.WithDefaults(high), high.WithDefaults(low)} {
		if diff := cmp.Diff(backend.Limits{MemoryBytes: 64 << 20, PIDs: 32, CPUMillis: 500}, r.Ceiling); diff != "" {
			t.Errorf("ceiling (-want +got)\n%s", diff)
		}
	}
	if got := base.Env["A"]; got != "base" {
		t.Errorf("the base was changed: %q", got)
	}
}

func TestWithUser(t *testing.T) {
	t.Parallel()
	if got := session.UserFromContext(session.WithUser(t.Context(), "bob")); got != "bob" {
		t.Errorf("the user is %q", got)
	}
}

// TestServicesAreNoNetwork verifies that a base without a network leaves a request its services, and that hosts and
// services are inherited apart from each other.
func TestServicesAreNoNetwork(t *testing.T) {
	t.Parallel()
	hosts, uses := []string{"a.example"}, []sandbox.ServiceUse{{Name: "github"}}
	for _, tt := range []struct{ own, base, want session.Request }{
		{session.Request{Egress: sandbox.Egress{Services: uses}}, session.Request{Network: backend.NetworkNone}, session.Request{Network: backend.NetworkNone, Egress: sandbox.Egress{Services: uses}}},
		{session.Request{Egress: sandbox.Egress{Services: uses}}, session.Request{Egress: sandbox.Egress{Allow: hosts}}, session.Request{Egress: sandbox.Egress{Allow: hosts, Services: uses}}},
		{session.Request{Egress: sandbox.Egress{Allow: hosts}}, session.Request{Egress: sandbox.Egress{Services: uses}}, session.Request{Egress: sandbox.Egress{Allow: hosts, Services: uses}}},
		{session.Request{}, session.Request{Egress: sandbox.Egress{Allow: hosts, Services: uses}}, session.Request{Egress: sandbox.Egress{Allow: hosts, Services: uses}}},
	} {
		if got := tt.own.WithDefaults(tt.base); got.Network != tt.want.Network || !got.Egress.Equal(tt.want.Egress) {
			t.Errorf("%+v: network %q, %+v", tt, got.Network, got.Egress)
		}
	}
}
