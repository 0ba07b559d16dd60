//go:build linux

package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestConflictNamesFields verifies that Open compares a request field by field with the recorded sandbox of
// another process.
func TestConflictNamesFields(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	e, opts := newEngine(t), shared()
	key := session.UserKey("lab")
	first := newManager(t, e, opts)
	made := session.Request{Image: "test:1", Limits: backend.Limits{MemoryBytes: 64 * mib}}
	s := openAs(t, first, key, made)
	must(t, first.Detach(t.Context()))
	with := func(change func(*session.Request)) session.Request {
		r := made
		change(&r)
		return r
	}
	asIs := func(fields []string, r session.Request) session.Request {
		r.Mode, r.Match = session.OpenAsIs, fields
		return r
	}
	other := session.Request{
		Image: "test:2", User: "1234", Root: backend.RootWritable, OCIRuntime: "other", Network: backend.NetworkBridge,
		Env: map[string]string{"A": "b"}, Limits: backend.Limits{PIDs: 77},
	}
	for name, tt := range map[string]struct {
		req  session.Request
		want []string
	}{
		"the same":                  {made, nil},
		"image":                     {with(func(r *session.Request) { r.Image = "test:2" }), []string{"image"}},
		"limit":                     {with(func(r *session.Request) { r.Limits.MemoryBytes = 32 * mib }), []string{"limits"}},
		"a limit left out":          {with(func(r *session.Request) { r.Limits.MemoryBytes = 0 }), []string{"limits"}},
		"all":                       {other, []string{"image", "user", "root", "env", "limits", "network", "oci_runtime"}},
		"as it is":                  {asIs(nil, other), nil},
		"all must match":            {asIs([]string{"image", "limits", "network"}, other), []string{"image", "limits", "network"}},
		"one limit that is so":      {asIs([]string{"limits"}, session.Request{Image: "test:2", Limits: backend.Limits{MemoryBytes: 64 * mib}}), nil},
		"image that is so":          {asIs([]string{"image"}, session.Request{Image: "test:1"}), nil},
		"user and runtime that are": {asIs([]string{"user", "root", "oci_runtime"}, session.Request{Image: "test:2"}), nil},
		"another OCI runtime":       {asIs([]string{"oci_runtime"}, session.Request{Image: "test:2", OCIRuntime: "other"}), []string{"oci_runtime"}},
	} {
		for held, first := range map[string]session.Request{ // request with which this process has already opened the key
			"no": {}, "as it was": {Image: "test:9", Mode: session.OpenAsIs}, "as asked": made,
		} {
			m := newManager(t, e, opts)
			if first.Image != "" {
				openAs(t, m, key, first)
			}
			got, created, err := m.Open(t.Context(), key, tt.req)
			var conflict *session.ConflictError
			switch {
			case tt.want == nil:
				if err != nil || created || got.ID() != s.ID() {
					t.Errorf("%s, held %s: Open = %v, %v", name, held, created, err)
				}
			case !errors.As(err, &conflict) || !errors.Is(err, backend.ErrExists):
				t.Errorf("%s, held %s: Open = %v, want a ConflictError", name, held, err)
			default:
				if diff := cmp.Diff(tt.want, conflict.Fields); diff != "" {
					t.Errorf("%s, held %s: fields (-want +got)\n%s", name, held, diff)
				}
			}
			must(t, m.Detach(t.Context()))
		}
	}
}

// TestConflictWithoutRecord verifies that a sandbox without a record is compared by the engine's description and its
// hash.
func TestConflictWithoutRecord(t *testing.T) {
	t.Parallel()
	key := session.UserKey("lab")
	made := session.Request{Image: "test:1", Limits: backend.Limits{PIDs: 64}, Env: map[string]string{"A": "b"}}
	for name, tt := range map[string]struct {
		change func(*session.Request)
		want   []string
	}{
		"the same":   {func(*session.Request) {}, nil},
		"user":       {func(r *session.Request) { r.User = "1234" }, []string{"user"}},
		"limits":     {func(r *session.Request) { r.Limits.PIDs = 65 }, []string{"limits"}},
		"env":        {func(r *session.Request) { r.Env = nil }, []string{"request"}},
		"as it is":   {func(r *session.Request) { r.Image, r.Mode = "test:2", session.OpenAsIs }, nil},
		"must match": {func(r *session.Request) { r.Image, r.Mode, r.Match = "test:2", session.OpenAsIs, []string{"image"} }, []string{"image"}},
		"matches":    {func(r *session.Request) { r.User, r.Mode, r.Match = "1234", session.OpenAsIs, []string{"image"} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			m := newManager(t, e, opts)
			s := openAs(t, m, key, made)
			must(t, m.Detach(t.Context()))
			must(t, opts.Store.Delete(t.Context(), s.ID()))
			req := made
			tt.change(&req)
			_, _, err := newManager(t, e, opts).Open(t.Context(), key, req)
			var conflict *session.ConflictError
			if got := errors.As(err, &conflict); got != (tt.want != nil) || !got && err != nil {
				t.Fatalf("Open: %v, want a difference in %q", err, tt.want)
			}
			if conflict != nil {
				if diff := cmp.Diff(tt.want, conflict.Fields); diff != "" {
					t.Errorf("fields (-want +got)\n%s", diff)
				}
			}
		})
	}
}

// onlyTest allows images named test.
type onlyTest struct{}

func (onlyTest) Check(ref string) error {
	if !strings.HasPrefix(ref, "test:") {
		return backend.ErrPermission
	}
	return nil
}

// TestVanishedAsItWas verifies that a lost sandbox is recreated as recorded, except for the fields in Match. A record
// alone never decides the mounts, OCI runtime, network, image, or user.
func TestVanishedAsItWas(t *testing.T) {
	t.Parallel()
	const mounted, weak = `{"mounts":[{"source":"/srv/data","target":"/data","writable":true}],`, `{"oci_runtime":"weak",`
	mounts := []backend.Mount{{Source: "/srv/data", Target: "/data", Writable: true}}
	type request = session.Request
	for name, tt := range map[string]struct {
		part, forged string // fields of the record
		req          session.Request
		defaults     session.Defaults
		want         error
		field        string // field of the ConflictError
	}{
		"as it was":               {req: request{Image: "test:2"}},
		"must match, and does":    {req: request{Match: []string{"image"}}},
		"must match":              {req: request{Image: "test:2", Match: []string{"image"}}, want: backend.ErrExists, field: "image"},
		"kept, must match":        {req: request{Match: []string{"limits"}, Limits: backend.Limits{PIDs: 65}}},
		"mounts":                  {part: `{`, forged: mounted, want: backend.ErrExists, field: "mounts"},
		"mounts, asked":           {part: `{`, forged: mounted, req: request{Mounts: mounts}},
		"mounts, by default":      {part: `{`, forged: mounted, defaults: session.Defaults{Mounts: mounts}},
		"runtime":                 {part: `{`, forged: weak, defaults: session.Defaults{OCIRuntime: "strong"}, want: backend.ErrExists, field: "oci_runtime"},
		"runtime, asked":          {part: `{`, forged: weak, req: request{OCIRuntime: "weak"}},
		"network":                 {part: `"none"`, forged: `"bridge"`, want: backend.ErrExists, field: "network"},
		"network, asked":          {part: `"none"`, forged: `"bridge"`, req: request{Network: backend.NetworkBridge}},
		"kept, network of a run":  {part: `"none"`, forged: `"bridge"`},
		"kept, hosts of a run":    {part: `{`, forged: `{"egress":{"allow":["a.example"]},`},
		"hosts":                   {part: `{`, forged: `{"egress":{"allow":["a.example"]},`, want: backend.ErrExists, field: "network"},
		"image that is forbidden": {part: `"test:1"`, forged: `"evil:1"`, want: backend.ErrPermission},
		"user that is forbidden":  {part: backend.DefaultUser, forged: "0:0", want: backend.ErrPermission},
		"id that no sandbox has":  {forged: "sbx_../../x", want: backend.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opts, key := newEngine(t), shared(), session.UserKey("lab")
			if strings.HasSuffix(name, "of a run") {
				key = session.Key{Namespace: record.NamespaceWorkflow, ID: "r", Name: "a"}
			}
			opts.Egress = &gate{}
			m := newManager(t, e, opts)
			s := openAs(t, m, key, session.Request{Image: "test:1", Limits: backend.Limits{PIDs: 64}})
			must(t, m.Detach(t.Context()))
			e.remove(s.Info().EngineID)
			rec := recordOf(t, opts.Store, s.ID())
			must(t, opts.Store.Delete(t.Context(), rec.ID))
			rec.Request, rec.KeepWorkspace = strings.Replace(rec.Request, tt.part, tt.forged, len(tt.part)), strings.HasPrefix(name, "kept")
			if strings.HasPrefix(tt.forged, "sbx_") {
				rec.ID = tt.forged
			}
			must(t, opts.Store.Insert(t.Context(), rec))
			var made backend.Spec
			e.setHooks(func(_ context.Context, spec backend.Spec) error { made = spec; return nil }, nil, nil)
			opts.Images, opts.Defaults = onlyTest{}, tt.defaults
			if tt.req.Mode = session.OpenAsIs; tt.req.Image == "" {
				tt.req.Image = "test:1"
			}
			again, created, err := newManager(t, e, opts).Open(t.Context(), key, tt.req)
			var conflict *session.ConflictError
			if !errors.Is(err, tt.want) || errors.As(err, &conflict) && (conflict.Fields[0] != tt.field || !conflict.Gone) {
				t.Fatalf("Open = %v, want %v, %s", err, tt.want, tt.field)
			}
			if tt.want != nil {
				if made.ID != "" {
					t.Errorf("made %+v", made)
				}
				return
			}
			want := backend.Limits{PIDs: max(tt.req.Limits.PIDs, 64)}
			if created || again.ID() != s.ID() || made.Image != "test:1" || made.Limits != want || len(made.Mounts) != strings.Count(tt.forged, "source") ||
				(made.OCIRuntime == "weak") != (tt.forged == weak) ||
				(made.Network == backend.NetworkBridge) != (tt.req.Network == backend.NetworkBridge) || !again.Info().Egress.IsZero() {
				t.Errorf("created %v as %+v", created, made)
			}
		})
	}
}
