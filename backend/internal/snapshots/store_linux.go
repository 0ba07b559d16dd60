package snapshots

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
)

// Names in the directory of snapshots. Those of snapshots begin with no dot.
const (
	storeName  = "snapshots"
	recordFile = "snapshot.json"
	filesDir   = "files"
	newPrefix  = ".new-" // begins the name of one that is being made
	goneName   = ".gone-"
	// busyFile is there while the sandbox is frozen: what it holds is to be done before anybody reaches the sandbox again.
	busyFile = ".busy"
)

// Workspace is where a session's workspace lies. Its methods may be called concurrently, also by other processes.
type Workspace struct {
	Dir   string // goes with the workspace; snapshots lie in it
	Files string // directory of its files, below Dir; not used with Image
	Image string // file of the file system that it is, below Dir; empty for a directory
	// Base is the first of the block of user ids that its files belong to.
	Base int64
	// Processes are those of the running sandbox.
	Processes host.Processes
}

// record describes a snapshot.
type record struct {
	backend.Snapshot
	Base int64 `json:"base,omitempty"` // Workspace.Base
}

// busy is what was begun with a frozen sandbox.
type busy struct {
	Rollback string `json:"rollback,omitempty"` // to that snapshot
}

const lockPause = 2 * time.Millisecond

func (w *Workspace) path(names ...string) string {
	return filepath.Join(append([]string{w.Dir, storeName}, names...)...)
}

// lock keeps others from the workspace's snapshots. It ends with the process.
func (w *Workspace) lock(ctx context.Context) (unlock func(), err error) {
	return w.take(func(l *flock.Flock) (bool, error) { return l.TryLockContext(ctx, lockPause) })
}

// share is lock for those who change nothing.
func (w *Workspace) share(ctx context.Context) (unlock func(), err error) {
	return w.take(func(l *flock.Flock) (bool, error) { return l.TryRLockContext(ctx, lockPause) })
}

func (w *Workspace) take(lock func(*flock.Flock) (bool, error)) (unlock func(), err error) {
	l := flock.New(w.Dir, flock.SetFlag(os.O_RDONLY))
	if _, err := lock(l); err != nil {
		return nil, classed(err)
	}
	return func() { _ = l.Close() }, nil // nothing was written
}

// Alone runs f, which fills or removes the directory of a workspace, when nobody else does, and nobody forks or copies
// from it: who did would miss files without an error. A directory that is not there has nobody.
func Alone(ctx context.Context, dir string, f func() error) error {
	unlock, err := (&Workspace{Dir: dir}).lock(ctx)
	if err == nil {
		defer unlock()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return f()
}

// Take keeps the files of the workspace.
func (w *Workspace) Take(ctx context.Context, name string) (_ backend.Snapshot, err error) {
	if err := backend.CheckSnapshotName(name); err != nil {
		return backend.Snapshot{}, err
	}
	var rec record
	err = w.locked(ctx, func() error {
		return w.add(ctx, name, func(dir string) (err error) {
			if rec, err = w.copyTo(ctx, dir, name); err != nil {
				return err
			}
			return host.WriteJSON(filepath.Join(dir, recordFile), rec, false)
		})
	})
	if err != nil {
		return backend.Snapshot{}, err
	}
	return rec.Snapshot, nil
}

// locked runs f with the lock of the workspace's snapshots, after recover.
func (w *Workspace) locked(ctx context.Context, f func() error) error {
	unlock, err := w.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := w.recover(ctx); err != nil {
		return err
	}
	return f()
}

// add makes a snapshot with what fill puts into a new directory: all of it, or nothing.
func (w *Workspace) add(ctx context.Context, name string, fill func(dir string) error) error {
	if err := w.admit(name); err != nil {
		return err
	}
	tmp := w.path(newPrefix + strings.ToLower(rand.Text()))
	err := os.Mkdir(tmp, 0o700)
	if err == nil {
		err = fill(tmp)
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, w.path(name), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		err = errors.Join(classed(err), host.RemoveTree(context.WithoutCancel(ctx), tmp))
	}
	return err
}

// Copy gives the workspace a snapshot of another one, under its name.
func (w *Workspace) Copy(ctx context.Context, from *Workspace, name string) (err error) {
	if w.Dir == from.Dir {
		return fmt.Errorf("the snapshot belongs to the same workspace: %w", backend.ErrInvalid)
	}
	locks := []func(context.Context) (func(), error){w.lock, from.share}
	if from.Dir < w.Dir { // two that copy from each other do not wait for each other
		slices.Reverse(locks)
	}
	for _, lock := range locks {
		unlock, err := lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	if err := w.recover(ctx); err != nil {
		return err
	}
	rec, err := from.read(name)
	if err != nil {
		return err
	}
	return w.add(ctx, name, func(dir string) error {
		err := os.Mkdir(filepath.Join(dir, filesDir), 0o700)
		if err == nil {
			rec.Mechanism, err = from.copyFiles(ctx, rec, filepath.Join(dir, filesDir), w.Base, true)
		}
		if err == nil {
			rec.Base, rec.Created = w.Base, time.Now().UTC()
			err = host.WriteJSON(filepath.Join(dir, recordFile), rec, false)
		}
		if err != nil {
			return err
		}
		// The workspace never had this state, see lastState: the files have no marks.
		return os.Chtimes(filepath.Join(dir, recordFile), time.Time{}, time.Unix(0, 0))
	})
}

// admit refuses one snapshot too many.
func (w *Workspace) admit(name string) error {
	if err := os.Mkdir(w.path(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return classed(err)
	}
	list, err := w.list()
	switch {
	case err != nil:
		return err
	case slices.ContainsFunc(list, func(r record) bool { return r.Name == name }):
		return fmt.Errorf("snapshot %s: %w", name, backend.ErrExists)
	case len(list) >= backend.MaxSnapshots:
		return fmt.Errorf("snapshot limit of the workspace reached (%d); remove one: %w", len(list), backend.ErrCapacity)
	}
	return nil
}

// copyTo copies the workspace into a directory while its commands do not run.
func (w *Workspace) copyTo(ctx context.Context, dir, name string) (rec record, err error) {
	rec = record{Snapshot: backend.Snapshot{Name: name, Created: time.Now().UTC()}, Base: w.Base}
	thaw, err := w.freeze(ctx, busy{})
	if err != nil {
		return rec, err
	}
	defer func() { err = errors.Join(err, thaw()) }()
	return rec, w.keepFiles(ctx, filepath.Join(dir, filesDir), &rec)
}

// open opens the directory of the workspace's files.
func (w *Workspace) open(m *mirror) (fd int, leave func() error, err error) {
	if w.Image == "" {
		return m.enter(unix.AT_FDCWD, w.Files)
	}
	fd, err = sizedfs.Mount(w.Image)
	return fd, func() error { return unix.Close(fd) }, err
}

// keepFiles copies the workspace's files into a new directory, but for those that the last state has as they are.
func (w *Workspace) keepFiles(ctx context.Context, dir string, rec *record) (err error) {
	now := time.Now()
	mapped, known := w.Processes.SharedFiles(ctx)
	m := &mirror{ctx: ctx, toKept: true, keepFree: true, made: func(src, dst file) error {
		if !known || mapped[src.st.Ino] || !isSettled(src.st, now) {
			return nil
		}
		return mark(src.st, dst.fd)
	}}
	from, leave, err := w.open(m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	to, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	prev, marked, err := w.lastState()
	if err != nil {
		return err
	}
	if prev >= 0 {
		defer unix.Close(prev)
	}
	err = m.since(prev, marked, from, to)
	if rec.Mechanism = m.mechanism(); rec.Mechanism == backend.SnapshotReflink {
		rec.Mechanism = w.mechanism() // perhaps nothing had to be copied
	}
	return err
}

// lastState opens the files of the snapshot that the workspace was last the same as: the one that was made or rolled
// back to last, and says when that was. -1 without one.
func (w *Workspace) lastState() (fd int, marked time.Time, err error) {
	list, err := w.list()
	if err != nil {
		return -1, marked, err
	}
	last := ""
	for _, rec := range list {
		if t := w.marked(rec.Name); t.After(marked) {
			last, marked = rec.Name, t
		}
	}
	if last == "" {
		return -1, marked, nil
	}
	fd, err = openDir(w.path(last, filesDir))
	return fd, marked, err
}

// marked returns when the files of a snapshot were last marked, which is when its record was last touched.
func (w *Workspace) marked(name string) time.Time {
	st, err := os.Stat(w.path(name, recordFile))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// mechanism is what files were copied with. Of a tree without files nothing is known, and nothing was copied.
func (m *mirror) mechanism() backend.SnapshotMechanism {
	if m.noClone.Load() {
		return backend.SnapshotCopy
	}
	return backend.SnapshotReflink
}

// between calls f with two directories.
func (m *mirror) between(src, dst string, f func(src, dst int) error) (err error) {
	from, leave, err := m.enter(unix.AT_FDCWD, src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	to, _, err := m.enter(unix.AT_FDCWD, dst) // its own mode comes last
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return f(from, to)
}

func openDir(path string) (int, error) {
	return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// freeze keeps the sandbox's commands from running until thaw. What is to be done if this process dies meanwhile is
// noted before.
func (w *Workspace) freeze(ctx context.Context, b busy) (thaw func() error, err error) {
	if err := host.WriteJSON(w.path(busyFile), b, false); err != nil {
		return nil, classed(err)
	}
	if err := w.Processes.Freeze(ctx); err != nil {
		return nil, errors.Join(err, os.Remove(w.path(busyFile)))
	}
	return w.release, nil
}

// release lets the sandbox's commands run.
func (w *Workspace) release() error {
	if err := w.Processes.Thaw(); err != nil {
		return err
	}
	if err := os.Remove(w.path(busyFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Busy reports whether something is under way that Recover must wait for or bring to its end, before the sandbox is
// reached or ended.
func Busy(dir string) bool {
	return unix.Access(filepath.Join(dir, storeName, busyFile), unix.F_OK) == nil
}

// Recover brings to its end what a process began that died.
func (w *Workspace) Recover(ctx context.Context) error {
	if !Busy(w.Dir) {
		return nil
	}
	return w.locked(ctx, func() error { return nil })
}

// Thaw lets the processes of a sandbox that is to be ended take their signals. What was begun is not brought to its
// end.
func (w *Workspace) Thaw(ctx context.Context) error {
	if !Busy(w.Dir) {
		return nil
	}
	unlock, err := w.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return w.Processes.Thaw()
}

// recover is Recover for who has the lock. It also removes what is half made.
func (w *Workspace) recover(ctx context.Context) error {
	entries, err := os.ReadDir(w.path())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return classed(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) || strings.HasPrefix(e.Name(), goneName) {
			if err := host.RemoveTree(ctx, w.path(e.Name())); err != nil {
				return classed(err)
			}
		}
	}
	var b busy
	if err := host.ReadJSON(w.path(busyFile), &b); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if b.Rollback != "" && backend.CheckSnapshotName(b.Rollback) == nil {
		if _, err := w.read(b.Rollback); err == nil {
			return w.rollback(ctx, b.Rollback)
		}
	}
	return classed(w.release())
}

// read returns the record of a snapshot; ErrNotFound without one.
func (w *Workspace) read(name string) (rec record, err error) {
	if err := backend.CheckSnapshotName(name); err != nil {
		return rec, err
	}
	err = host.ReadJSON(w.path(name, recordFile), &rec)
	if errors.Is(err, os.ErrNotExist) {
		return rec, fmt.Errorf("snapshot %s: %w", name, backend.ErrNotFound)
	}
	rec.Name = name
	return rec, classed(err)
}

// list returns the snapshots, oldest first.
func (w *Workspace) list() ([]record, error) {
	entries, err := os.ReadDir(w.path())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, classed(err)
	}
	var list []record
	for _, e := range entries {
		if rec, err := w.read(e.Name()); err == nil {
			list = append(list, rec)
		}
	}
	slices.SortFunc(list, func(a, b record) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	return list, nil
}

// List returns the snapshots, and the mechanism of the next one; empty if the commands cannot be frozen.
func (w *Workspace) List() ([]backend.Snapshot, backend.SnapshotMechanism, error) {
	list, err := w.list()
	out := make([]backend.Snapshot, 0, len(list))
	for _, rec := range list {
		out = append(out, rec.Snapshot)
	}
	if w.Processes.PID > 0 && !w.Processes.CanFreeze() {
		return out, "", err
	}
	return out, w.mechanism(), err
}

// mechanism finds out by a try, in files without a name. A separate file system shares no blocks with others.
func (w *Workspace) mechanism() backend.SnapshotMechanism {
	if w.Image != "" {
		return backend.SnapshotCopy
	}
	var files [2]*os.File
	for i := range files {
		f, err := os.OpenFile(w.Dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
		if err != nil {
			return backend.SnapshotCopy
		}
		defer f.Close()
		files[i] = f
	}
	if unix.IoctlFileClone(int(files[1].Fd()), int(files[0].Fd())) != nil {
		return backend.SnapshotCopy
	}
	return backend.SnapshotReflink
}

// Remove deletes a snapshot. One that is not there is no error.
func (w *Workspace) Remove(ctx context.Context, name string) error {
	if err := backend.CheckSnapshotName(name); err != nil {
		return err
	}
	return w.locked(ctx, func() error {
		gone := w.path(goneName + strings.ToLower(rand.Text()))
		err := os.Rename(w.path(name), gone)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = host.RemoveTree(ctx, gone)
		}
		return classed(err)
	})
}

// Rollback makes the workspace what it was.
func (w *Workspace) Rollback(ctx context.Context, name string) error {
	if _, err := w.read(name); err != nil {
		return err
	}
	return w.locked(ctx, func() error { // rollback reads again, for it may be gone by now
		return classed(w.rollback(ctx, name))
	})
}

// rollback makes the workspace what the snapshot is. Done again, after it was cut off wherever that was, it comes to
// the same. One that was begun is not given up because the caller leaves: half of it is no state of the workspace's.
func (w *Workspace) rollback(ctx context.Context, name string) error {
	ctx = context.WithoutCancel(ctx)
	rec, err := w.read(name)
	if err != nil {
		return err
	}
	thaw, err := w.freeze(ctx, busy{Rollback: name})
	if err != nil {
		return err
	}
	if w.Processes.PID > 0 {
		err = w.Processes.EndOthers()
	}
	if err == nil {
		err = w.restore(ctx, rec)
	}
	if err != nil { // who reaches for the sandbox next tries again
		return errors.Join(err, w.Processes.Thaw())
	}
	return thaw()
}

func (w *Workspace) restore(ctx context.Context, rec record) (err error) {
	last := w.marked(rec.Name)
	m := &mirror{
		ctx: ctx, fromKept: true,
		same: func(src file, dst *unix.Stat_t) bool { return marked(src, dst, last) },
		made: func(src, dst file) error { return mark(dst.st, src.fd) },
	}
	src, leave, err := m.enter(unix.AT_FDCWD, w.path(rec.Name, filesDir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	dst, _, err := w.open(m) // its own mode comes last
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if err := m.back(src, dst); err != nil {
		return err
	}
	now := time.Now()
	return os.Chtimes(w.path(rec.Name, recordFile), now, now) // see marked
}

// Target is where Fork makes the files of a new workspace.
type Target struct {
	Files string // a directory that is there, where the workspace is one
	// Image is the file of the file system that the workspace is, to be made as Size says; empty for a directory.
	Image string
	Size  sizedfs.Spec
	Base  int64 // begins the block of user ids that the owners of the files move to
}

// Fork makes the files of a new workspace. What it returns is to be closed once the workspace is mounted for its
// sandbox: what was written to a file system that nobody has mounted any more must reach the disk first.
func (w *Workspace) Fork(ctx context.Context, name string, to Target) (io.Closer, error) {
	unlock, err := w.share(ctx)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("snapshot %.80q: %w", name, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	rec, err := w.read(name)
	if errors.Is(err, backend.ErrNotFound) {
		return nil, fmt.Errorf("snapshot %s: %w", name, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	if to.Image == "" {
		_, err := w.copyFiles(ctx, rec, to.Files, to.Base, false)
		return io.NopCloser(nil), err
	}
	if err := os.Remove(to.Image); err != nil && !errors.Is(err, os.ErrNotExist) { // what a dead process left
		return nil, classed(err)
	}
	held, err := w.fillImage(ctx, rec, to)
	return held, classed(err)
}

// copyFiles makes a directory what a snapshot is: a workspace, or another snapshot, which is kept here.
func (w *Workspace) copyFiles(ctx context.Context, rec record, dir string, base int64, kept bool) (
	backend.SnapshotMechanism, error,
) {
	m := &mirror{ctx: ctx, shift: base - rec.Base, fromKept: true, toKept: kept, keepFree: true}
	err := m.between(w.path(rec.Name, filesDir), dir, m.run)
	return m.mechanism(), classed(err)
}

// fillImage makes a file system with the files of a snapshot in it. It is mounted until what is returned is closed.
func (w *Workspace) fillImage(ctx context.Context, rec record, to Target) (io.Closer, error) {
	if err := sizedfs.Format(ctx, to.Image, to.Size); err != nil {
		return nil, err
	}
	src, err := openDir(w.path(rec.Name, filesDir))
	if err != nil {
		return nil, err
	}
	defer unix.Close(src)
	dst, err := sizedfs.Mount(to.Image)
	if err != nil {
		return nil, errors.Join(err, os.Remove(to.Image))
	}
	m := &mirror{ctx: ctx, shift: to.Base - rec.Base, fromKept: true}
	if err := m.run(src, dst); err != nil {
		return nil, errors.Join(err, unix.Close(dst), os.Remove(to.Image))
	}
	return os.NewFile(uintptr(dst), "workspace"), nil
}

// classed returns an error without paths of this machine, with the class that it has.
func classed(err error) error {
	if errors.Is(err, unix.ENOENT) && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrLost) {
		return fmt.Errorf("%w: %w", host.Public(err), backend.ErrLost)
	}
	return host.Public(err)
}
