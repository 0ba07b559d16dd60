//go:build linux

package session_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// gate is a gateway that records its calls.
type gate struct {
	drops  atomic.Int64
	name   atomic.Value // string: name of the service, instead of egress
	mu     sync.Mutex   // guards events
	events []string
}

func (g *gate) note(event string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events = append(g.events, event)
}

func (g *gate) seen() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.events)
}

func (g *gate) Open(_ string, list sandbox.Egress) (sandbox.Service, func(), error) {
	g.note("open " + strings.Join(list.Allow, " "))
	name, _ := g.name.Load().(string)
	return sandbox.Service{
		Name: cmp.Or(name, "egress"), Handle: func(context.Context, *sandbox.ServiceConn) {},
		Env: func(addr string) map[string]string {
			return map[string]string{"A_PROXY": addr, "B_PROXY": addr, "JAVA_TOOL_OPTIONS": "-Dp"}
		},
	}, func() { g.note("close") }, nil
}

func (g *gate) DropGrants(string) { g.drops.Add(1) }

func (g *gate) Refused(_ string, since time.Time) []sandbox.EgressRefusal {
	return []sandbox.EgressRefusal{{Host: "a.example:443", Rule: time.Since(since).Round(time.Hour).String()}}
}

// TestEgress verifies that a sandbox reaches its recorded hosts only if the process's request has the same hosts.
// Commands get the address of the gateway, and the caller gets the refused hosts.
func TestEgress(t *testing.T) {
	t.Parallel()
	e, g := newEngine(t), &gate{}
	with := *shared()
	with.Egress = g
	key, req := session.UserKey("lab"), session.Request{Image: "test:1", Egress: sandbox.Egress{Allow: []string{"a.example"}}}

	without := newManager(t, e, shared())
	refuses(t, without, key, req, backend.ErrUnsupported)
	first := newManager(t, e, &with)
	for _, bad := range []session.Request{
		{Image: "test:1", Egress: sandbox.Egress{Allow: []string{"https://a.example"}}},
		{Image: "test:1", Egress: req.Egress, Network: backend.NetworkBridge},
	} {
		if _, _, err := first.Open(t.Context(), key, bad); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	own := req
	own.Env = map[string]string{"B_PROXY": "mine"}
	s := openAs(t, first, key, own)
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: `echo "$A_PROXY $B_PROXY"`})
	must(t, err)
	if out := string(res.Stdout.Bytes()); !strings.HasPrefix(out, "127.0.0.1:") || !strings.HasSuffix(out, " mine\n") {
		t.Errorf("the environment has %q", out)
	}
	for own, want := range map[string]string{"": "-Dp\n", "-Xmx1g": "-Dp -Xmx1g\n"} { // both are needed
		req := sandbox.ExecRequest{Command: `echo "$JAVA_TOOL_OPTIONS"`}
		if own != "" {
			req.Env = map[string]string{"JAVA_TOOL_OPTIONS": own}
		}
		got, err := s.Exec(t.Context(), req)
		must(t, err)
		if out := string(got.Stdout.Bytes()); out != want {
			t.Errorf("options of Java: %q, want %q", out, want)
		}
	}
	if len(res.Refused) != 1 || res.Refused[0].Rule != "0s" {
		t.Errorf("refused %+v", res.Refused)
	}
	other := own
	other.Egress = sandbox.Egress{Allow: []string{"b.example"}}
	differs(t, first, key, other, "network")
	must(t, first.Detach(t.Context()))

	second := newManager(t, e, &with)
	s, created, err := second.Open(t.Context(), key, session.Request{Image: "test:1", Mode: session.OpenAsIs})
	must(t, err)
	output(t, s, "true")
	info := s.Info()
	if created || !slices.Equal(info.Egress.Allow, req.Egress.Allow) || g.drops.Load() != 2 || len(g.seen()) != 2 {
		t.Errorf("created %v, made for %v, gateway: %v", created, info.Egress, g.seen())
	}
	_, _, err = second.Open(t.Context(), key, own) // a record alone allows no host
	must(t, err)
	g.name.Store("unknown")
	if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "true"}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("Exec with a service that cannot be served = %v", err)
	}
	if seen := g.seen(); seen[len(seen)-1] != "close" {
		t.Errorf("gateway: %v", seen)
	}
	g.name.Store("")
	output(t, s, "true")
	must(t, s.Close(t.Context()))
	want := slices.Repeat([]string{"open a.example", "close"}, 3)
	eventually(t, "the gateway is closed", func() bool { return slices.Equal(g.seen(), want) })
	if n := g.drops.Load(); n != 3 { // at the end of each owner, and when the second one began
		t.Errorf("additional hosts were dropped %d times", n)
	}
}
