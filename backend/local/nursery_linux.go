package local

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
)

// nursery keeps a control group ready in which a process can be born. On cgroup version 1 a process has to be moved into
// its group, for which the kernel takes some 8 ms; the child of a thread that is in the group is there from the start. So
// one thread of this process waits in a group for its only fork, after which it ends.
type nursery struct {
	cgroups cgroups
	prefix  string // of names

	mu     sync.Mutex // guards what follows
	next   *cradle    // nil while none is ready
	closed bool
	work   sync.WaitGroup // goroutines under way
}

// cradle is a group with a thread of ours in it.
type cradle struct {
	group
	jobs chan func()   // takes one function to run on that thread
	done chan struct{} // closed when the thread is about to end
	once sync.Once     // closes jobs
}

// prepare makes the next group in the background. On version 2 there is none: a move is quicker there, and a group cannot
// be renamed.
func (n *nursery) prepare() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed && !n.cgroups.v2 && len(n.cgroups.dirs) > 0 {
		n.work.Go(func() { onThread(n.wait) })
	}
}

// onThread runs f on a thread that ends with it, which the main thread never does.
func onThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return // without unlocking
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the main thread is taken
		f()
	}()
	<-done
}

// wait enters a new group and waits there for something to do.
func (n *nursery) wait() {
	c := &cradle{
		group: group{n.cgroups, n.prefix + "next-" + strings.ToLower(rand.Text())},
		jobs:  make(chan func(), 1), done: make(chan struct{}),
	}
	defer close(c.done)
	if c.enter() != nil || !n.offer(c) {
		n.work.Go(c.abandon)
		return
	}
	if job := <-c.jobs; job != nil {
		job()
	}
}

// enter makes the group and puts this thread there.
func (c *cradle) enter() error {
	for _, d := range c.all() {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(d, "tasks"), strconv.Itoa(unix.Gettid())); err != nil {
			return err
		}
	}
	return nil
}

// offer makes a cradle the next one, unless there is one or none is wanted any more.
func (n *nursery) offer(c *cradle) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.next != nil {
		return false
	}
	n.next = c
	return true
}

// take gives the prepared group; nil when none is ready. The caller must release it, and prepare another one when it is
// done with control groups: the kernel makes all others who change any wait for the same 8 ms.
func (n *nursery) take() *cradle {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.next
	n.next = nil
	return c
}

// close removes what is prepared and waits for what is under way.
func (n *nursery) close() {
	n.mu.Lock()
	n.closed = true
	c := n.next
	n.next = nil
	n.mu.Unlock()
	if c != nil {
		c.abandon()
	}
	n.work.Wait()
}

// turnInto gives the group its limits and its final name.
func (c *cradle) turnInto(g group, l backend.Limits, cpus int) error {
	if err := c.limit(l, cpus); err != nil {
		return err
	}
	for _, d := range c.all() {
		if err := os.Rename(d, filepath.Join(filepath.Dir(d), g.name)); err != nil {
			return fmt.Errorf("local: naming a control group: %w", scrub(err))
		}
	}
	c.group = g
	return nil
}

// run runs f in the group, at most once.
func (c *cradle) run(f func()) {
	ran := make(chan struct{})
	c.jobs <- func() {
		defer close(ran)
		f()
	}
	<-ran
}

// release lets the thread end, which leaves the group.
func (c *cradle) release() { c.once.Do(func() { close(c.jobs) }) }

// abandon removes a cradle that nobody used.
func (c *cradle) abandon() {
	c.release()
	<-c.done
	ctx, cancel := context.WithTimeout(context.Background(), rmdirPatience)
	defer cancel()
	_ = c.remove(ctx) // else the next New of this state directory does it
}
