package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

// warmPool keeps one prewarmed sandbox: a launcher that waits in its control group and namespaces. Making those takes
// longer than all the rest, most of it waiting: on cgroup version 1 the kernel needs some 8 ms to move a process
// into a group.
type warmPool struct {
	b *driver

	mu     sync.Mutex // guards what follows
	next   *prewarmed // nil when none is wanted yet
	closed bool
	work   sync.WaitGroup // preparations under way
}

// prewarmed is a sandbox that has no session yet.
type prewarmed struct {
	group group
	ids   ids    // of the default user
	dir   string // with the socket and the log that it inherited
	l     *launching
	p     process

	done chan struct{} // closed when the fields above are set, or err
	err  error
}

// prepare makes the next sandbox in the background.
func (w *warmPool) prepare() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.next != nil || w.b.opts.Cold {
		return
	}
	c := &prewarmed{done: make(chan struct{})}
	w.next = c
	w.work.Go(func() {
		defer close(c.done)
		if c.err = w.b.fill(c); c.err != nil {
			w.b.log.Warn("local: cannot prepare the next sandbox", "error", c.err)
			w.b.discardPrewarmed(c)
		}
	})
}

// take returns the prewarmed sandbox, and waits for one that is being made; nil when there is none, or it does not fit the
// user.
func (w *warmPool) take(ctx context.Context, i ids) *prewarmed {
	w.mu.Lock()
	c := w.next
	if c == nil || i.User.UID >= blockIDs || i.User.GID >= blockIDs || !w.b.machine.blocks && i.User != defaultUser() {
		w.mu.Unlock()
		return nil
	}
	w.next = nil
	w.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		w.work.Go(func() { w.drop(c) })
		return nil
	}
	if c.err != nil {
		return nil
	}
	if !c.p.alive(w.b.machine.boot) { // somebody killed it
		w.b.discardPrewarmed(c)
		return nil
	}
	return c
}

// put takes back what was not used; nil is fine.
func (w *warmPool) put(c *prewarmed) {
	if c == nil {
		return
	}
	w.mu.Lock()
	keep := !w.closed && w.next == nil
	if keep {
		w.next = c
	}
	w.mu.Unlock()
	if !keep {
		w.b.discardPrewarmed(c)
	}
}

func (w *warmPool) drop(c *prewarmed) {
	<-c.done
	if c.err == nil {
		w.b.discardPrewarmed(c)
	}
}

// close removes what is prepared and waits for what is under way.
func (w *warmPool) close() {
	w.mu.Lock()
	w.closed = true
	c := w.next
	w.next = nil
	w.mu.Unlock()
	if c != nil {
		w.drop(c)
	}
	w.work.Wait()
}

func defaultUser() launch.ID { return launch.ID{UID: 1000, GID: 1000} }

// fill makes the group, files and process of a prewarmed sandbox.
func (b *driver) fill(c *prewarmed) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	nonce := newNonce()
	c.group = group{b.machine.cgroups, b.groupPrefix() + nonce}
	c.ids = ids{User: defaultUser()}
	c.dir = b.dirs.prepared(nonce) // there before the group, and until a record names that
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return scrub(err)
	}
	if b.machine.blocks {
		var err error
		if c.ids.Base, err = b.dirs.claimBlock(preparing + b.dirs.self); err != nil {
			return err
		}
	}
	if err := c.group.create(ctx); err != nil {
		return err
	}
	listener, log, err := (&sandbox{dir: c.dir}).endpoints()
	if err != nil {
		return err
	}
	defer listener.Close()
	defer log.Close()
	if err := b.spawn(c, listener, log); err != nil {
		return err
	}
	c.p, err = identify(c.l.pid, b.machine.boot)
	return err
}

// spawn starts the launcher in the group. On cgroup version 1 a thread that joined before forks it there.
func (b *driver) spawn(c *prewarmed, listener, log *os.File) (err error) {
	if b.machine.cgroups.v2 {
		if c.l, err = b.fork(c.ids, listener, log); err != nil {
			return err
		}
		return c.group.join(c.l.pid)
	}
	return host.OnThread(func() error {
		if err := c.group.enter(); err != nil {
			return err
		}
		c.l, err = b.fork(c.ids, listener, log)
		return err
	})
}

// enter puts this thread into the group, whose next child then begins there.
func (g group) enter() error {
	for _, d := range g.all() {
		if err := writeFile(filepath.Join(d, "tasks"), strconv.Itoa(unix.Gettid())); err != nil {
			return fmt.Errorf("local: entering a control group: %w", err)
		}
	}
	return nil
}

// discardPrewarmed removes a prewarmed sandbox that nobody used.
func (b *driver) discardPrewarmed(c *prewarmed) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	var errs []error
	if c.l != nil {
		c.l.close()
		errs = append(errs, c.p.kill(ctx, b.machine.boot))
	}
	errs = append(errs, c.group.remove(ctx), b.dirs.discard(ctx, c.dir), b.dirs.releaseBlock(c.ids.Base))
	if err := errors.Join(errs...); err != nil { // then the next New of this state directory does it
		b.log.Warn("local: cannot remove prepared sandboxes", "error", err)
	}
}

// adopt takes over the group, socket and log of a prewarmed sandbox.
func (x *sandbox) adopt(c *prewarmed, l backend.Limits, cpus int) error {
	for _, f := range []string{socketFile, logFile} {
		if err := os.Rename(filepath.Join(c.dir, f), x.file(f)); err != nil {
			return fmt.Errorf("local: adopting a prewarmed sandbox: %w", scrub(err))
		}
	}
	if err := os.Remove(c.dir); err != nil {
		return fmt.Errorf("local: adopting a prewarmed sandbox: %w", scrub(err))
	}
	return c.group.limit(l, cpus)
}
