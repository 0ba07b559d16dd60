package session_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// TestConflictNamesFields: a sandbox of another process is told apart from a request field by field, though its engine
// keeps no more than a hash of what it was made for.
func TestConflictNamesFields(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	e := sharing{newEngine(t)}
	opts := shared()
	key := session.UserKey("lab")
	first := newManager(t, e, opts)
	made := session.Request{Image: "test:1", Limits: backend.Limits{MemoryBytes: 64 * mib}}
	s, _, err := first.Open(t.Context(), key, made)
	must(t, err)
	must(t, first.Detach(t.Context()))
	with := func(change func(*session.Request)) session.Request {
		r := made
		change(&r)
		return r
	}
	insist := func(fields []string, r session.Request) session.Request {
		r.AsIs, r.Insist = true, fields
		return r
	}
	other := session.Request{
		Image: "test:2", User: "1234", Root: backend.RootWritable, Runtime: "other", Network: backend.NetworkBridge,
		Env: map[string]string{"A": "b"}, Limits: backend.Limits{PIDs: 77},
	}
	for name, tt := range map[string]struct {
		req  session.Request
		want []string
	}{
		"the same":                    {made, nil},
		"image":                       {with(func(r *session.Request) { r.Image = "test:2" }), []string{"image"}},
		"user":                        {with(func(r *session.Request) { r.User = "1234" }), []string{"user"}},
		"limit":                       {with(func(r *session.Request) { r.Limits.MemoryBytes = 32 * mib }), []string{"limits"}},
		"a limit left out":            {with(func(r *session.Request) { r.Limits.MemoryBytes = 0 }), []string{"limits"}},
		"env":                         {with(func(r *session.Request) { r.Env = map[string]string{"A": "b"} }), []string{"env"}},
		"runtime":                     {with(func(r *session.Request) { r.Runtime = "other" }), []string{"runtime"}},
		"all":                         {other, []string{"image", "user", "root", "env", "limits", "network", "runtime"}},
		"as it is":                    {insist(nil, other), nil},
		"all insisted on":             {insist([]string{"image", "limits", "network"}, other), []string{"image", "limits", "network"}},
		"one limit that is so":        {insist([]string{"limits"}, session.Request{Image: "test:2", Limits: backend.Limits{MemoryBytes: 64 * mib}}), nil},
		"image that is so":            {insist([]string{"image"}, session.Request{Image: "test:1"}), nil},
		"user and runtime that are":   {insist([]string{"user", "root", "runtime"}, session.Request{Image: "test:2"}), nil},
		"runtime that is another one": {insist([]string{"runtime"}, session.Request{Image: "test:2", Runtime: "other"}), []string{"runtime"}},
	} {
		for _, held := range []bool{false, true} { // by this process, which took it as it was
			m := newManager(t, e, opts)
			if held {
				_, _, err := m.Open(t.Context(), key, session.Request{Image: "test:9", AsIs: true})
				must(t, err)
			}
			got, created, err := m.Open(t.Context(), key, tt.req)
			var conflict *session.ConflictError
			switch {
			case tt.want == nil:
				if err != nil || created || got.ID() != s.ID() {
					t.Errorf("%s, held %v: Open = %v, %v", name, held, created, err)
				}
			case !errors.As(err, &conflict) || !errors.Is(err, backend.ErrExists):
				t.Errorf("%s, held %v: Open = %v, want a ConflictError", name, held, err)
			default:
				if diff := cmp.Diff(tt.want, conflict.Fields); diff != "" {
					t.Errorf("%s, held %v: fields (-want +got)\n%s", name, held, diff)
				}
			}
			must(t, m.Detach(t.Context()))
		}
	}
}
