package sandbox_test

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
)

func settings() sandbox.Settings {
	return sandbox.Settings{
		Backend: "docker", Isolation: "kernel", OCIRuntime: "runsc", Image: "python:3.11-slim", User: "1000:1000", WritableRoot: true,
		Limits:  backend.Limits{CPUMillis: 1000, MemoryBytes: 1 << 40, PIDs: 256},
		Network: "none", Egress: sandbox.Egress{Allow: []string{"b.example", "a.example:443"}, Deny: []string{"<x>&y"}},
		Mounts:      []backend.Mount{{Source: "/srv/b", Target: "/b", Writable: true}, {Source: "/srv/a", Target: "/a"}},
		Environment: rules.Environment{Pip: []string{"requests>=2"}}, Tools: "ab12",
	}
}

// TestSettingsDigest pins the canonical form, because auditors compare digests of different versions of Workcell.
func TestSettingsDigest(t *testing.T) {
	t.Parallel()
	const canonical = `{"backend":"docker","egress":{"allow":["a.example:443","b.example"],"deny":["<x>&y"]},"environment":{"pip":["requests>=2"]},` +
		`"image":"python:3.11-slim","isolation":"kernel","limits":{"cpu_millicores":1000,"memory_bytes":1099511627776,"pids":256},` +
		`"mounts":[{"source":"/srv/a","target":"/a"},{"source":"/srv/b","target":"/b","writable":true}],"network":"none","oci_runtime":"runsc",` +
		`"tools":"ab12","user":"1000:1000","writable_root":true}`
	s := settings()
	if got := string(s.Canonical()); got != canonical {
		t.Errorf("canonical form\n%s, want\n%s", got, canonical)
	}
	if got := s.Digest(); got != fmt.Sprintf("%x", sha256.Sum256([]byte(canonical))) {
		t.Error("the digest is not the SHA-256 of the canonical form")
	}
	if e := s.Evidence(); e.Policy != s.Digest()[:12] || e.Isolation != "kernel" || e.Backend != "docker" {
		t.Errorf("%+v", e)
	}
	other := settings()
	other.Egress.Allow[0], other.Egress.Allow[1] = other.Egress.Allow[1], other.Egress.Allow[0]
	other.Mounts[0], other.Mounts[1] = other.Mounts[1], other.Mounts[0]
	if other.Digest() != s.Digest() {
		t.Error("the order of hosts and mounts changes the digest")
	}
	if s.Egress.Allow[0] != "b.example" {
		t.Error("the settings were changed")
	}
}

// TestEachSettingCounts verifies that the digest differs if a single setting differs.
func TestEachSettingCounts(t *testing.T) {
	t.Parallel()
	seen := map[string]string{settings().Digest(): "nothing"}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[sandbox.Settings]()) {
		s := settings()
		reflect.ValueOf(&s).Elem().FieldByIndex(f.Index).SetZero()
		if same, ok := seen[s.Digest()]; ok {
			t.Errorf("without %s the digest is that without %s", f.Name, same)
		}
		seen[s.Digest()] = f.Name
	}
	for _, row := range backend.LimitTable() {
		s := settings()
		if *row.Of(&s.Limits)++; seen[s.Digest()] != "" {
			t.Errorf("%s does not count", row.Name)
		}
		seen[s.Digest()] = row.Name
	}
}
