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
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

// nursery keeps a launcher ready that waits, in its control group and namespaces, for what it is to build. Making those
// takes longer than all the rest, most of it waiting: on cgroup version 1 the kernel needs some 8 ms to move a process
// into a group.
type nursery struct {
	b *Backend

	mu     sync.Mutex // guards what follows
	next   *cradle    // nil when none is wanted yet
	closed bool
	work   sync.WaitGroup // preparations under way
}

// cradle is a launcher that waits.
type cradle struct {
	group group
	ids   ids    // of the default user
	dir   string // with the socket and the log that it inherited
	l     *launching
	p     process

	done chan struct{} // closed when the fields above are set, or err
	err  error
}

// prepare makes the next cradle in the background.
func (n *nursery) prepare() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.next != nil || n.b.opts.Cold {
		return
	}
	c := &cradle{done: make(chan struct{})}
	n.next = c
	n.work.Go(func() {
		defer close(c.done)
		if c.err = n.b.fill(c); c.err != nil {
			n.b.log.Warn("local: the next sandbox cannot be prepared", "error", c.err)
			n.b.abandonCradle(c)
		}
	})
}

// take gives the cradle that is prepared, and waits for one that soon will be; nil when there is none, or it is not fit
// for a sandbox's user.
func (n *nursery) take(ctx context.Context, i ids) *cradle {
	n.mu.Lock()
	c := n.next
	if c == nil || i.User.UID >= blockIDs || i.User.GID >= blockIDs || !n.b.machine.blocks && i.User != defaultUser() {
		n.mu.Unlock()
		return nil
	}
	n.next = nil
	n.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		n.work.Go(func() { n.drop(c) })
		return nil
	}
	if c.err != nil {
		return nil
	}
	if !c.p.alive(n.b.machine.boot) { // somebody killed it
		n.b.abandonCradle(c)
		return nil
	}
	return c
}

// giveBack returns a cradle that was not used; nil is none.
func (n *nursery) giveBack(c *cradle) {
	if c == nil {
		return
	}
	n.mu.Lock()
	keep := !n.closed && n.next == nil
	if keep {
		n.next = c
	}
	n.mu.Unlock()
	if !keep {
		n.b.abandonCradle(c)
	}
}

func (n *nursery) drop(c *cradle) {
	<-c.done
	if c.err == nil {
		n.b.abandonCradle(c)
	}
}

// close removes what is prepared and waits for what is under way.
func (n *nursery) close() {
	n.mu.Lock()
	n.closed = true
	c := n.next
	n.next = nil
	n.mu.Unlock()
	if c != nil {
		n.drop(c)
	}
	n.work.Wait()
}

func defaultUser() launch.ID { return launch.ID{UID: 1000, GID: 1000} }

// fill makes a cradle's group, files and process.
func (b *Backend) fill(c *cradle) error {
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
	listener, log, err := (&box{dir: c.dir}).endpoints()
	if err != nil {
		return err
	}
	defer listener.Close()
	defer log.Close()
	if err := b.bear(c, listener, log); err != nil {
		return err
	}
	c.p, err = identify(c.l.pid, b.machine.boot)
	return err
}

// bear starts the launcher in the group. On cgroup version 1 it is born there, by a thread that joined before it.
func (b *Backend) bear(c *cradle, listener, log *os.File) (err error) {
	if b.machine.cgroups.v2 {
		if c.l, err = b.fork(c.ids, listener, log); err != nil {
			return err
		}
		return c.group.join(c.l.pid)
	}
	return kit.OnThread(func() error {
		if err := c.group.enter(); err != nil {
			return err
		}
		c.l, err = b.fork(c.ids, listener, log)
		return err
	})
}

// enter puts this thread into the group, whose next child is then born there.
func (g group) enter() error {
	for _, d := range g.all() {
		if err := writeFile(filepath.Join(d, "tasks"), strconv.Itoa(unix.Gettid())); err != nil {
			return fmt.Errorf("local: entering a control group: %w", err)
		}
	}
	return nil
}

// abandonCradle removes a cradle that nobody used.
func (b *Backend) abandonCradle(c *cradle) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	var errs []error
	if c.l != nil {
		c.l.close()
		errs = append(errs, c.p.kill(ctx, b.machine.boot))
	}
	errs = append(errs, c.group.remove(ctx), b.dirs.discard(ctx, c.dir), b.dirs.releaseBlock(c.ids.Base))
	if err := errors.Join(errs...); err != nil { // then the next New of this state directory does it
		b.log.Warn("local: what was prepared cannot be removed", "error", err)
	}
}

// moveIn makes a cradle the sandbox's: its group, socket and log.
func (x *box) moveIn(c *cradle, l backend.Limits, cpus int) error {
	for _, f := range []string{socketFile, logFile} {
		if err := os.Rename(filepath.Join(c.dir, f), x.file(f)); err != nil {
			return fmt.Errorf("local: moving into a prepared sandbox: %w", scrub(err))
		}
	}
	if err := os.Remove(c.dir); err != nil {
		return fmt.Errorf("local: moving into a prepared sandbox: %w", scrub(err))
	}
	return c.group.limit(l, cpus)
}
