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

// Names in the snapshots directory. Names of snapshots do not begin with a dot.
const (
	storeName  = "snapshots"
	recordFile = "snapshot.json"
	filesDir   = "files"
	newPrefix  = ".new-" // prefix of an incomplete snapshot
	goneName   = ".gone-"
	// busyFile exists while the sandbox is frozen. It records the operation to complete before the next access to the
	// sandbox.
	busyFile = ".busy"
)

// Workspace describes the location of a session's workspace. The methods are safe for concurrent use, including use by
// several processes.
type Workspace struct {
	Dir   string // removed together with the workspace; contains the snapshots
	Files string // directory with the files, below Dir; unused if Image is set
	Image string // file system image, below Dir; empty if the workspace is a directory
	// Base is the first ID of the block of the files' owner IDs.
	Base int64
	// Processes identifies the processes of the running sandbox.
	Processes host.Processes
}

// record describes a snapshot.
type record struct {
	backend.Snapshot
	Base int64 `json:"base,omitempty"` // Workspace.Base
}

// busy records an operation on a frozen sandbox.
type busy struct {
	Rollback string `json:"rollback,omitempty"` // name of the snapshot to roll back to
}

const lockPause = 2 * time.Millisecond

func (w *Workspace) path(names ...string) string {
	return filepath.Join(append([]string{w.Dir, storeName}, names...)...)
}

// lock acquires an exclusive lock on the workspace's snapshots. The kernel releases the lock when the process exits.
func (w *Workspace) lock(ctx context.Context) (unlock func(), err error) {
	return w.take(func(l *flock.Flock) (bool, error) { return l.TryLockContext(ctx, lockPause) })
}

// share is like lock, but acquires a shared lock, for callers with read access only.
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

// Alone runs f, which fills or removes the directory of a workspace, under the exclusive lock. A concurrent fork or
// copy from the workspace would miss files without an error. If the directory does not exist, no process can use it,
// and Alone runs f without a lock.
func Alone(ctx context.Context, dir string, f func() error) error {
	unlock, err := (&Workspace{Dir: dir}).lock(ctx)
	if err == nil {
		defer unlock()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return f()
}

// Take creates a snapshot of the workspace.
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

// locked acquires the lock, calls recover, and runs f.
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

// add creates a snapshot. fill writes the contents to a new directory. If fill fails, add removes the directory.
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
		err = host.RenameNew(tmp, w.path(name))
	}
	if err != nil {
		err = errors.Join(classed(err), host.RemoveTree(context.WithoutCancel(ctx), tmp))
	}
	return err
}

// Copy copies a snapshot of another workspace to this workspace and keeps the snapshot's name.
func (w *Workspace) Copy(ctx context.Context, from *Workspace, name string) (err error) {
	if w.Dir == from.Dir {
		return fmt.Errorf("the snapshot belongs to the same workspace: %w", backend.ErrInvalid)
	}
	locks := []func(context.Context) (func(), error){w.lock, from.share}
	if from.Dir < w.Dir { // a fixed lock order prevents a deadlock
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
		// The workspace never had this state, so lastState must not select this snapshot. The files have no marks.
		return os.Chtimes(filepath.Join(dir, recordFile), time.Time{}, time.Unix(0, 0))
	})
}

// admit returns an error if the snapshot exists or the limit is reached.
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

// copyTo copies the workspace to a directory while the sandbox's commands are frozen.
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

// keepFiles copies the workspace's files to a new directory. It links files unchanged since the snapshot of lastState.
func (w *Workspace) keepFiles(ctx context.Context, dir string, rec *record) (err error) {
	now := time.Now()
	mapped, known := w.Processes.SharedFiles(ctx)
	m := &mirror{ctx: ctx, toKept: true, keepFree: true, made: func(src, dst file) error {
		if !known || mapped[src.st.Ino] || !changedBefore(src.st, now.Add(-settled)) {
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
		rec.Mechanism = w.mechanism() // lastState may have contained all files
	}
	return err
}

// lastState opens the files of the snapshot of the last creation or rollback. marked is the time of this operation. If
// no such snapshot exists, fd is -1.
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

// marked returns the time when the files of a snapshot were last marked. This is the modification time of the record.
func (w *Workspace) marked(name string) time.Time {
	st, err := os.Stat(w.path(name, recordFile))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// mechanism returns the mechanism used to copy the files. If the tree has no files, the mechanism is unknown, and
// mechanism returns SnapshotReflink.
func (m *mirror) mechanism() backend.SnapshotMechanism {
	if m.noClone.Load() {
		return backend.SnapshotCopy
	}
	return backend.SnapshotReflink
}

// between opens two directories and calls f with them.
func (m *mirror) between(src, dst string, f func(src, dst int) error) (err error) {
	from, leave, err := m.enter(unix.AT_FDCWD, src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	to, _, err := m.enter(unix.AT_FDCWD, dst) // the final mode is set last
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return f(from, to)
}

func openDir(path string) (int, error) {
	return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// freeze freezes the sandbox's commands until thaw. Before, it writes busyFile to allow another process to complete the
// operation if this process dies.
func (w *Workspace) freeze(ctx context.Context, b busy) (thaw func() error, err error) {
	again := Busy(w.Dir) // an interrupted rollback must not be forgotten
	if err := host.WriteJSON(w.path(busyFile), b, b.Rollback != ""); err != nil {
		return nil, classed(err)
	}
	if err = w.Processes.Freeze(ctx); err != nil && !again {
		err = errors.Join(err, os.Remove(w.path(busyFile)))
	}
	return w.release, err
}

// release thaws the sandbox's commands and removes busyFile.
func (w *Workspace) release() error {
	if err := w.Processes.Thaw(); err != nil {
		return err
	}
	return host.Ignore(os.Remove(w.path(busyFile)), os.ErrNotExist)
}

// Busy reports whether an operation is in progress or was interrupted. Before the sandbox is used or stopped, the
// caller must wait for the operation or complete it with Recover.
func Busy(dir string) bool {
	return unix.Access(filepath.Join(dir, storeName, busyFile), unix.F_OK) == nil
}

// Recover completes an operation of a dead process.
func (w *Workspace) Recover(ctx context.Context) error {
	if !Busy(w.Dir) {
		return nil
	}
	return w.locked(ctx, func() error { return nil })
}

// Thaw resumes the processes of a sandbox before a stop to allow them to receive signals. It does not complete an
// interrupted operation.
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

// recover implements Recover; the caller must hold the lock. It also removes incomplete snapshots.
func (w *Workspace) recover(ctx context.Context) error {
	entries, err := os.ReadDir(w.path())
	if err != nil {
		return classed(host.Ignore(err, os.ErrNotExist))
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) || strings.HasPrefix(e.Name(), goneName) {
			if err := host.RemoveTree(ctx, w.path(e.Name())); err != nil {
				return classed(err)
			}
		}
	}
	var b busy
	err = host.ReadJSON(w.path(busyFile), &b) // after a crash of the host, the file may be empty if it names no snapshot
	if _, unread := errors.AsType[*os.PathError](err); unread {
		return classed(host.Ignore(err, os.ErrNotExist))
	}
	switch _, err := w.read(b.Rollback); {
	case host.IsAny(err, backend.ErrNotFound, backend.ErrInvalid):
		return classed(w.release())
	case errors.As(err, new(unix.Errno)):
		return err
	}
	return w.rollback(ctx, b.Rollback) // does not need the record, which may be damaged
}

// read returns the record of a snapshot, or ErrNotFound.
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
	slices.SortFunc(list, func(a, b record) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// List returns the snapshots and the mechanism of the next snapshot. If the commands cannot be frozen, the mechanism is
// empty.
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

// mechanism detects the mechanism with a test copy between unnamed files. A workspace with a separate file system
// cannot share blocks with snapshots.
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

// Remove deletes a snapshot. It does nothing if the snapshot does not exist.
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

// Rollback restores the workspace from a snapshot.
func (w *Workspace) Rollback(ctx context.Context, name string) error {
	return w.locked(ctx, func() error {
		if _, err := w.read(name); err != nil {
			return err
		}
		return classed(w.rollback(ctx, name))
	})
}

// rollback restores the workspace from a snapshot. If an earlier rollback was interrupted at any point, another call
// has the same result. rollback ignores the cancellation of ctx, because a partial rollback leaves an invalid state.
func (w *Workspace) rollback(ctx context.Context, name string) error {
	ctx = context.WithoutCancel(ctx)
	// After a crash of the host, busyFile must not exist without the record.
	if err := host.Sync(w.path(name, recordFile)); err != nil {
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
		err = w.restore(ctx, name)
	}
	if err != nil { // the next access to the sandbox retries the rollback
		return errors.Join(err, w.Processes.Thaw())
	}
	return thaw()
}

func (w *Workspace) restore(ctx context.Context, name string) (err error) {
	last := w.marked(name)
	m := &mirror{
		ctx: ctx, fromKept: true,
		same: func(src file, dst *unix.Stat_t) bool { return marked(src, dst, last) },
		made: func(src, dst file) error { return mark(dst.st, src.fd) },
	}
	src, leave, err := m.enter(unix.AT_FDCWD, w.path(name, filesDir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	dst, _, err := w.open(m) // the final mode is set last
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if err := m.back(src, dst); err != nil {
		return err
	}
	now := time.Now()
	return os.Chtimes(w.path(name, recordFile), now, now) // marked reads this time
}

// Target describes the location of a new workspace for Fork.
type Target struct {
	Files string // existing directory, if the workspace is a directory
	// Image is the path of the file system image, created by Fork with the size Size. If the workspace is a directory,
	// Image is empty.
	Image string
	Size  sizedfs.Spec
	Base  int64 // first ID of the block of user IDs for the files' owners
}

// Fork creates the files of a new workspace from a snapshot. The caller must close the returned Closer after it mounted
// the workspace for the sandbox. The Closer keeps a file system mounted, because otherwise an unmount would first have
// to write all data to the disk.
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
	if err := os.Remove(to.Image); err != nil && !errors.Is(err, os.ErrNotExist) { // left over from a dead process
		return nil, classed(err)
	}
	held, err := w.fillImage(ctx, rec, to)
	return held, classed(err)
}

// copyFiles copies the files of a snapshot to a directory of a workspace or of another snapshot. kept marks the target
// as a snapshot.
func (w *Workspace) copyFiles(ctx context.Context, rec record, dir string, base int64, kept bool) (
	backend.SnapshotMechanism, error,
) {
	m := &mirror{ctx: ctx, shift: base - rec.Base, fromKept: true, toKept: kept, keepFree: true}
	err := m.between(w.path(rec.Name, filesDir), dir, m.run)
	return m.mechanism(), classed(err)
}

// fillImage creates a file system with the files of a snapshot. The file system stays mounted until the caller closes
// the returned Closer.
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

// classed removes host paths from an error and keeps the class.
func classed(err error) error {
	if errors.Is(err, unix.ENOENT) && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrLost) {
		return fmt.Errorf("%w: %w", host.Public(err), backend.ErrLost)
	}
	return host.Public(err)
}
