package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// layer is what commands write to the root file system outside of the workspace, over what the image has.
//
// On an overlay it is what has changed since the sandbox was made: an overlay copies a file, and the directories above
// it, before they change, with the time of the copy as that of their last change, which nobody can set. So what is
// older is the image's, a directory that is older has nothing new below it, and a look costs what was written and not
// what the image has. An image's file that got another owner or mode counts, for there is a copy of it. The clock must
// not be set back to before the sandbox was made: what is written until it has caught up is not seen.
//
// Elsewhere everything is counted, and what the first look finds is the image's.
type layer struct {
	workspace string // which does not count
	since     int64  // when the sandbox was made, in nanoseconds of the Unix clock; 0 when unknown
	begun     bool   // a first look was taken
	base      usage  // what it found, unless since is known
}

// NewLayer is for the layer over root.
func NewLayer(root, workspace string) *layer {
	return &layer{workspace: workspace, since: overlayBegun(root)}
}

// overlayBegun returns when the upper directory of the overlay at root was made; 0 when it is none or that is unknown.
func overlayBegun(root string) int64 {
	var fs unix.Statfs_t
	var st unix.Statx_t
	if unix.Statfs(root, &fs) != nil || int64(fs.Type) != unix.OVERLAYFS_SUPER_MAGIC || //nolint:unconvert // of 32 bits on some machines
		unix.Statx(unix.AT_FDCWD, root, 0, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}

// mountedFiles are those that engines mount, writable with the root, from their own disk.
func mountedFiles() []string { return []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} }

// measure adds up what was written. The caller holds looking.
func (l *layer) measure(root *os.File, limit Limit, quit <-chan struct{}) (found usage, blind bool) {
	if l.since == 0 && !l.begun {
		l.base, _ = measure(root, Limit{}, 0, mountedFiles(), nil, quit) // of any size; what cannot be looked at is the image's own
	}
	l.begun = true
	limit.Bytes += l.base.bytes
	if limit.Files > 0 {
		limit.Files += l.base.files
	}
	found, blind = measure(root, limit, l.since, mountedFiles(), nil, quit)
	return usage{max(0, found.bytes-l.base.bytes), max(0, found.files-l.base.files)}, blind
}

// Quotas are the limits of what commands write.
type Quotas struct{ Workspace, Layer *Quota }

// Marks remember how the limits were when a command began.
type Marks struct{ workspace, layer quotaMark }

// Admit is called before a command is started.
func (q Quotas) Admit() (m Marks, err error) {
	if m.workspace, err = q.Workspace.admit(); err == nil {
		m.layer, err = q.Layer.admit()
	}
	return m, err
}

// frozen: the command must not write.
func (m Marks) Frozen() bool { return m.workspace.frozen || m.layer.frozen }

// Started is called when a command has been started.
func (q Quotas) Started() {
	q.Workspace.started()
	q.Layer.started()
}

// Shortage is what was wanting to a command.
type Shortage struct {
	Full    bool // there was no room at some time
	Stopped bool // commands were ended for that
	Outside bool // of the workspace, where there was room
	Note    string
}

// Ended is called at a command's end; see quota.ended.
func (q Quotas) Ended(since Marks, cut, failed bool) Shortage {
	full, stopped := q.Workspace.ended(since.workspace, cut, failed)
	fullOutside, stoppedOutside := q.Layer.ended(since.layer, cut, failed)
	return Shortage{full || fullOutside, stopped || stoppedOutside, fullOutside && !full && !stopped, q.Workspace.shortened(since.workspace)}
}

// Close ends the watches.
func (q Quotas) Close() {
	q.Workspace.close()
	q.Layer.close()
}

// Gate bounds how many file operations run at a time: each may block a thread, and under a limit on processes there
// may be no more threads to be had.
type Gate chan struct{}

// Do calls f when there is room for another operation.
func (g Gate) Do(f func() error) error {
	g <- struct{}{}
	defer func() { <-g }()
	return f()
}
