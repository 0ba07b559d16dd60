package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	return []snapshotDisk{{"ext4", []string{"mkfs.ext4", "-q", "-F"}}, {"xfs", []string{"mkfs.xfs", "-q", "-f", "-m", "reflink=1"}}}
}

const (
	snapshotDiskBytes = 12 << 30 // sparse file
	snapshotWorkspace = 700 << 20
	snapshotForks     = 4
)

// fillWorkspace creates the files of the benchmark.
const fillWorkspace = `i=0; while [ $i -lt 500 ]; do mkdir -p d$((i%25)); head -c 1000000 /dev/urandom > d$((i%25))/f$i; i=$((i+1)); done; sync`

// measureSnapshots measures snapshots, forks, and rollbacks of 500 MB in 500 files, in comparison with cp -a. It uses a
// file system with shared blocks and one without. snapshot_again is a snapshot after small changes since the previous
// snapshot.
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
		switch {
		case strings.HasSuffix(w.name(), "local"):
			driver, err = local.New(ctx, &local.Options{StateDir: state})
		case strings.HasSuffix(w.name(), "containerd"):
			driver, err = containerd.New(ctx, &containerd.Options{Address: os.Getenv("CONTAINERD_ADDRESS"), StateDir: state})
		case disk.name == "ext4": // the disk of Docker's fixed location is used
			driver, state = w.driver, ""
		default:
			continue
		}
		if err != nil {
			return err
		}
		for kind, limits := range map[string]backend.Limits{"": {}, "_sized": {WorkspaceBytes: snapshotWorkspace}} {
			if err := c.snapshotsOf(ctx, w, driver, limits, disk.name+kind, state); err != nil {
				return errors.Join(fmt.Errorf("%s%s: %w", w.name(), kind, err), driver.Close())
			}
		}
		if state != "" {
			if err := driver.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// snapshotsOf measures one engine with one kind of workspace.
func (c *contest) snapshotsOf(ctx context.Context, w *workcell, driver backend.SandboxBackend, limits backend.Limits, kind, state string) (err error) {
	m, err := session.NewManager(driver, &session.Options{IdleTimeout: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()
	req := w.request
	req.Limits = limits
	s, _, err := m.Open(ctx, record.AgentKey(session.NewRunID(), record.DefaultName), req)
	if err != nil {
		return err
	}
	if _, err := output(ctx, s, "/bin/sh", "-c", fillWorkspace); err != nil {
		return err
	}
	measured := map[string]sample{}
	timed := func(what string, n int, f func() error) error {
		start := time.Now()
		err := f()
		measured[what] = append(measured[what], time.Since(start)/time.Duration(n))
		return err
	}
	for i := range max(c.opts.rounds, 3) {
		name := fmt.Sprint("s", i)
		if err := timed("snapshot", 1, func() error { _, err := s.Snapshot(ctx, name); return err }); err != nil {
			return err
		}
		if files, err := treeOf(state); err == nil && limits == (backend.Limits{}) { // the same on the host, in turns
			to := filepath.Join(state, "copy")
			if err := timed("cp_a", 1, func() error { return runHost(ctx, "cp", "-a", "--reflink=auto", files, to) }); err != nil {
				return err
			}
			if err := os.RemoveAll(to); err != nil {
				return err
			}
		}
		if _, err := output(ctx, s, "/bin/sh", "-c", "for i in 1 2 3 4 5; do echo changed > d$i/new; echo more >> d$i/f$i; done; rm -r d7"); err != nil {
			return err
		}
		if err := timed("snapshot_again", 1, func() error { _, err := s.Snapshot(ctx, "again"); return err }); err != nil {
			return err
		}
		if err := timed("rollback", 1, func() error { return s.Rollback(ctx, name) }); err != nil {
			return err
		}
		if n, err := output(ctx, s, "/bin/sh", "-c", "cat d*/f* | wc -c; ls d*/new 2>/dev/null | wc -l"); err != nil || n != "500000000\n0\n" {
			return fmt.Errorf("after the rollback there are %q, %v", n, err)
		}
		if err := s.RemoveSnapshot(ctx, "again"); err != nil {
			return err
		}
		var forks []*session.Session
		if err := timed("fork", snapshotForks, func() error { forks, err = s.Fork(ctx, name, snapshotForks); return err }); err != nil {
			return err
		}
		one, err := []*session.Session(nil), error(nil)
		if err := timed("fork_one", 1, func() error { one, err = s.Fork(ctx, name, 1); return err }); err != nil {
			return err
		}
		closeAll := func(list ...*session.Session) (err error) {
			for _, one := range list {
				err = errors.Join(err, one.Close(ctx))
			}
			return err
		}
		if err := closeAll(append(forks, one...)...); err != nil {
			return err
		}
		opened, errs := make([]*session.Session, snapshotForks), make([]error, snapshotForks)
		if err := timed("open", snapshotForks, func() error {
			var wg sync.WaitGroup
			for i := range opened {
				wg.Go(func() {
					opened[i], _, errs[i] = m.Open(ctx, record.AgentKey(session.NewRunID(), record.DefaultName), req)
				})
			}
			wg.Wait()
			return errors.Join(errs...)
		}); err != nil {
			return err
		}
		if err := closeAll(opened...); err != nil {
			return err
		}
		if err := s.RemoveSnapshot(ctx, name); err != nil {
			return err
		}
	}
	for _, what := range slices.Sorted(maps.Keys(measured)) {
		c.figures[what+"_500m_ms."+w.name()+"_"+kind] = millis(measured[what].quantile(.5))
	}
	c.figures["fork_500m_added_ms."+w.name()+"_"+kind] = millis(measured["fork"].quantile(.5) - measured["open"].quantile(.5))
	return nil
}

// treeOf returns the files of the only workspace below a state directory.
func treeOf(state string) (string, error) {
	for _, pattern := range []string{"workspaces/*/files", "workspaces/*/data"} {
		if found, err := filepath.Glob(filepath.Join(state, pattern)); err == nil && len(found) > 0 && state != "" {
			for _, dir := range found {
				if _, err := os.Stat(filepath.Join(dir, "d24")); err == nil {
					return dir, nil
				}
			}
		}
	}
	return "", os.ErrNotExist
}

// runHost runs a program on the host.
func runHost(ctx context.Context, argv ...string) error {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput() // #nosec G204 -- the benchmark's own
	if err != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, out)
	}
	return nil
}
