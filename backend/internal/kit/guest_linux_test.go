package kit_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// TestInstallGuestWhileForking verifies that an installed guest agent can be executed immediately, even if the process
// forks during the installation. A child with new namespaces needs a long time to call exec, and it holds all open
// files until then.
func TestInstallGuestWhileForking(t *testing.T) {
	t.Parallel()
	guest := &backend.Guest{Version: "1", Binary: func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }, Readable: true}
	ctx, cancel := context.WithCancel(t.Context())
	var forks sync.WaitGroup
	defer forks.Wait()
	defer cancel()
	for range 4 {
		forks.Go(func() {
			for ctx.Err() == nil {
				cmd := exec.Command("/bin/true")
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWIPC}
				if err := cmd.Run(); err != nil {
					t.Errorf("fork: %v", err)
				}
			}
		})
	}
	for range 50 {
		dir := t.TempDir()
		checktest.Must(t, kit.InstallGuest(filepath.Join(dir, "guest"), filepath.Join(dir, "new-"), guest, "amd64"))
		checktest.Must(t, exec.Command(filepath.Join(dir, "guest", filepath.Base(embed.Path))).Run())
	}
}
