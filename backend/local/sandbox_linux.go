package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

// Files of a sandbox's directory.
const (
	recordFile = "record.json" // what Create was asked for; never changes
	runFile    = "run.json"    // the process, while there is one
	madeFile   = "made"        // there when Create came to its end
	lockFile   = "lock"        // locked by whoever changes the sandbox
	// identityLink leads to nonce@instance, which is nowhere: unlike a file, a link is never there without its content.
	identityLink = "identity"
	socketFile   = "guest.sock"
	logFile      = "guest.log" // what the guest writes to its standard error
)

// sandboxIDs matches our ids: the session's, and a nonce that no other sandbox of the session has.
var sandboxIDs = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_.-]{0,127})@([0-9a-f]{16})$`)

// record is what is kept of a Spec, with all defaults filled in.
type record struct {
	Nonce     string              `json:"nonce"`
	SessionID string              `json:"session"`
	Instance  string              `json:"instance"`
	Key       string              `json:"key"`
	Run       string              `json:"run"`
	Hash      string              `json:"hash"`
	User      launch.ID           `json:"user"`
	IDs       ids                 `json:"ids"`
	Group     string              `json:"group"` // name of its control group
	Root      backend.RootMode    `json:"root"`
	Network   backend.NetworkMode `json:"network"`
	Limits    backend.Limits      `json:"limits"`
	// Workspace is what holds the workspace's limit.
	Workspace backend.Enforcement `json:"workspace,omitempty"`
	// OrphanTimeout and Ephemeral are the Spec's.
	OrphanTimeout time.Duration     `json:"orphan_timeout,omitempty"`
	Ephemeral     bool              `json:"ephemeral,omitempty"`
	Labels        map[string]string `json:"labels"`
	Created       time.Time         `json:"created"`
}

func (r *record) id() string { return r.SessionID + "@" + r.Nonce }

func newNonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return hex.EncodeToString(b[:])
}

// splitID takes an id of ours apart.
func splitID(id string) (session, nonce string, err error) {
	m := sandboxIDs.FindStringSubmatch(id)
	if m == nil {
		return "", "", notFound(id)
	}
	return m[1], m[2], nil
}

func notFound(id string) error {
	return fmt.Errorf("local: sandbox %.64q: %w", id, backend.ErrNotFound)
}

// sandbox is a sandbox's directory.
type sandbox struct {
	dir string
	record
	damaged bool           // the record is lost, or not yet written
	lock    *os.File       // nil while it is not locked
	disk    errgroup.Group // writes that must reach the disk before the sandbox is made
}

func (x *sandbox) file(name string) string { return filepath.Join(x.dir, name) }

// readSandbox reads a sandbox without locking it; ErrNotFound for one that is not there. What is damaged comes from the copy
// that is kept beside the workspace; if there is none, no more is known than what the directory's link holds.
func (b *Backend) readSandbox(session string) (*sandbox, error) {
	x := &sandbox{dir: b.dirs.sandbox(session)}
	if err := readJSON(x.file(recordFile), &x.record); err == nil && x.names(session) {
		return x, nil
	}
	target, err := os.Readlink(x.file(identityLink))
	nonce, instance, ok := strings.Cut(target, "@")
	if err != nil || !ok {
		return nil, notFound(session) // what lies there, if anything, is none of ours
	}
	w, err := b.dirs.readOwner(session)
	if x.record = w.Record; err != nil || !x.names(session) || x.Nonce != nonce {
		x.record = record{SessionID: session, Nonce: nonce, Instance: instance}
		x.damaged = true
	}
	return x, nil
}

// names reports whether a record is whole and that of a session.
func (r *record) names(session string) bool {
	return r.SessionID == session && sandboxIDs.MatchString(r.id())
}

// own reads a sandbox by its id.
func (b *Backend) own(id string) (*sandbox, error) {
	session, nonce, err := splitID(id)
	if err != nil {
		return nil, err
	}
	x, err := b.readSandbox(session)
	if err != nil || x.Nonce != nonce {
		return nil, notFound(id)
	}
	return x, nil
}

// locked reads a sandbox by its id and keeps others, processes too, from changing it until unlock.
func (b *Backend) locked(ctx context.Context, id string) (*sandbox, error) {
	x, err := b.own(id)
	if err != nil {
		return nil, err
	}
	if err := x.acquire(ctx); err != nil {
		return nil, err
	}
	// It may have been removed, and even made again, before the lock was ours.
	again, err := b.own(id)
	if err == nil && !x.current() {
		err = notFound(id)
	}
	if err != nil {
		x.unlock()
		return nil, err
	}
	again.lock = x.lock
	return again, nil
}

// Pauses between tries to get a lock.
const (
	lockPause   = 2 * time.Millisecond
	lockLongest = 50 * time.Millisecond
)

func (x *sandbox) acquire(ctx context.Context) error {
	for pause := lockPause; ; pause = min(2*pause, lockLongest) {
		ok, err := x.tryLock()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// tryLock takes the lock if nobody has it. The kernel frees it when its holder dies.
func (x *sandbox) tryLock() (bool, error) {
	f, err := os.OpenFile(x.file(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return false, notFound(x.SessionID)
	}
	if err != nil {
		return false, fmt.Errorf("local: locking a sandbox: %w", scrub(err))
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		x.lock = f
		return true, nil
	}
	_ = f.Close() // nothing was written
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return false, fmt.Errorf("local: locking a sandbox: %w", err)
}

// current reports whether the lock is that of the directory which has the sandbox's name now.
func (x *sandbox) current() bool {
	var held, named unix.Stat_t
	return unix.Fstat(int(x.lock.Fd()), &held) == nil && unix.Stat(x.file(lockFile), &named) == nil && held.Ino == named.Ino && held.Dev == named.Dev
}

func (x *sandbox) unlock() {
	if x.lock != nil {
		// Closing it alone frees the lock only when no process that is just being made has the descriptor too.
		_ = errors.Join(unix.Flock(int(x.lock.Fd()), unix.LOCK_UN), x.lock.Close())
		x.lock = nil
	}
}

// running returns the sandbox's process; false when it has none or that one has ended.
func (x *sandbox) running(boot string) (process, bool) {
	p, ok := x.started()
	return p, ok && p.alive(boot)
}

// started returns the process of the last start that was not followed by a stop.
func (x *sandbox) started() (process, bool) {
	var p process
	if err := readJSON(x.file(runFile), &p); err != nil {
		return p, false
	}
	return p, true
}

// lives reports whether anything of the sandbox may still run. Its socket is asked when its files do not say.
func (x *sandbox) lives(boot string) bool {
	if _, ok := x.running(boot); ok {
		return true
	}
	path, done, err := x.socketPath()
	if err != nil {
		return false
	}
	defer done()
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close() // nothing was said
	}
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist)
}

// made reports whether Create came to its end.
func (x *sandbox) made() bool { return exists(x.file(madeFile)) }

// socketPath names the guest's socket: a path may be too long for a socket's address, a descriptor's is not.
func (x *sandbox) socketPath() (path string, done func(), err error) {
	if p := x.file(socketFile); len(p) < 100 {
		return p, func() {}, nil
	}
	fd, err := unix.Open(x.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, socketFile), func() { _ = unix.Close(fd) }, nil
}
