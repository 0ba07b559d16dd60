package backendtest

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

func refusalChecks() []check {
	return []check{
		{"specs", (*suite).specs},
		{"images", (*suite).images},
		{"networks and OCI runtimes", (*suite).modes},
	}
}

// specs verifies that invalid specs are rejected before anything is created, and the errors are safe to show to agents.
func (s *suite) specs(t *testing.T) {
	for name, c := range map[string]struct {
		adjust func(*backend.Spec)
		want   error
	}{
		"no id":           {func(s *backend.Spec) { s.ID = "" }, backend.ErrInvalid},
		"id with a slash": {func(s *backend.Spec) { s.ID = "../x" }, backend.ErrInvalid},
		"long id":         {func(s *backend.Spec) { s.ID = strings.Repeat("x", 10_000) }, backend.ErrInvalid},
		"user by name":    {func(s *backend.Spec) { s.User = "root" }, backend.ErrInvalid},
		"negative user":   {func(s *backend.Spec) { s.User = "-1:1" }, backend.ErrInvalid},
		"negative memory": {func(s *backend.Spec) { s.Limits.MemoryBytes = -1 }, backend.ErrInvalid},
		"tiny memory":     {func(s *backend.Spec) { s.Limits.MemoryBytes = 1 << 20 }, backend.ErrInvalid},
		"large /tmp":      {func(s *backend.Spec) { s.Limits.MemoryBytes, s.Limits.TmpBytes = 64<<20, 49<<20 }, backend.ErrInvalid},
		"large /dev/shm":  {func(s *backend.Spec) { s.Limits.ShmBytes = 1 << 40 }, backend.ErrInvalid},
		"host's network":  {func(s *backend.Spec) { s.Network = "host" }, backend.ErrInvalid},
		"OCI runtime":     {func(s *backend.Spec) { s.OCIRuntime = "no-such-runtime" }, backend.ErrUnsupported},
		"platform":        {func(s *backend.Spec) { s.Platform = "linux/s390x" }, backend.ErrUnsupported},
		"reserved label":  {func(s *backend.Spec) { s.Labels = map[string]string{backend.LabelInstance: "x"} }, backend.ErrInvalid},
		"empty label":     {func(s *backend.Spec) { s.Labels = map[string]string{"": "x"} }, backend.ErrInvalid},
		"orphan timeout":  {func(s *backend.Spec) { s.OrphanTimeout = -1 }, backend.ErrInvalid},
		"huge label":      {func(s *backend.Spec) { s.Labels = map[string]string{"x": strings.Repeat("x", 1<<20)} }, backend.ErrTooLarge},
		"root mode":       {func(s *backend.Spec) { s.Root = 7 }, backend.ErrInvalid},
		"pull policy":     {func(s *backend.Spec) { s.Pull = "sometimes" }, backend.ErrInvalid},
		"no image":        {func(s *backend.Spec) { s.Image = "" }, backend.ErrInvalid},
		"malformed image": {func(s *backend.Spec) { s.Image = "UPPER CASE" }, backend.ErrInvalid},
	} {
		spec := s.lone(t)
		c.adjust(&spec)
		err := s.tried(t, spec)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
			continue
		}
		forAgents(t, err)
	}
}

// hostPath matches absolute paths outside of a sandbox.
var hostPath = regexp.MustCompile(`(^|[\s"'(=\[,:])/(bin|dev|etc|home|lib|opt|proc|root|run|sys|tmp|usr|var)/`)

// forAgents fails the test if an error contains information unsuitable for agents.
func forAgents(t testing.TB, err error) {
	t.Helper()
	text := err.Error()
	if hostPath.MatchString(text) || strings.Contains(text, "s3cret") || strings.Contains(text, ".sock") || strings.Contains(text, "goroutine ") {
		t.Errorf("an agent may see this: %s", text)
	}
	if len(text) > 2000 || strings.ContainsAny(text, "\x00\x1b") {
		t.Errorf("an error of %d bytes: %.200q", len(text), text)
	}
}

// images verifies that a missing image fails before a sandbox is created, and nothing is pulled against the pull
// policy.
func (s *suite) images(t *testing.T) {
	for ref, pull := range map[string]backend.PullPolicy{
		"workcelltest/none:none":                                 backend.PullNever,
		"workcelltest/none@sha256:" + strings.Repeat("ab", 32):   backend.PullNever,
		"127.0.0.1:1/workcelltest/none:none":                     backend.PullMissing,
		"127.0.0.1:1/workcelltest/none:always":                   backend.PullAlways,
		"127.0.0.1:1/none@sha256:" + strings.Repeat("ab", 32):    backend.PullMissing,
		"localhost:1/" + strings.Repeat("long/", 20) + "ref:tag": backend.PullNever,
	} {
		spec := s.lone(t)
		spec.Image, spec.Pull = ref, pull
		_, err := s.b.Create(t.Context(), spec)
		if !errors.Is(err, s.noImage()) {
			t.Errorf("%s: %v, want %v", ref, err, s.noImage())
			continue
		}
		forAgents(t, err)
	}
	for ref, want := range map[string]bool{s.h.Debian: true, "docker.io/" + s.h.Python: true, "workcelltest/none": false} {
		id, err := s.b.ImageID(t.Context(), ref)
		if s.h.Cluster { // the images of a cluster are unknown
			Fails(t, fmt.Sprintf("ImageID(%q)", ref), err, backend.ErrUnsupported)
		} else if err != nil || (id != "") != want {
			t.Errorf("ImageID(%q) = %q, %v, want one: %v", ref, id, err, want)
		}
	}
	for _, ref := range []string{"UPPER", "", "a b", "https://x"} {
		Fails(t, fmt.Sprintf("ImageID(%q)", ref), second(s.b.ImageID(t.Context(), ref)), backend.ErrInvalid)
	}
}

// modes verifies all selectable modes. Modes in Capabilities must work, and all others must fail.
func (s *suite) modes(t *testing.T) {
	try := func(what string, can bool, adjust func(*backend.Spec)) {
		t.Helper()
		spec := s.lone(t)
		adjust(&spec)
		info, err := s.b.Create(t.Context(), spec)
		if err == nil {
			if got := Sh(t, s.dial(t, info.ID), "echo alive"); got != "alive\n" {
				t.Errorf("%s: %q", what, got)
			}
			Remove(t, s.b, info.ID)
		}
		if can != (err == nil) || err != nil && !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: %v, supported: %v", what, err, can)
		}
	}
	try("bridge", s.bridges(), func(spec *backend.Spec) { spec.Network = backend.NetworkBridge })
	try("writable root", s.caps.WritableRoot, func(spec *backend.Spec) { spec.Root = backend.RootWritable })
	for _, i := range backend.Isolations() {
		try("isolation "+string(i), s.caps.Isolation[""].AtLeast(i), func(spec *backend.Spec) { spec.Isolation = i })
	}
	for _, r := range s.runnable() {
		try("OCI runtime "+r, true, func(spec *backend.Spec) { spec.OCIRuntime = r })
	}
}

// runnable returns the runtimes for sandboxes on every host with these runtimes.
func (s *suite) runnable() []string {
	var names []string
	for _, r := range s.caps.OCIRuntimes {
		if strings.HasSuffix(r, "runc") {
			names = append(names, r)
		}
	}
	return names
}
