package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gofrs/flock"
	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// Files of a sandbox's directory.
const (
	recordFile = "record.json" // what Create was asked for; never changes
	runFile    = "run.json"    // the process, while there is one
	madeFile   = "made"        // there when Create came to its end
	lockFile   = "lock"        // locked while the sandbox is changed
	// identityLink leads to nonce@instance, which is nowhere: unlike a file, a link is never there without its content.
	identityLink = "identity"
	socketFile   = "guest.sock"
	logFile      = "guest.log" // what the guest writes to its standard error
)

// sandboxIDs matches our ids: the session's, and a nonce that no other sandbox of the session has.
var sandboxIDs = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_.-]{0,127})@([0-9a-f]{16})$`)

// record is what is kept of a sandbox.
type record struct {
	kit.Record
	Nonce      string            `json:"nonce"`
	Labels     map[string]string `json:"labels"` // see kit.Plan.SandboxLabels
	UserLabels map[string]string `json:"user_labels,omitempty"`
	IDs        ids               `json:"ids"`
	Group      string            `json:"group"` // name of its control group

	Environment string `json:"environment,omitempty"` // name of the environment that it finds installed
	Building    string `json:"building,omitempty"`    // name of the environment that is to be installed in it
}

// nameOnly returns the record of something that has the name of a session.
func nameOnly(session, instance, nonce string) record {
	return record{Nonce: nonce, Labels: map[string]string{
		backend.LabelRole: backend.RoleSandbox, backend.LabelID: session, backend.LabelInstance: instance,
	}}
}

func (r *record) session() string  { return r.Labels[backend.LabelID] }
func (r *record) instance() string { return r.Labels[backend.LabelInstance] }
func (r *record) id() string       { return r.session() + "@" + r.Nonce }

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
	fork *backend.ForkOf // what its workspace begins as, if it is made
	held io.Closer       // keeps the workspace of a fork mounted until the sandbox mounts it; nil for other sandboxes
	lock *flock.Flock    // nil while it is not locked
	disk errgroup.Group  // writes that must reach the disk before the sandbox is made
}

func (x *sandbox) file(name string) string { return filepath.Join(x.dir, name) }

// letGo lets go of the workspace of a fork that was just made.
func (x *sandbox) letGo() {
	if x.held != nil {
		_ = x.held.Close() // a descriptor
	}
}

// readSandbox reads a sandbox without locking it. It returns ErrNotFound if the sandbox does not exist or its record
// is damaged. Before its creator has written the record, only the content of the directory's link is known.
func (b *driver) readSandbox(session string) (*sandbox, error) {
	x := &sandbox{dir: b.dirs.sandbox(session)}
	for range 2 { // the record may be written just now
		err := host.ReadJSON(x.file(recordFile), &x.record)
		if err == nil && x.session() == session && sandboxIDs.MatchString(x.id()) {
			return x, nil
		}
		if !x.made() {
			break
		}
	}
	target, err := os.Readlink(x.file(identityLink))
	nonce, instance, ok := strings.Cut(target, "@")
	if err != nil || !ok || x.made() {
		return nil, notFound(session)
	}
	x.record = nameOnly(session, instance, nonce)
	return x, nil
}

// own reads a sandbox by its id.
func (b *driver) own(id string) (*sandbox, error) {
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
func (b *driver) locked(ctx context.Context, id string) (*sandbox, error) {
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

// lockPause is the pause between tries to get a lock.
const lockPause = 5 * time.Millisecond

func (x *sandbox) acquire(ctx context.Context) error {
	_, err := x.takeLock(func(l *flock.Flock) (bool, error) { return l.TryLockContext(ctx, lockPause) })
	if err != nil && ctx.Err() != nil {
		return ended(ctx)
	}
	return err
}

// tryLock takes the lock if nobody has it. The kernel frees it when its holder dies.
func (x *sandbox) tryLock() (bool, error) { return x.takeLock((*flock.Flock).TryLock) }

func (x *sandbox) takeLock(take func(*flock.Flock) (bool, error)) (bool, error) {
	l := flock.New(x.file(lockFile), flock.SetFlag(os.O_RDWR|os.O_CREATE), flock.SetPermissions(0o600))
	ok, err := take(l)
	switch {
	case ok:
		x.lock = l
	case errors.Is(err, os.ErrNotExist):
		err = notFound(x.session())
	case err != nil:
		err = fmt.Errorf("local: locking a sandbox: %w", scrub(err))
	}
	return ok, err
}

// current reports whether the lock is that of the directory which has the sandbox's name now.
func (x *sandbox) current() bool { return host.Current(x.lock) }

func (x *sandbox) unlock() {
	if x.lock != nil {
		_ = x.lock.Unlock() // nothing was written
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
	if err := host.ReadJSON(x.file(runFile), &p); err != nil {
		return p, false
	}
	return p, true
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
