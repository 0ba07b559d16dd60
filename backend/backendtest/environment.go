package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

func environmentChecks() []check {
	var all []check
	for name, test := range map[string]func(*suite, *testing.T){
		"kept": (*suite).environmentKept, "others": (*suite).environmentOthers, "refused": (*suite).environmentRefused,
		"killed while committing": (*suite).committerKilled,
	} {
		all = append(all, check{name, func(s *suite, t *testing.T) {
			if s.keeps(t) {
				test(s, t)
			}
		}})
	}
	return all
}

// recipe identifies the environment of these tests.
const recipe = "00112233445566778899aabbccddeeff"

// keeps reports whether the driver supports environments. If not, it expects an error of the driver.
func (s *suite) keeps(t *testing.T) bool {
	t.Helper()
	if !s.h.Cluster {
		return true
	}
	spec := s.lone(t)
	spec.Environment = recipe
	Fails(t, "an environment", s.tried(t, spec), backend.ErrUnsupported)
	return false
}

// installed returns the spec of a sandbox with an environment, in a separate instance. The end of the test removes all
// environments of the instance.
func (s *suite) installed(t *testing.T) backend.Spec {
	t.Helper()
	spec := s.lone(t)
	spec.Environment = recipe
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		list, err := s.b.Environments(ctx, spec.Instance)
		must(t, err)
		for _, e := range list {
			must(t, s.b.RemoveEnvironment(ctx, spec.Instance, e.Name))
		}
		if list, err = s.b.Environments(ctx, spec.Instance); err != nil || len(list) != 0 {
			t.Errorf("environments stay: %+v, %v", list, err)
		}
	})
	return spec
}

// another returns a spec with the same settings for another sandbox.
func another(spec backend.Spec) backend.Spec {
	next := Spec(spec.Instance, spec.Image)
	next.Environment, next.Building, next.User = spec.Environment, spec.Building, spec.User
	return next
}

// installing creates a sandbox to install the environment of spec in, and runs a shell command in it.
func (s *suite) installing(t *testing.T, b backend.SandboxBackend, spec backend.Spec, line string) string {
	t.Helper()
	spec = another(spec)
	spec.Building = true
	info, err := b.Create(t.Context(), spec)
	must(t, err)
	t.Cleanup(func() { Remove(t, s.b, info.ID) })
	Sh(t, Dial(t, b, info.ID), line)
	return info.ID
}

// install is a shell command to install a program, and a file only readable for the owner.
const install = "umask 077; mkdir bin && cd /opt/workcell && mkdir bin node_modules && printf '#!/bin/sh\\necho it runs\\n' > bin/it && chmod 700 bin/it && " +
	"echo module > node_modules/m && ln -s /etc/passwd node_modules/l && mkfifo p && mkdir \"$(printf '\\377')\"; echo secret > /workspace/x; echo secret > /tmp/x"

// environmentKept verifies that an installed environment is available to every sandbox of the same image, user, and
// instance.
func (s *suite) environmentKept(t *testing.T) {
	spec := s.installed(t)
	missing := func() {
		t.Helper()
		Fails(t, "Create", s.tried(t, another(spec)), backend.ErrEnvironment)
	}
	missing()
	first, second := s.installing(t, s.b, spec, install), s.installing(t, s.b, spec, install)
	missing()
	for _, id := range []string{first, second} { // the first environment is kept
		must(t, s.b.CommitEnvironment(t.Context(), id))
		Remove(t, s.b, id)
	}
	list, err := s.b.Environments(t.Context(), spec.Instance)
	if err != nil || len(list) != 1 || list[0].Recipe != recipe || list[0].Image == "" || time.Since(list[0].Created) > patience*2 {
		t.Fatalf("Environments: %+v, %v", list, err)
	}
	info := s.create(t, another(spec))
	conn := s.dial(t, info.ID)
	got := Sh(t, conn, "/opt/workcell/bin/it; cat /node_modules/m; ls -A /workspace /tmp; touch /opt/workcell/x 2>/dev/null || echo readonly")
	if got != "it runs\nmodule\n/tmp:\n\n/workspace:\nreadonly\n" {
		t.Errorf("with the environment: %q", got)
	}
	again, err := s.b.Get(t.Context(), info.ID)
	plain := s.create(t, Spec(spec.Instance, spec.Image))
	if err != nil || !slices.Equal(info.ImageEnv, plain.ImageEnv) || !slices.Equal(again.ImageEnv, plain.ImageEnv) || again.Image != plain.Image || again.ImageID != plain.ImageID || again.Root != plain.Root {
		t.Errorf("%+v, later %+v, %v; without an environment %+v", info, again, err, plain)
	}
	remove := func() error { return s.b.RemoveEnvironment(t.Context(), spec.Instance, list[0].Name) }
	Fails(t, "removing what a sandbox has", remove(), backend.ErrExists)
	must(t, s.b.Stop(t.Context(), info.ID))
	Fails(t, "removing what a stopped sandbox has", remove(), backend.ErrExists)
	must(t, s.b.Start(t.Context(), info.ID))
	Prints(t, s.dial(t, info.ID), "/opt/workcell/bin/it", "it runs\n")
	Remove(t, s.b, info.ID)
	must(t, remove())
	missing()
}

// environmentOthers verifies that sandboxes with another user, recipe, or instance cannot use the environment.
func (s *suite) environmentOthers(t *testing.T) {
	spec := s.installed(t)
	must(t, s.b.CommitEnvironment(t.Context(), s.installing(t, s.b, spec, install)))
	list, err := s.b.Environments(t.Context(), spec.Instance)
	if err != nil || len(list) != 1 {
		t.Fatalf("Environments: %+v, %v", list, err)
	}
	stranger := freshInstance()
	for name, adjust := range map[string]func(*backend.Spec){
		"user":     func(s *backend.Spec) { s.User = "1001:1001" },
		"recipe":   func(s *backend.Spec) { s.Environment = strings.Repeat("0", 64) },
		"instance": func(s *backend.Spec) { s.Instance = stranger },
	} {
		other := another(spec)
		adjust(&other)
		Fails(t, "another "+name, s.tried(t, other), backend.ErrEnvironment)
	}
	if theirs, err := s.b.Environments(t.Context(), stranger); err != nil || len(theirs) != 0 {
		t.Errorf("another instance has %+v, %v", theirs, err)
	}
	Fails(t, "removing another instance's", s.b.RemoveEnvironment(t.Context(), stranger, list[0].Name), backend.ErrExists)
	for _, name := range []string{"", "..", "../sandboxes", "x", strings.Repeat("0", 32)} {
		if err := s.b.RemoveEnvironment(t.Context(), spec.Instance, name); err != nil && !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("removing %q: %v", name, err)
		}
	}
	if list, err := s.b.Environments(t.Context(), spec.Instance); err != nil || len(list) != 1 {
		t.Errorf("Environments: %+v, %v", list, err)
	}
}

// environmentRefused verifies that invalid environments are rejected.
func (s *suite) environmentRefused(t *testing.T) {
	for _, bad := range []string{"x", "../../../../../../../../../../../etc", strings.Repeat("0", 31), strings.Repeat("0", 65), strings.Repeat("A", 32)} {
		spec := s.lone(t)
		spec.Environment = bad
		Fails(t, "recipe "+bad, s.tried(t, spec), backend.ErrInvalid)
	}
	spec := s.installed(t)
	info := s.create(t, Spec(spec.Instance, spec.Image))
	Fails(t, "an ordinary sandbox", s.b.CommitEnvironment(t.Context(), info.ID), backend.ErrInvalid)
	Prints(t, s.dial(t, info.ID), "echo on", "on\n")
	Fails(t, "no sandbox", s.b.CommitEnvironment(t.Context(), "nothing"), backend.ErrNotFound)
	// The sandbox owns the install directory, so it can replace the directory with a link.
	id := s.installing(t, s.b, spec, "cd /workspace; mv .environment away 2>/dev/null && ln -s /etc .environment; true")
	if err := s.b.CommitEnvironment(t.Context(), id); err == nil {
		if got := Sh(t, s.dial(t, s.create(t, another(spec)).ID), "ls -A /opt/workcell"); got != "" {
			t.Errorf("it became what the sandbox made a link to: %q", got)
		}
	}
}

// files is the number of files in the environment. It is large to allow a kill during the commit.
const files = 400

// committerKilled verifies that the environment is complete or does not exist after a process was killed during the
// commit, at different steps.
func (s *suite) committerKilled(t *testing.T) {
	line := fmt.Sprintf("cd /opt/workcell; i=0; while [ $i -lt %d ]; do echo $i > $i; i=$((i+1)); done", files)
	trial := s.installing(t, s.b, s.installed(t), line)
	begin := time.Now()
	must(t, s.b.CommitEnvironment(t.Context(), trial))
	took := time.Since(begin)
	const steps = 6
	for i := range steps {
		t.Run(fmt.Sprintf("%d of %d", i+1, steps), func(t *testing.T) {
			spec := s.installed(t)
			id := s.installing(t, s.b, spec, line)
			committer := s.spawn(t, "committer", backend.Spec{Instance: spec.Instance, ID: id})
			committer.hear(t) // the commit begins
			time.Sleep(took * time.Duration(i) / (steps - 1))
			committer.kill()
			info, err := s.b.Create(t.Context(), another(spec))
			if errors.Is(err, backend.ErrEnvironment) {
				must(t, s.b.CommitEnvironment(t.Context(), s.installing(t, s.b, spec, line)))
				info, err = s.b.Create(t.Context(), another(spec))
			}
			must(t, err)
			script := fmt.Sprintf("cd /opt/workcell; cat * | sort -n | tail -1; ls | wc -l; cat %d", files/2)
			Prints(t, s.dial(t, info.ID), script, fmt.Sprintf("%d\n%d\n%d\n", files-1, files, files/2))
			Remove(t, s.b, info.ID)
		})
	}
}

// childCommitter commits an environment and may be killed at any time.
func (s *suite) childCommitter(t *testing.T, spec backend.Spec, tell func(word)) {
	s.b = s.h.New(t)
	tell(word{})
	err := s.b.CommitEnvironment(context.Background(), spec.ID)
	tell(word{Error: fmt.Sprint(err)})
	select {}
}
