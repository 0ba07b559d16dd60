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

// Files in a sandbox's directory.
const (
	recordFile = "record.json" // parameters of Create; immutable
	runFile    = "run.json"    // the current process, if any
	madeFile   = "made"        // exists when Create is complete
	lockFile   = "lock"        // locked during changes of the sandbox
	// identityLink is a dangling symbolic link to nonce@instance. Unlike a file, a link is never empty.
	identityLink = "identity"
	socketFile   = "guest.sock"
	logFile      = "guest.log" // standard error of the guest agent
)

// sandboxIDs matches sandbox IDs: the session ID and a nonce unique among the session's sandboxes.
var sandboxIDs = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_.-]{0,127})@([0-9a-f]{16})$`)

// record is the stored data of a sandbox.
type record struct {
	kit.Record
	Nonce      string            `json:"nonce"`
	Labels     map[string]string `json:"labels"` // see kit.Plan.SandboxLabels
	UserLabels map[string]string `json:"user_labels,omitempty"`
	IDs        ids               `json:"ids"`
	Group      string            `json:"group"` // name of the control group

	Environment string `json:"environment,omitempty"` // name of the sandbox's environment
	Building    string `json:"building,omitempty"`    // name of the environment to install in the sandbox
}

// nameOnly returns the record of an object created only to take a session's name.
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
	_, _ = rand.Read(b[:]) // documented to never fail
	return hex.EncodeToString(b[:])
}

// splitID splits a sandbox ID into session ID and nonce.
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
	fork *backend.ForkOf // origin of the workspace's files, if the sandbox gets a new workspace
	held io.Closer       // keeps a fork's workspace mounted until the sandbox mounts it; may be nil
	lock *flock.Flock    // nil if the sandbox is not locked
	disk errgroup.Group  // disk writes to finish before the creation is complete
}

func (x *sandbox) file(name string) string { return filepath.Join(x.dir, name) }

// letGo releases the workspace of a new fork.
func (x *sandbox) letGo() {
	if x.held != nil {
		_ = x.held.Close() // only a descriptor
	}
}

// readSandbox reads a sandbox without locking it. If the sandbox does not exist or the record is damaged, readSandbox
// returns ErrNotFound. Before the creator has written the record, only the data in the directory's link is available.
func (b *driver) readSandbox(session string) (*sandbox, error) {
	x := &sandbox{dir: b.dirs.sandbox(session)}
	for range 2 { // the record may just be written
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

// own reads a sandbox by ID.
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

// locked reads a sandbox by ID and locks it until unlock. The lock also excludes other processes.
func (b *driver) locked(ctx context.Context, id string) (*sandbox, error) {
	x, err := b.own(id)
	if err != nil {
		return nil, err
	}
	if err := x.acquire(ctx); err != nil {
		return nil, err
	}
	// The sandbox may have been removed, and even created again, before the lock was acquired.
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

// lockPause is the pause between attempts to acquire a lock.
const lockPause = 5 * time.Millisecond

func (x *sandbox) acquire(ctx context.Context) error {
	_, err := x.takeLock(func(l *flock.Flock) (bool, error) { return l.TryLockContext(ctx, lockPause) })
	if err != nil && ctx.Err() != nil {
		return ended(ctx)
	}
	return err
}

// tryLock acquires the lock if it is free. The kernel releases the lock when the owner dies.
func (x *sandbox) tryLock() (bool, error) { return x.takeLock((*flock.Flock).TryLock) }

func (x *sandbox) takeLock(take func(*flock.Flock) (bool, error)) (bool, error) {
	l := host.LockFile(x.file(lockFile))
	ok, err := take(l)
	switch {
	case ok:
		x.lock = l
	case errors.Is(err, os.ErrNotExist):
		err = notFound(x.session())
	case err != nil:
		err = failed("locking a sandbox", err)
	}
	return ok, err
}

// current reports whether the locked directory still has the sandbox's name.
func (x *sandbox) current() bool { return host.Current(x.lock) }

func (x *sandbox) unlock() {
	if x.lock != nil {
		_ = x.lock.Unlock() // no data was written
		x.lock = nil
	}
}

// running returns the sandbox's process. It returns false if the process does not exist or has exited.
func (x *sandbox) running(boot string) (process, bool) {
	p, ok := x.started()
	return p, ok && p.alive(boot)
}

// started returns the process of the last start, unless a stop followed.
func (x *sandbox) started() (process, bool) {
	var p process
	err := host.ReadJSON(x.file(runFile), &p)
	return p, err == nil
}

// made reports whether Create is complete.
func (x *sandbox) made() bool { return host.Exists(x.file(madeFile)) }

// socketPath returns a path of the guest agent's socket, short enough for a socket address. For a long path, it uses
// the path of a descriptor.
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
