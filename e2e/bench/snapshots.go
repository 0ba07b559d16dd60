package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// snapshotDisk is a disk for sandboxes.
type snapshotDisk struct {
	name string
	mkfs []string
}

// snapshotDisks returns file systems in files. One of them supports shared blocks (reflinks), and the other does not.
func snapshotDisks() []snapshotDisk {
	return []snapshotDisk{
		{"ext4", []string{"mkfs.ext4", "-q", "-F"}},
		{"xfs", []string{"mkfs.xfs", "-q", "-f", "-m", "reflink=1"}},
	}
}

const (
	snapshotDiskBytes = 12 << 30 // sparse file
	snapshotForks     = 4
)

// fillWorkspace creates the files of the benchmark.
const fillWorkspace = `i=0; while [ $i -lt 500 ]; do mkdir -p d$((i%25)); head -c 1000000 /dev/urandom > d$((i%25))/f$i; i=$((i+1)); done; sync`

// measureSnapshots measures snapshots, forks, and rollbacks of 500 MB in 500 files, in comparison with cp -a. It uses a
// file system with shared blocks and one without.
func (c *contest) measureSnapshots(ctx context.Context) error {
	for _, disk := range snapshotDisks() {
		if err := c.onDisk(ctx, disk); err != nil {
			return fmt.Errorf("snapshots on %s: %w", disk.name, err)
		}
	}
	return nil
}

// onDisk creates a disk and measures the engines whose sandboxes can be on any disk. Docker has a fixed location.
func (c *contest) onDisk(ctx context.Context, disk snapshotDisk) (err error) {
	dir, err := os.MkdirTemp("", "workcell-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	image, at := filepath.Join(dir, "disk"), filepath.Join(dir, "mnt")
	err = errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, snapshotDiskBytes), os.Mkdir(at, 0o700))
	if err == nil {
		err = runHost(ctx, append(disk.mkfs, image)...)
	}
	if err == nil {
		err = runHost(ctx, "mount", "-o", "loop", image, at)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runHost(context.WithoutCancel(ctx), "umount", at)) }()
	for _, who := range c.all {
		w, ok := who.(*workcell)
		if !ok {
			continue
		}
		state := filepath.Join(at, w.name())
		if err := os.Mkdir(state, 0o700); err != nil {
			return err
		}
		var driver backend.SandboxBackend
		switch w.engine {
		case "local":
			driver, err = local.New(ctx, &local.Options{StateDir: state})
		case "containerd":
			driver, err = containerd.New(ctx, &containerd.Options{Address: os.Getenv("CONTAINERD_ADDRESS"), StateDir: state})
		default:
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(c.snapshotsOf(ctx, w, driver, disk.name, state), driver.Close()); err != nil {
			return fmt.Errorf("%s: %w", w.name(), err)
		}
	}
	return nil
}

// snapshotsOf measures one engine on one disk.
func (c *contest) snapshotsOf(
	ctx context.Context, w *workcell, driver backend.SandboxBackend, disk, state string,
) (err error) {
	m, err := session.NewManager(driver, &session.Options{IdleTimeout: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()
	req := w.request
	req.Limits = backend.Limits{}
	open := func() (*session.Session, error) {
		s, _, err := m.Open(ctx, record.AgentKey(session.NewRunID(), record.DefaultName), req)
		return s, err
	}
	s, err := open()
	if err != nil {
		return err
	}
	if _, err := output(ctx, s, "/bin/sh", "-c", fillWorkspace); err != nil {
		return err
	}
	measured := map[string]sample{}
	for i := range max(c.opts.rounds, 3) {
		if err := snapshotRound(ctx, s, open, fmt.Sprint("s", i), state, measured); err != nil {
			return err
		}
	}
	for what, all := range measured {
		c.figures[what+"_500m_ms."+w.name()+"_"+disk] = millis(all.quantile(.5))
	}
	added := measured["fork"].quantile(.5) - measured["open"].quantile(.5)
	c.figures["fork_500m_added_ms."+w.name()+"_"+disk] = millis(added)
	return nil
}

// snapshotRound measures each operation once.
func snapshotRound(
	ctx context.Context, s *session.Session, open func() (*session.Session, error), name, state string,
	measured map[string]sample,
) error {
	timed := func(what string, n int, f func() error) error {
		start := time.Now()
		err := f()
		measured[what] = append(measured[what], time.Since(start)/time.Duration(n))
		return err
	}
	if err := timed("snapshot", 1, func() error { _, err := s.Snapshot(ctx, name); return err }); err != nil {
		return err
	}
	files, err := treeOf(state)
	if err != nil {
		return err
	}
	to := filepath.Join(state, "copy")
	if err := timed("cp_a", 1, func() error { return runHost(ctx, "cp", "-a", "--reflink=auto", files, to) }); err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	change := "for i in 1 2 3 4 5; do echo changed > d$i/new; echo more >> d$i/f$i; done; rm -r d7"
	if _, err := output(ctx, s, "/bin/sh", "-c", change); err != nil {
		return err
	}
	if err := timed("rollback", 1, func() error { return s.Rollback(ctx, name) }); err != nil {
		return err
	}
	count := "cat d*/f* | wc -c; ls d*/new 2>/dev/null | wc -l"
	if n, err := output(ctx, s, "/bin/sh", "-c", count); err != nil || n != "500000000\n0\n" {
		return fmt.Errorf("after the rollback there are %q, %v", n, err)
	}
	var forks []*session.Session
	fork := func() (err error) {
		forks, err = s.Fork(ctx, name, snapshotForks)
		return err
	}
	if err := timed("fork", snapshotForks, fork); err != nil {
		return err
	}
	opened := make([]*session.Session, snapshotForks)
	if err := timed("open", snapshotForks, func() error {
		return atOnce(snapshotForks, func(i int) (err error) {
			opened[i], err = open()
			return err
		})
	}); err != nil {
		return err
	}
	for _, one := range append(forks, opened...) {
		if err := one.Close(ctx); err != nil {
			return err
		}
	}
	return s.RemoveSnapshot(ctx, name)
}

// treeOf returns the files of the only workspace below a state directory.
func treeOf(state string) (string, error) {
	for _, name := range []string{"files", "data"} { // of local and containerd
		found, err := filepath.Glob(filepath.Join(state, "workspaces", "*", name, "d24"))
		if err == nil && len(found) == 1 {
			return filepath.Dir(found[0]), nil
		}
	}
	return "", fmt.Errorf("%s has no workspace: %w", state, os.ErrNotExist)
}

// runHost runs a program on the host.
func runHost(ctx context.Context, argv ...string) error {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput() // #nosec G204 -- the benchmark's own
	if err != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, out)
	}
	return nil
}
