package backend_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
)

const (
	digestA = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	digestB = "sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
)

func TestNormalizeImage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"python", "docker.io/library/python:latest"},
		{"python:latest", "docker.io/library/python:latest"},
		{"library/python", "docker.io/library/python:latest"},
		{"docker.io/python", "docker.io/library/python:latest"},
		{"index.docker.io/library/python:latest", "docker.io/library/python:latest"},
		{"ghcr.io/acme/app:1", "ghcr.io/acme/app:1"},
		{"localhost:5000/app", "localhost:5000/app:latest"},
		{"python@" + digestA, "docker.io/library/python@" + digestA},
		{"python:3.11@" + digestA, "docker.io/library/python@" + digestA},
	} {
		got, err := backend.NormalizeImage(c.in)
		if err != nil || got != c.want {
			t.Errorf("NormalizeImage(%q) = %q, %v, want %q", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"", "PYTHON", "python:", "python tag", "-x", "a//b", "python@sha256:12", "../x", "x\x00y", strings.Repeat("a/", 300) + "b"} {
		if got, err := backend.NormalizeImage(in); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("NormalizeImage(%q) = %q, %v, want ErrInvalid", in, got, err)
		}
	}
}

func TestImagePolicy(t *testing.T) {
	t.Parallel()
	cases := []struct {
		pattern string
		allowed []string
		refused []string
	}{
		{
			"python",
			[]string{"python", "docker.io/library/python:latest", "library/python", "index.docker.io/library/python"},
			[]string{"PYTHON", "Python", "python:3.11", "evil/python", "docker.io/evil/python", "ghcr.io/library/python", "python@" + digestA, "python:latest@" + digestA, "pythonx", "localhost/python"},
		},
		{"python:3.*", []string{"python:3.11", "python:3.12-slim"}, []string{"python", "python:2.7", "python:3", "python:3.11@" + digestA}},
		{"python:*", []string{"python", "python:3.11", "python@" + digestA}, []string{"python2:1", "evil/python:1"}},
		{"python@" + digestA, []string{"python@" + digestA, "python:3.11@" + digestA}, []string{"python", "python@" + digestB, "python:3.11"}},
		{
			"ghcr.io/acme/*",
			[]string{"ghcr.io/acme/app", "ghcr.io/acme/app:9", "ghcr.io/acme/app@" + digestB},
			[]string{"ghcr.io/acme/team/app", "ghcr.io/acmeevil/app", "acme/app", "ghcr.io.evil.com/acme/app", "ghcr.io:443/acme/app", "GHCR.IO/acme/app"},
		},
		{"ghcr.io/acme/**", []string{"ghcr.io/acme/app", "ghcr.io/acme/team/app:1"}, []string{"ghcr.io/acme", "ghcr.io/acmes/app"}},
		{"ghcr.io/acme/*:stable", []string{"ghcr.io/acme/app:stable"}, []string{"ghcr.io/acme/app", "ghcr.io/acme/app@" + digestA}},
		{"localhost:5000/*", []string{"localhost:5000/app:1"}, []string{"localhost/app", "app:5000"}},
		{"acme/*", []string{"acme/app", "docker.io/acme/app:1"}, []string{"ghcr.io/acme/app"}},
	}
	for _, c := range cases {
		p, err := backend.NewImagePolicy(c.pattern)
		if err != nil {
			t.Fatalf("NewImagePolicy(%q): %v", c.pattern, err)
		}
		for _, ref := range c.allowed {
			if err := p.Check(ref); err != nil {
				t.Errorf("%q refuses %q: %v", c.pattern, ref, err)
			}
		}
		for _, ref := range append(c.refused, "", "a b", "x\n"+c.pattern) {
			if err := p.Check(ref); !errors.Is(err, backend.ErrPermission) {
				t.Errorf("%q on %q: %v, want ErrPermission", c.pattern, ref, err)
			}
		}
	}
}

func TestImagePolicyEdges(t *testing.T) {
	t.Parallel()
	var everything *backend.ImagePolicy
	if err := everything.Check("any/thing:1"); err != nil {
		t.Errorf("nil policy: %v", err)
	}
	nothing, err := backend.NewImagePolicy()
	checktest.Must(t, err)
	if err := nothing.Check("python"); !errors.Is(err, backend.ErrPermission) {
		t.Errorf("empty policy: %v, want ErrPermission", err)
	}
	for _, bad := range []string{"", "PYTHON", "*.io/acme/app", "ghcr*.io/acme/app", "python:", "py[a]thon", "a/**/b", "a**", "python@sha256:*", "acme/*:"} {
		if p, err := backend.NewImagePolicy(bad); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("NewImagePolicy(%q) = %v, %v, want ErrInvalid", bad, p, err)
		}
	}
}

// TestImageErrorsHoldNoPassword verifies that errors about references in URL form contain no password.
func TestImageErrorsHoldNoPassword(t *testing.T) {
	t.Parallel()
	p, err := backend.NewImagePolicy("python")
	checktest.Must(t, err)
	for _, ref := range []string{"https://joe:s3cret@registry.example.com/app", "joe:s3cret@registry.example.com/app", "joe:S3cret@x/y", "docker://u:s3cret@h/x"} {
		_, err := backend.NormalizeImage(ref)
		for _, err := range []error{err, p.Check(ref)} {
			if err == nil || strings.Contains(strings.ToLower(err.Error()), "s3cret") {
				t.Errorf("%q: %v", ref, err)
			}
		}
	}
}

func FuzzImagePolicy(f *testing.F) {
	for _, s := range []string{"python", "PYTHON", "python:*", "ghcr.io/acme/*", "a/**", "python@" + digestA, "*"} {
		f.Add(s, "docker.io/library/python:latest")
	}
	f.Fuzz(func(t *testing.T, pattern, ref string) {
		p, err := backend.NewImagePolicy(pattern)
		if err != nil {
			return
		}
		full, err := backend.NormalizeImage(ref)
		if err != nil {
			if p.Check(ref) == nil {
				t.Fatalf("%q allows the malformed %q", pattern, ref)
			}
			return
		}
		if (p.Check(ref) == nil) != (p.Check(full) == nil) {
			t.Fatalf("%q judges %q and %q differently", pattern, ref, full)
		}
	})
}
