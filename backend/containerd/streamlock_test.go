//go:build linux

package containerd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/internal/guest/client"
)

// TestStuckHolder: a process that has a sandbox's stream and is stopped keeps nobody from it, and loses it when it continues.
func TestStuckHolder(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	info := create(t, b, newSpec())
	// As a stopped process has it: locked, and nobody reads.
	holder, err := os.OpenFile(filepath.Join(stateDir(), "sandboxes", containerd.ContainerOf(info.ID), "lock"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if err := syscall.Flock(int(holder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, b, info.ID)
	for range 3 {
		if res := run(t, conn, "/bin/true"); res.ExitCode != 0 {
			t.Errorf("exit code %d", res.ExitCode)
		}
		time.Sleep(100 * time.Millisecond) // past what was asked of the holder
	}
	if err := holder.Close(); err != nil { // it continues and lets go
		t.Fatal(err)
	}
	run(t, conn, "/bin/true")
	next := dial(t, b, info.ID)
	run(t, next, "/bin/true")
	select {
	case <-conn.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the former owner was not told")
	}
	if err := conn.Err(); !errors.Is(err, client.ErrSuperseded) {
		t.Errorf("the former owner: %v, want ErrSuperseded", err)
	}
}

// TestNetworkAfterRestart: what a restart of the machine takes away is made again for a stopped sandbox.
func TestNetworkAfterRestart(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Network = backend.NetworkBridge
	info := create(t, b, spec)
	if err := b.Stop(t.Context(), info.ID); err != nil {
		t.Fatal(err)
	}
	netns := filepath.Join(stateDir(), "sandboxes", containerd.ContainerOf(info.ID), "netns")
	for unix.Unmount(netns, unix.MNT_DETACH) == nil {
	}
	forget := `iptables -w -t nat -S POSTROUTING | grep -- "$0" | sed s/^-A/-D/ | while read -r rule; do eval "iptables -w -t nat $rule"; done`
	if out, err := exec.Command("sh", "-c", forget, containerd.ContainerOf(info.ID)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := b.Start(t.Context(), info.ID); err != nil {
		t.Fatalf("Start: %v", err)
	}
	res := run(t, dial(t, b, info.ID), "cat", "/proc/net/route")
	if res.ExitCode != 0 || len(res.Stdout.Head) < 150 {
		t.Errorf("routes: %s", res.Stdout.Head)
	}
}

// TestLabelsThatContainerdObeys: a user's label never makes containerd do something.
func TestLabelsThatContainerdObeys(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Labels = map[string]string{"containerd.io/restart.status": "running", "containerd.io/restart.loguri": "file:///tmp/never", "team": "blue"}
	info := create(t, b, spec)
	if info.Labels["containerd.io/restart.status"] != "running" || info.Labels["team"] != "blue" {
		t.Errorf("Info tells of the labels %v", info.Labels)
	}
	ctx := namespaces.WithNamespace(t.Context(), containerd.DefaultNamespace)
	c, err := engineAPI(t).LoadContainer(ctx, containerd.ContainerOf(info.ID))
	if err != nil {
		t.Fatal(err)
	}
	labels, err := c.Labels(ctx)
	if err != nil || labels["team"] != "blue" || labels["containerd.io/restart.status"] != "" || labels["containerd.io/restart.loguri"] != "" {
		t.Errorf("labels of the container: %v, %v", labels, err)
	}
}
