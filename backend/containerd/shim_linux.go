package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
)

// sweepPause is the shortest time between two looks for stray shims that List takes.
const sweepPause = time.Minute

// sweepLater has stray shims ended beside the caller, unless that was done a short time ago.
func (b *driver) sweepLater(ctx context.Context) {
	b.mu.Lock()
	due := time.Since(b.swept) >= sweepPause
	if due {
		b.swept = time.Now()
	}
	b.mu.Unlock()
	if due {
		b.calls.Background(ctx, b.sweepShims)
	}
}

// sweepShims ends stray shims. When the caller of containerd dies while a task is being made, containerd cleans up behind
// the shim that it just started, but sometimes lets the process itself live: without a task, its directory deleted, until
// the machine restarts.
func (b *driver) sweepShims(ctx context.Context) {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return // never
	}
	for _, dir := range names {
		if id := b.strayShim(dir); id != "" && b.useless(ctx, id) {
			b.endShim(ctx, dir, id)
		}
	}
}

// strayShim returns the id of the container that a process was a shim for, in our namespace, if it is a shim whose directory
// was deleted; else "".
func (b *driver) strayShim(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return ""
	}
	args := strings.Split(string(data), "\x00")
	if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") {
		return ""
	}
	flag := map[string]string{}
	for i := 1; i+1 < len(args); i++ {
		flag[args[i]] = args[i+1]
	}
	bundle, err := os.Readlink(filepath.Join(dir, "cwd"))
	if err != nil || !strings.HasSuffix(bundle, " (deleted)") || flag["-namespace"] != b.opts.Namespace ||
		!sameSocket(flag["-address"], b.opts.Address) || !containerIDs.MatchString(flag["-id"]) {
		return ""
	}
	return flag["-id"]
}

// useless reports whether a stray shim serves nobody: it has no task, and its container is this installation's, or gone. One
// that is gone never comes back, because its record is there before its shim, and no other container gets its name.
func (b *driver) useless(ctx context.Context, container string) bool {
	if _, err := b.task(ctx, container); !errors.Is(err, backend.ErrNotFound) {
		return false
	}
	r, err := b.record(ctx, container)
	return errors.Is(err, backend.ErrNotFound) || r != nil && r.state() == b.state
}

// endShim ends a process that is still the stray shim it was.
func (b *driver) endShim(ctx context.Context, dir, container string) {
	pid, err := strconv.Atoi(filepath.Base(dir))
	if err != nil {
		return
	}
	p, err := os.FindProcess(pid) // a handle, so that what is looked at next is what is killed
	if err != nil {
		return
	}
	defer p.Release() //nolint:errcheck // never fails
	if b.strayShim(dir) != container {
		return
	}
	err = p.Signal(unix.SIGTERM) // so that it deletes its socket
	for deadline := time.Now().Add(killWait); err == nil && b.strayShim(dir) == container; {
		if time.Now().After(deadline) || !pause(ctx, 20*time.Millisecond) {
			err = p.Kill()
			break
		}
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		b.log.Warn("containerd: a stray shim does not end", "container", container, "error", err)
	}
}

// sameSocket compares addresses, which may lead to one socket in several ways.
func sameSocket(a, b string) bool {
	sa, err1 := os.Stat(strings.TrimPrefix(a, "unix://"))
	sb, err2 := os.Stat(strings.TrimPrefix(b, "unix://"))
	return err1 == nil && err2 == nil && os.SameFile(sa, sb)
}
