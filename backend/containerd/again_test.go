//go:build linux

package containerd_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

// TestLaterSandbox verifies that calls for a removed sandbox do not affect a later sandbox of the same session.
func TestLaterSandbox(t *testing.T) {
	t.Parallel()
	b, other := newBackend(t, nil), newBackend(t, nil)
	spec := newSpec()
	gone := backendtest.Create(t, b, spec)
	backendtest.Exec(t, backendtest.Dial(t, other, gone.ID), "/bin/true") // makes the sandbox known to other
	backendtest.Remove(t, b, gone.ID)
	info := backendtest.Create(t, b, spec)
	conn := backendtest.Dial(t, b, info.ID)
	backendtest.Sh(t, conn, "echo kept > file")
	for name, f := range map[string]func() error{
		"Stop":  func() error { return other.Stop(t.Context(), gone.ID) },
		"Start": func() error { return other.Start(t.Context(), gone.ID) },
		"Get":   func() error { _, err := other.Get(t.Context(), gone.ID); return err },
		"Dial": func() error {
			rw, err := other.Dial(t.Context(), gone.ID)
			return closed(rw, err)
		},
	} {
		backendtest.Fails(t, name, f(), backend.ErrNotFound)
	}
	backendtest.Remove(t, other, gone.ID)
	backendtest.Remove(t, b, gone.ID)
	backendtest.Prints(t, conn, "cat file", "kept\n")
}

func closed(rw io.ReadWriteCloser, err error) error {
	if err == nil {
		err = rw.Close()
	}
	return err
}

// TestLateRemove verifies a Remove that continues after another Remove has finished and the session has a new sandbox.
func TestLateRemove(t *testing.T) {
	t.Parallel()
	for name, answered := range map[string]bool{"before it looks": false, "after it looked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			b, late := newBackend(t, nil), newBackend(t, func(o *containerd.Options) { o.Address = p.address })
			spec := newSpec()
			gone := backendtest.Create(t, b, spec)
			reached, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			p.on(func(_ context.Context, method string, done bool) error {
				if strings.HasSuffix(method, "Containers/Get") && done == answered {
					once.Do(func() {
						close(reached)
						<-goOn
					})
				}
				return nil
			})
			removed := make(chan error, 1)
			go func() { removed <- late.Remove(context.Background(), gone.ID, backend.RemoveOptions{Volumes: true}) }()
			<-reached
			backendtest.Remove(t, b, gone.ID)
			info := backendtest.Create(t, b, spec)
			conn := backendtest.Dial(t, b, info.ID)
			backendtest.Sh(t, conn, "echo kept > file")
			close(goOn)
			must(t, <-removed)
			backendtest.Prints(t, conn, "cat file", "kept\n")
			if got, err := b.Get(t.Context(), info.ID); err != nil || got.State != backend.StateRunning {
				t.Errorf("Get: %+v, %v", got, err)
			}
		})
	}
}

// TestLateCgroup verifies that the next sandbox of a session removes a control group created by a runtime for a removed
// sandbox.
func TestLateCgroup(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	gone := backendtest.Create(t, b, spec)
	backendtest.Remove(t, b, gone.ID)
	next := backendtest.Create(t, b, spec)
	root := "/sys/fs/cgroup/pids"
	if _, err := os.Stat(root); err != nil { // cgroup version 2
		root = "/sys/fs/cgroup"
	}
	late := filepath.Join(root, cgroupParent(), containerd.ContainerOf(gone.ID))
	must(t, os.Mkdir(late, 0o755))
	backendtest.Remove(t, b, next.ID)
	if _, err := os.Stat(late); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", late, err)
	}
}

// TestUmask verifies that the user of a sandbox can read its files of /etc, regardless of the umask. passwd is written
// last, because it marks the other files as complete.
func TestUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir, err := containerd.MakeFiles(t.TempDir())
	must(t, err)
	files, err := os.ReadDir(dir)
	must(t, err)
	for _, f := range files {
		if st, err := f.Info(); err != nil || st.Mode() != 0o644 {
			t.Errorf("%s: %v, %v", f.Name(), st.Mode(), err)
		}
	}
	if len(files) != 5 {
		t.Errorf("%v, want 5 files", files)
	}
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "sandboxes/x/group/f"), 0o700)) // nothing can replace it
	if dir, err = containerd.MakeFiles(root); err == nil || host.Exists(filepath.Join(dir, "passwd")) {
		t.Errorf("without a group: %v", err)
	}
}

// TestHalfMadeWorkspace verifies that a session can get a workspace after a process died while creating one.
func TestHalfMadeWorkspace(t *testing.T) {
	t.Parallel()
	spec := newSpec()
	dir := filepath.Join(stateDir(), "workspaces", containerd.SessionName(spec.ID))
	must(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "owner.json"), nil, 0o600)))
	b := newBackend(t, nil)
	conn := backendtest.Dial(t, b, backendtest.Create(t, b, spec).ID)
	backendtest.Prints(t, conn, "echo mine > f; stat -c %u . f", "1000\n1000\n")
}

// TestHalfMadeFileSystem verifies that the file system of a workspace is only created again if no sandbox can have used
// it. If the owner's tag is lost, Create must return an error.
func TestHalfMadeFileSystem(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	if b.Capabilities().Workspace != backend.WorkspaceSized {
		return // Create keeps a directory without a tag
	}
	spec := newSpec()
	spec.Limits.WorkspaceBytes = 4 << 20
	dir := filepath.Join(stateDir(), "workspaces", containerd.SessionName(spec.ID))
	tag, image := filepath.Join(dir, "owner.json"), filepath.Join(dir, "disk.img")
	must(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(tag, nil, 0o600)))
	must(t, os.WriteFile(image+".new", []byte("half"), 0o600))
	info := backendtest.Create(t, b, spec) // its creator died
	backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "echo mine > f")
	must(t, b.Remove(t.Context(), info.ID, backend.RemoveOptions{}))
	whose, err := os.ReadFile(tag)
	must(t, errors.Join(err, os.WriteFile(tag, nil, 0o600))) // as after a crash of the host
	backendtest.Fails(t, "Create without a tag", second(b.Create(t.Context(), spec)), backend.ErrExists)
	// A file system with a tag but without the final name is complete.
	must(t, errors.Join(os.WriteFile(tag, whose, 0o600), os.Rename(image, image+".new")))
	backendtest.Prints(t, backendtest.Dial(t, b, backendtest.Create(t, b, spec).ID), "cat f", "mine\n")
}
