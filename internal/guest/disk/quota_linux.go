package disk

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Limit bounds what lies in a directory tree, without what is mounted in it. The zero value is no limit.
type Limit struct {
	Bytes int64 // on the disk; 0 is no limit
	Files int64 // entries of any kind; 0 is no limit
	// Watched: nothing but the guest holds the limit. Otherwise the file system does, and the guest only reports it.
	Watched bool
}

// Times and sizes of the watch.
const (
	quotaTick  = 100 * time.Millisecond // between two glances at the file system while commands run
	quotaSoon  = 250 * time.Millisecond // between two looks at a small tree
	quotaLate  = 5 * time.Second        // between two looks at a large one
	quotaShare = 20                     // a look may take this part of the time between two
	quotaQuick = 20 * time.Millisecond  // a look that is taken at the end of every command
	quotaGrain = 64 << 10               // what is too little to look for
	Block      = 4096                   // how a file's size counts

	// Commands are refused altogether when twice the limit and this much are used.
	quotaSlackBytes = 64 << 20
	quotaSlackFiles = 4096
)

// usage is what lies in a tree.
type usage struct{ bytes, files int64 }

func (u usage) plus(v usage) usage { return usage{u.bytes + v.bytes, u.files + v.files} }

// over reports whether u is more than the limit.
func (l Limit) over(u usage) bool {
	return u.bytes > l.Bytes || l.Files > 0 && u.files > l.Files
}

// most is how much there may be before commands are refused.
func (l Limit) most() Limit {
	m := Limit{Bytes: 2*l.Bytes + quotaSlackBytes}
	if l.Files > 0 {
		m.Files = 2*l.Files + quotaSlackFiles
	}
	return m
}

// Quota is the limit of a tree: of the workspace, or of a layer. A nil one is no limit.
//
// A file system that has the limit keeps it by itself. Where none does, the guest measures: while commands run several
// times a second, the seldomer the longer a look takes but at once when the disk's free space shrinks, and at the end
// of every command. What a command writes between two looks is how much the limit can be passed. When it is, every
// command ends, because nobody can tell which of them wrote; later ones may delete but write nothing until there is
// room again. The guest's own files are counted before they are written.
type Quota struct {
	limit Limit
	dir   string
	layer *layer      // nil for the workspace
	root  *os.File    // dir, opened while that was sure to be allowed
	stop  func()      // ends every command
	busy  func() bool // reports whether a command, or what one left behind, runs
	kick  chan struct{}
	quit  chan struct{}
	first chan struct{} // closed after the first look
	done  chan struct{}

	ticking atomic.Bool // the watch is about to ask busy

	looking sync.Mutex // held while a look is taken and its consequence; guards the next two fields
	growth  growth
	note    string // what the last stop did to files; empty for nothing

	mu     sync.Mutex // guards the fields below
	found  usage      // at the last look
	wrote  usage      // by the guest since
	saved  time.Time  // when it last did
	open   usage      // reserved by what the guest is writing
	floor  usage      // what commands may keep though it is over the limit: they must not add to it
	begun  time.Time  // when the last look began
	looked time.Time  // when it ended
	cost   time.Duration
	free   usage     // what the file system had free then
	full   time.Time // when the last look that found no room began
	stops  int64     // how often commands were ended
}

// NewQuota watches dir, which is the workspace, or what a layer is over; stop and busy are called without any lock held
// but looking.
func NewQuota(dir string, over *layer, l Limit, stop func(), busy func() bool) (*Quota, error) {
	if l.Bytes <= 0 {
		return nil, nil //nolint:nilnil // a nil quota is no limit
	}
	q := &Quota{limit: l, dir: dir, layer: over, stop: stop, busy: busy, kick: make(chan struct{}, 1), quit: make(chan struct{}), first: make(chan struct{}), done: make(chan struct{})}
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
	if q != nil {
		close(q.quit)
		<-q.done
		if q.root != nil {
			q.looking.Lock()
			defer q.looking.Unlock()
			_ = q.root.Close() // only read
		}
	}
}

// watch looks as often as commands make it necessary, and sleeps while nothing but the guest runs.
func (q *Quota) watch() {
	defer close(q.done)
	q.look() // of many files it takes longer than a host waits for its guest
	close(q.first)
	for {
		var tick <-chan time.Time
		if q.busy() {
			tick = time.After(quotaTick)
			q.ticking.Store(true)
		}
		select {
		case <-q.quit:
			return
		case <-q.kick:
			q.ticking.Store(false)
		case <-tick:
			q.ticking.Store(false) // before busy is asked again
			if q.due() {
				q.look()
			}
		}
	}
}

// due reports whether it is time for the next look.
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
	// Others use the same disk, so this is a hint.
	now := freeSpace(q.dir)
	return before.bytes-now.bytes >= max(room.bytes/2, quotaGrain) ||
		q.limit.Files > 0 && before.files-now.files >= max(room.files/2, quotaGrain/Block)
}

// freeSpace is what the file system has free, 0 when it does not tell.
func freeSpace(dir string) usage {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return usage{}
	}
	return usage{int64(fs.Bfree) * fs.Bsize, int64(fs.Ffree)}
}

// look measures the tree, and ends the commands that have passed the limit.
func (q *Quota) look() {
	q.looking.Lock()
	defer q.looking.Unlock()
	if !q.limit.Watched {
		begun := time.Now()
		found, full := q.ask()
		q.mu.Lock()
		defer q.mu.Unlock()
		q.found = found
		if full {
			q.full = begun
		}
		return
	}
	begun, free := time.Now(), freeSpace(q.dir)
	q.mu.Lock()
	own := q.wrote
	q.mu.Unlock()
	if closed(q.quit) {
		return
	}
	found, blind := q.measure()
	if blind { // perhaps because a rollback replaced the tree meanwhile; who hides something from the one look hides it from the other
		found, blind = q.measure()
	}
	if !closed(q.quit) && q.take(found, own, begun, free, blind) {
		q.stop()
		q.cut()
	}
}

// measure takes a look at what counts.
func (q *Quota) measure() (found usage, blind bool) {
	if q.layer == nil {
		q.growth.now, q.growth.grown = map[FileID]int64{}, nil
		return measure(q.root, q.limit, 0, nil, &q.growth, q.quit)
	}
	return q.layer.measure(q.root, q.limit, q.quit)
}

// take records a look and reports whether commands must end: there is too much, and more than there was. A
// blind look cannot tell, and what it was kept from must end.
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

// ask asks a file system that has the limit itself.
func (q *Quota) ask() (found usage, full bool) {
	var fs unix.Statfs_t
	if unix.Statfs(q.dir, &fs) != nil {
		return usage{}, false
	}
	size := fs.Bsize
	found = usage{int64(fs.Blocks-fs.Bfree) * size, int64(fs.Files - fs.Ffree)}
	return found, isFull(&fs)
}

// isFull reports whether a file system has next to no room, or no room for another file.
func isFull(fs *unix.Statfs_t) bool {
	size := int64(fs.Blocks) * fs.Bsize
	return int64(fs.Bavail)*fs.Bsize < min(quotaGrain, size/64) || fs.Files > 0 && fs.Ffree == 0
}

// Full holds the sizes of /tmp and /dev/shm in bytes, if they are in memory and were full; else 0.
type Full [2]int64

// Seen returns f with the directories that are full now.
func (f Full) Seen() Full {
	for i, dir := range [...]string{"/tmp", "/dev/shm"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Blocks > 0 && isFull(&fs) {
			f[i] = int64(fs.Blocks) * fs.Bsize
		}
	}
	return f
}

// quotaMark remembers when a command began, and how often commands had been ended then.
type quotaMark struct {
	at     time.Time
	stops  int64
	frozen bool // there was no room, and the command must not write
}

// admit is called before a command is started.
func (q *Quota) admit() (m quotaMark, err error) {
	if q == nil {
		return m, nil
	}
	<-q.first
	if q.passed(q.limit) { // perhaps not any more
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

// started wakes the watch. It is called when busy knows of the command: a watch that woke before would sleep again.
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

// ended is called at the end of a command, which failed or did not. It reports whether there was no room for it at some
// time, and whether commands were ended since it began for that. cut: a file of the command became as large as it may.
func (q *Quota) ended(since quotaMark, cut, failed bool) (full, stopped bool) {
	if q == nil {
		return false, false
	}
	q.mu.Lock()
	seen := q.begun.After(since.at)
	q.mu.Unlock()
	if q.quick() && !q.untouched() || !seen && (cut || q.due()) {
		q.look()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	stopped = q.stops > since.stops
	return q.full.After(since.at) || failed && (since.frozen || stopped), stopped
}

// shortened returns what to tell a command of files that were cut since it began.
func (q *Quota) shortened(since quotaMark) string {
	if q == nil {
		return ""
	}
	q.mu.Lock()
	stopped := q.stops > since.stops
	q.mu.Unlock()
	if !stopped {
		return ""
	}
	q.looking.Lock() // the look that stopped it is followed by the cut
	defer q.looking.Unlock()
	return q.note
}

// untouched reports whether the workspace's file system has exactly as much free as at the last look, and is of a kind
// that counts what is written at once: then the command wrote nothing that counts. A look costs a tenth of a short
// command.
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

// quick reports whether a look takes so little time that a command's end can wait for it.
func (q *Quota) quick() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return closed(q.first) && q.cost <= quotaQuick
}

// Reserve makes sure of room for what the guest itself is about to write; release must be called when it is written, or
// was not.
func (q *Quota) Reserve(size, files int64) (release func(), err error) {
	if q == nil || !q.limit.Watched {
		return func() {}, nil
	}
	<-q.first
	want := usage{(size + Block - 1) / Block * Block, files}
	if !q.tryReserve(want) {
		q.look() // something may have been deleted
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
	if q.limit.over(q.found.plus(q.wrote).plus(q.open).plus(want)) {
		return false
	}
	q.open = q.open.plus(want)
	return true
}

func (q *Quota) refusal() error {
	u := q.used()
	if q.layer != nil {
		return wire.Errorf(wire.CodeQuota, "%d KiB are used outside %s, where the limit is %d KiB, in %d of at most %d files: "+
			"this sandbox cannot run commands; files in %[2]s can still be read", u.bytes>>10, q.layer.workspace, q.limit.Bytes>>10, u.files, q.limit.Files)
	}
	return wire.Errorf(wire.CodeQuota, "not enough space in the workspace: %d KiB of %d KiB are used, "+
		"in %d of at most %d files; delete some", u.bytes>>10, q.limit.Bytes>>10, u.files, q.limit.Files)
}

// used is what is known to be there.
func (q *Quota) used() usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.found.plus(q.wrote).plus(q.open)
}
