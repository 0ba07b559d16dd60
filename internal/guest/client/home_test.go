//go:build linux

package client_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestHome verifies that a command finds the home directory regardless of earlier commands' changes, listings and Git
// do not show it, and a workspace used as a home directory by an earlier version remains the home directory.
func TestHome(t *testing.T) {
	dir := t.TempDir()
	g := guesttest.Start(t, &guesttest.Options{Binary: binary, Workdir: dir})
	c := dial(t, g)
	home := wire.Home(dir)
	if got := c.Hello().Home; got != home {
		t.Fatalf("home directory %s, want %s", got, home)
	}
	do := func(script string) string {
		req := sh(script)
		req.Env = append(req.Env, "HOME="+home)
		res, err := c.Run(testContext(t), req)
		must(t, err)
		return string(res.Stdout.Head)
	}
	for _, script := range []string{
		"true", "rm -r .workcell", "rm -r .workcell; ln -s nowhere .workcell", "rm .workcell; mkfifo .workcell", "rm .workcell",
	} {
		do(script)
	}
	if got := do("cd && pwd && echo x > file && cat ../.gitignore"); got != home+"\n*\n" {
		t.Errorf("output %q", got)
	}
	list, err := c.List(testContext(t), wire.ListRequest{Path: ".", Recursive: true})
	if err != nil || len(list.Entries) != 0 {
		t.Errorf("the workspace contains %+v, %v", list.Entries, err)
	}
	list, err = c.List(testContext(t), wire.ListRequest{Path: ".workcell/home"})
	if err != nil || len(list.Entries) != 1 {
		t.Errorf("the home directory contains %+v, %v", list.Entries, err)
	}
	must(t, os.Mkdir(filepath.Join(dir, ".cache"), 0o755))
	again := dial(t, guesttest.Start(t, &guesttest.Options{Binary: binary, Workdir: dir}))
	if got := again.Hello().Home; got != home {
		t.Errorf("after a restart, with a directory of the project: home directory %s", got)
	}
	for name, want := range map[string]bool{"go/pkg/mod": true, ".gitconfig": true, "go": false, ".config": false} {
		dir := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		must(t, os.MkdirAll(filepath.Join(dir, ".workcell/home/agent"), 0o755)) // of a coding agent, by an earlier version
		c := dial(t, guesttest.Start(t, &guesttest.Options{Binary: binary, Workdir: dir}))
		if got := c.Hello().Home == dir; got != want {
			t.Errorf("a workspace with %s: home directory %s", name, c.Hello().Home)
		}
	}
}
