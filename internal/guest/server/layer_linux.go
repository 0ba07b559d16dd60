package server

import (
	"os"

	"golang.org/x/sys/unix"
)

// layer is what commands write to the root file system outside of the workspace, over what the image has.
//
// On an overlay it is what has changed since the sandbox was made: an overlay copies a file, and the directories above it,
// before they change, with the time of the copy as that of their last change, which nobody can set. So what is older is
// the image's, a directory that is older has nothing new below it, and a look costs what was written and not what the
// image has. An image's file that got another owner or mode counts, for there is a copy of it. The clock must not be set
// back to before the sandbox was made: what is written until it has caught up is not seen.
//
// Elsewhere everything is counted, and what the first look finds is the image's.
type layer struct {
	beside string // the workspace
	since  int64  // when the sandbox was made, in nanoseconds of the Unix clock; 0 when nothing tells
	begun  bool   // a first look was taken
	base   usage  // what it found, unless since tells
}

// newLayer is for the layer over root.
func newLayer(root, workspace string) *layer {
	return &layer{beside: workspace, since: overlayBegun(root)}
}

// overlayBegun tells when the upper directory of the overlay at root was made; 0 when it is none, or nothing tells.
func overlayBegun(root string) int64 {
	var fs unix.Statfs_t
	var st unix.Statx_t
	if unix.Statfs(root, &fs) != nil || int64(fs.Type) != unix.OVERLAYFS_SUPER_MAGIC ||
		unix.Statx(unix.AT_FDCWD, root, 0, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}

// mountedFiles are those that engines mount, writable with the root, from their own disk.
func mountedFiles() []string { return []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} }

// measure adds up what was written. The caller holds looking.
func (l *layer) measure(root *os.File, limit DiskLimit, quit <-chan struct{}) (found usage, blind bool) {
	if l.since == 0 && !l.begun {
		l.base, _ = measure(root, DiskLimit{}, 0, mountedFiles(), quit) // of any size; what cannot be looked at is the image's own
	}
	l.begun = true
	limit.Bytes += l.base.bytes
	if limit.Files > 0 {
		limit.Files += l.base.files
	}
	found, blind = measure(root, limit, l.since, mountedFiles(), quit)
	return usage{max(0, found.bytes-l.base.bytes), max(0, found.files-l.base.files)}, blind
}

// quotas are the limits of what commands write.
type quotas struct{ workspace, layer *quota }

// quotaMarks remember how the limits were when a command began.
type quotaMarks struct{ workspace, layer quotaMark }

// admit is called before a command is started.
func (q quotas) admit() (m quotaMarks, err error) {
	if m.workspace, err = q.workspace.admit(); err == nil {
		m.layer, err = q.layer.admit()
	}
	return m, err
}

// frozen: the command must not write.
func (m quotaMarks) frozen() bool { return m.workspace.frozen || m.layer.frozen }

func (q quotas) started() {
	q.workspace.started()
	q.layer.started()
}

// shortage is what was wanting to a command.
type shortage struct {
	full    bool // there was no room at some time
	stopped bool // commands were ended for that
	outside bool // of the workspace, where there was room
}

// ended is called at a command's end; see quota.ended.
func (q quotas) ended(since quotaMarks, cut, failed bool) shortage {
	full, stopped := q.workspace.ended(since.workspace, cut, failed)
	fullOutside, stoppedOutside := q.layer.ended(since.layer, cut, failed)
	return shortage{full || fullOutside, stopped || stoppedOutside, fullOutside && !full && !stopped}
}

func (q quotas) close() {
	q.workspace.close()
	q.layer.close()
}

// gate bounds how many file operations run at a time: each may block a thread, and under a limit on processes there
// may be no more threads to be had.
type gate chan struct{}

func (g gate) do(f func() error) error {
	g <- struct{}{}
	defer func() { <-g }()
	return f()
}
