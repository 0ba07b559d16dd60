package disk

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Limit limits the size of a directory tree without the mounts in it. The zero value means no limit.
type Limit struct {
	Bytes int64 // disk space in bytes; 0 means no limit
	Files int64 // number of entries of all types; 0 means no limit
	// Watched makes the guest agent enforce the limit. Otherwise the file system enforces the limit, for example by a
	// fixed size, and the guest agent only reports the state.
	Watched bool
}

// Times and sizes for monitoring.
const (
	quotaTick  = 100 * time.Millisecond // interval of checks of the file system's free space while commands run
	quotaSoon  = 250 * time.Millisecond // interval of scans of a small tree
	quotaLate  = 5 * time.Second        // interval of scans of a large tree
	quotaShare = 20                     // a scan may take 1/quotaShare of the time between two scans
	quotaQuick = 20 * time.Millisecond  // a scan this fast is done at the end of every command
	quotaGrain = 64 << 10               // amounts below this size are ignored
	Block      = 4096                   // block size for counting

	// If the usage exceeds twice the limit plus this amount, commands cannot start.
	quotaSlackBytes = 64 << 20
	quotaSlackFiles = 4096
)

// usage is the size of a tree.
type usage struct{ bytes, files int64 }

func (u usage) plus(v usage) usage { return usage{u.bytes + v.bytes, u.files + v.files} }

// over reports whether u exceeds the limit.
func (l Limit) over(u usage) bool {
	return u.bytes > l.Bytes || l.Files > 0 && u.files > l.Files
}

// most returns the usage above which commands cannot start.
func (l Limit) most() Limit {
	m := Limit{Bytes: 2*l.Bytes + quotaSlackBytes}
	if l.Files > 0 {
		m.Files = 2*l.Files + quotaSlackFiles
	}
	return m
}

// Quota enforces the limit of a tree, which is the workspace or a layer. A nil Quota means no limit.
//
// If the file system enforces the limit, Quota only reports the state. Otherwise the guest agent scans the tree. While
// commands run, it scans several times per second. It scans less often if a scan takes longer, but immediately if the
// disk's free space shrinks. It also scans at the end of every command. The limit can be exceeded by the data written
// between two scans. If the limit is exceeded, all commands are killed, because it is unknown which of them wrote the
// data. Later commands may delete files, but cannot write until there is free space. The guest agent's own files are
// counted before they are written.
type Quota struct {
	limit Limit
	dir   string
	layer *layer      // nil for the workspace
	root  *os.File    // dir, opened while access was certain
	stop  func()      // kills every command
	busy  func() bool // reports whether a command or a remaining process of a command is running
	kick  chan struct{}
	first chan struct{} // closed after the first scan
	done  chan struct{}
	ctx   context.Context // ends with close
	end   context.CancelFunc

	ticking atomic.Bool // the watch goroutine will call busy next

	looking sync.Mutex // held during a scan and the consequences; guards the next three fields
	growth  growth
	note    string // effect of the last kill that truncated files
	noted   int64  // number of that kill

	mu     sync.Mutex // guards the fields below
	found  usage      // result of the last scan
	wrote  usage      // written by the guest agent since
	saved  time.Time  // time of the latest write
	open   usage      // reserved for current writes of the guest agent
	floor  usage      // usage above the limit; commands may keep but not increase it
	begun  time.Time  // start of the last scan
	looked time.Time  // end of the last scan
	cost   time.Duration
	free   usage     // free space of the file system at the last scan
	full   time.Time // start of the last scan without free space
	stops  int64     // number of kills of all commands
}

// NewQuota monitors dir, which is the workspace or the root of a layer. It calls stop and busy without holding a lock
// other than looking.
func NewQuota(dir string, over *layer, l Limit, stop func(), busy func() bool) (*Quota, error) {
	if l.Bytes <= 0 {
		return nil, nil //nolint:nilnil // nil means no limit
	}
	q := &Quota{limit: l, dir: dir, layer: over, stop: stop, busy: busy, kick: make(chan struct{}, 1),
		first: make(chan struct{}), done: make(chan struct{})}
	q.ctx, q.end = context.WithCancel(context.Background())
	q.floor = usage{l.Bytes, l.Files}
	if !l.Watched {
		close(q.first)
		close(q.done)
		return q, nil
	}
	var err error
	if q.root, err = os.Open(dir); err != nil {
		return nil, err
	}
	go q.watch()
	return q, nil
}

func (q *Quota) close() {
	if q == nil {
		return
	}
	q.end()
	<-q.done
	if q.root != nil {
		q.looking.Lock()
		defer q.looking.Unlock()
		_ = q.root.Close() // only read
	}
}

// watch scans the tree as often as the commands require, and sleeps while no command runs.
func (q *Quota) watch() {
	defer close(q.done)
	q.look() // in the background, because a large tree takes longer than a host waits
	close(q.first)
	for {
		var tick <-chan time.Time
		if q.busy() {
			tick = time.After(quotaTick)
			q.ticking.Store(true)
		}
		select {
		case <-q.ctx.Done():
			return
		case <-q.kick:
			q.ticking.Store(false)
		case <-tick:
			q.ticking.Store(false) // before busy is called again
			if q.due() {
				q.look()
			}
		}
	}
}

// due reports whether the next scan is due.
func (q *Quota) due() bool {
	q.mu.Lock()
	since, cost, before := time.Since(q.looked), q.cost, q.free
	room := usage{q.limit.Bytes - q.found.bytes, q.limit.Files - q.found.files}
	q.mu.Unlock()
	switch {
	case since >= max(quotaSoon, min(quotaShare*cost, quotaLate), 4*cost):
		return true
	case since < 2*cost:
		return false
	}
	// Other programs use the same disk, so this is only a hint.
	now := freeSpace(q.dir)
	return before.bytes-now.bytes >= max(room.bytes/2, quotaGrain) ||
		q.limit.Files > 0 && before.files-now.files >= max(room.files/2, quotaGrain/Block)
}

// freeSpace returns the free space of the file system, or 0 if it is unknown.
func freeSpace(dir string) usage {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return usage{}
	}
	return usage{int64(fs.Bfree) * fs.Bsize, int64(fs.Ffree)}
}

// look scans the tree and kills the commands if the limit is exceeded.
func (q *Quota) look() {
	q.looking.Lock()
	defer q.looking.Unlock()
	if !q.limit.Watched {
		q.ask()
		return
	}
	begun, free := time.Now(), freeSpace(q.dir)
	q.mu.Lock()
	own := q.wrote
	q.mu.Unlock()
	if q.ctx.Err() != nil {
		return
	}
	found, blind := q.measure()
	if blind { // maybe a rollback replaced the tree; hidden files stay hidden
		found, blind = q.measure()
	}
	if q.ctx.Err() == nil && q.take(found, own, begun, free, blind) {
		q.stop()
		q.cut()
	}
}

// measure scans the counted files.
func (q *Quota) measure() (found usage, blind bool) {
	if q.layer == nil {
		q.growth.now, q.growth.grown = map[FileID]int64{}, nil
		return measure(q.ctx, q.root, q.limit, 0, nil, &q.growth)
	}
	return q.layer.measure(q.ctx, q.root, q.limit)
}

// take records the result of a scan and reports whether commands must be killed. This is the case if the limit is
// exceeded and the usage grew, or if a scan was blind, because commands must not prevent scans.
func (q *Quota) take(found, own usage, begun time.Time, free usage, blind bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.looked = time.Now()
	q.found, q.begun, q.cost, q.free = found, begun, q.looked.Sub(begun), free
	q.wrote = q.wrote.plus(usage{-own.bytes, -own.files})
	if !blind && found.bytes <= q.limit.Bytes {
		q.growth.before = q.growth.now
	}
	if found.bytes >= q.limit.Bytes || q.limit.Files > 0 && found.files >= q.limit.Files {
		q.full = begun
	}
	grew := blind || found.bytes > q.floor.bytes || q.limit.Files > 0 && found.files > q.floor.files
	q.floor = usage{max(found.bytes, q.limit.Bytes), max(found.files, q.limit.Files)}
	if grew {
		q.stops++
	}
	return grew
}

// ask reads the state of a file system with an enforced limit.
func (q *Quota) ask() {
	begun := time.Now()
	var fs unix.Statfs_t
	if unix.Statfs(q.dir, &fs) != nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.found = usage{int64(fs.Blocks-fs.Bfree) * fs.Bsize, int64(fs.Files - fs.Ffree)}
	if isFull(&fs) {
		q.full = begun
	}
}

// isFull reports whether a file system has almost no free space, or no free inode.
func isFull(fs *unix.Statfs_t) bool {
	size := int64(fs.Blocks) * fs.Bsize
	return int64(fs.Bavail)*fs.Bsize < min(quotaGrain, size/64) || fs.Files > 0 && fs.Ffree == 0
}

// Full contains the sizes of /tmp and /dev/shm in bytes, if they are in memory and were full; otherwise 0.
type Full [2]int64

// Seen returns f, updated with the currently full directories.
func (f Full) Seen() Full {
	for i, dir := range [...]string{"/tmp", "/dev/shm"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Blocks > 0 && isFull(&fs) {
			f[i] = int64(fs.Blocks) * fs.Bsize
		}
	}
	return f
}

// quotaMark records the start of a command and the number of kills up to then.
type quotaMark struct {
	at     time.Time
	stops  int64
	frozen bool // without free space, the command must not write
}

// admit is called before the start of a command.
func (q *Quota) admit() (m quotaMark, err error) {
	if q == nil {
		return m, nil
	}
	<-q.first
	if q.passed(q.limit) { // the result may be outdated
		q.look()
	}
	if q.passed(q.limit.most()) {
		return m, q.refusal()
	}
	frozen := q.passed(q.limit)
	q.mu.Lock()
	defer q.mu.Unlock()
	return quotaMark{time.Now(), q.stops, frozen}, nil
}

// started wakes up the watch goroutine. It must be called after busy includes the command, because otherwise the
// goroutine would go back to sleep.
func (q *Quota) started() {
	if q == nil || q.ticking.Load() {
		return
	}
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

func (q *Quota) passed(l Limit) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.limit.Watched && l.over(q.found)
}

// ended is called at the end of a command. failed reports whether the command failed. cut reports whether a file of the
// command reached the maximum file size. full reports whether space was missing at some time. stopped reports whether
// commands were killed for this reason since the command started, and note describes the effect on files.
func (q *Quota) ended(since quotaMark, cut, failed bool) (full, stopped bool, note string) {
	if q == nil {
		return false, false, ""
	}
	q.mu.Lock()
	seen, quick := q.begun.After(since.at), q.cost <= quotaQuick
	q.mu.Unlock()
	if quick && !q.untouched() || !seen && (cut || q.due()) {
		q.look()
	}
	q.mu.Lock()
	stopped = q.stops > since.stops
	full = q.full.After(since.at) || failed && (since.frozen || stopped)
	q.mu.Unlock()
	if stopped && q.layer == nil {
		q.looking.Lock() // the cut follows the scan with the kill
		defer q.looking.Unlock()
		if q.noted > since.stops {
			note = q.note
		}
	}
	return full, stopped, note
}

// untouched reports whether the free space of the workspace's file system is exactly the same as at the last scan, and
// whether the file system accounts for writes immediately. In this case, the command wrote no counted data. This check
// saves a scan, which takes a tenth of the time of a short command.
func (q *Quota) untouched() bool {
	var fs unix.Statfs_t
	if q.layer != nil || unix.Statfs(q.dir, &fs) != nil {
		return false
	}
	switch int64(fs.Type) { //nolint:unconvert // of 32 bits on some machines
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
	default:
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.free == usage{int64(fs.Bfree) * fs.Bsize, int64(fs.Ffree)}
}

// Reserve reserves space for a write of the guest agent. The caller must call release after the write has succeeded or
// failed.
func (q *Quota) Reserve(size, files int64) (release func(), err error) {
	if q == nil || !q.limit.Watched {
		return func() {}, nil
	}
	<-q.first
	want := usage{(size + Block - 1) / Block * Block, files}
	if !q.tryReserve(want) {
		q.look() // files may have been deleted
		if !q.tryReserve(want) {
			return nil, q.refusal()
		}
	}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.open = q.open.plus(usage{-want.bytes, -want.files})
		q.wrote = q.wrote.plus(want)
		q.saved = time.Now()
	}, nil
}

func (q *Quota) tryReserve(want usage) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.limit.over(q.used().plus(want)) {
		return false
	}
	q.open = q.open.plus(want)
	return true
}

func (q *Quota) refusal() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.used()
	if q.layer != nil {
		return wire.Errorf(wire.CodeQuota, "%d KiB are used outside %s, where the limit is %d KiB, in %d of at most %d "+
			"files: this sandbox cannot run commands; files in %[2]s can still be read",
			u.bytes>>10, q.layer.workspace, q.limit.Bytes>>10, u.files, q.limit.Files)
	}
	return wire.Errorf(wire.CodeQuota, "not enough space in the workspace: %d KiB of %d KiB are used, "+
		"in %d of at most %d files; delete some", u.bytes>>10, q.limit.Bytes>>10, u.files, q.limit.Files)
}

// used returns the known usage. The caller must hold mu.
func (q *Quota) used() usage { return q.found.plus(q.wrote).plus(q.open) }
