package disk

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// layer is the data written by commands to the root file system outside of the workspace, on top of the image.
//
// On an overlay, the layer consists of the files changed since the sandbox was created. Before a file changes, an
// overlay copies the file and the parent directories. The ctime of a copy is the time of the copying, and programs
// cannot set it. Therefore, older files belong to the image, and older directories contain no new files. The cost of a
// scan depends on the size of the layer and not on the size of the image. An image file whose owner or mode was changed
// counts, because the layer contains a copy of it. The clock must not be set to a time before the creation of the
// sandbox: files written until the clock catches up would not count.
//
// On other file systems, a scan counts all files. The files found by the first scan belong to the image.
type layer struct {
	workspace string // directory not counted
	since     int64  // creation time of the sandbox, in nanoseconds since the Unix epoch; 0 if unknown
	begun     bool   // a first scan was done
	base      usage  // result of the first scan; unused if since is known
}

// NewLayer returns the layer on top of root.
func NewLayer(root, workspace string) *layer {
	return &layer{workspace: workspace, since: overlayBegun(root)}
}

// overlayBegun returns the creation time of the upper directory of the overlay at root. It returns 0 if root is not an
// overlay or the time is unknown.
func overlayBegun(root string) int64 {
	var fs unix.Statfs_t
	var st unix.Statx_t
	//nolint:unconvert // of 32 bits on some machines
	if unix.Statfs(root, &fs) != nil || int64(fs.Type) != unix.OVERLAYFS_SUPER_MAGIC ||
		unix.Statx(unix.AT_FDCWD, root, 0, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}

// mountedFiles returns the files mounted by engines from their own disk, writable together with the root.
func mountedFiles() []string { return []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} }

// measure returns the size of the layer. The caller must hold looking.
func (l *layer) measure(ctx context.Context, root *os.File, limit Limit) (found usage, blind bool) {
	if l.since == 0 && !l.begun {
		l.base, _ = measure(ctx, root, Limit{}, 0, mountedFiles(), nil) // no limit; inaccessible files are the image's
	}
	l.begun = true
	limit.Bytes += l.base.bytes
	if limit.Files > 0 {
		limit.Files += l.base.files
	}
	found, blind = measure(ctx, root, limit, l.since, mountedFiles(), nil)
	return usage{max(0, found.bytes-l.base.bytes), max(0, found.files-l.base.files)}, blind
}

// Quotas are the limits for data written by commands.
type Quotas struct{ Workspace, Layer *Quota }

// Marks record the state of the limits at the start of a command.
type Marks struct{ workspace, layer quotaMark }

// Admit is called before the start of a command.
func (q Quotas) Admit() (m Marks, err error) {
	if m.workspace, err = q.Workspace.admit(); err == nil {
		m.layer, err = q.Layer.admit()
	}
	return m, err
}

// Frozen reports whether the command must not write.
func (m Marks) Frozen() bool { return m.workspace.frozen || m.layer.frozen }

// Started is called after the start of a command.
func (q Quotas) Started() {
	q.Workspace.started()
	q.Layer.started()
}

// Shortage describes a lack of space during a command.
type Shortage struct {
	Full    bool // no space was available at some time
	Stopped bool // commands were killed because of this
	Outside bool // the shortage was outside of the workspace
	Note    string
}

// Ended is called at the end of a command; see Quota.ended.
func (q Quotas) Ended(since Marks, cut, failed bool) Shortage {
	full, stopped, note := q.Workspace.ended(since.workspace, cut, failed)
	fullOutside, stoppedOutside, _ := q.Layer.ended(since.layer, cut, failed)
	return Shortage{Full: full || fullOutside, Stopped: stopped || stoppedOutside,
		Outside: fullOutside && !full && !stopped, Note: note}
}

// Close stops monitoring.
func (q Quotas) Close() {
	q.Workspace.close()
	q.Layer.close()
}

// Gate limits the number of concurrent file operations. Each operation may block a thread, and with a process limit,
// additional threads may not be available.
type Gate chan struct{}

// Do calls f when the number of running operations is below the limit.
func (g Gate) Do(f func() error) error {
	g <- struct{}{}
	defer func() { <-g }()
	return f()
}
