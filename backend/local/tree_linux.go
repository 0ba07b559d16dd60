package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
)

// removeTree removes a directory and all that is in it, whatever a sandbox made of it: a hundred thousand levels, modes
// that forbid everything, names that are no text. It takes one level at a time, moving what lies deeper up to the top, so
// that neither paths nor open files grow. What is gone already, because somebody else removes the tree too, is no error.
func removeTree(ctx context.Context, dir string) error {
	top, err := openDir(unix.AT_FDCWD, dir, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing a tree: %w", err)
	}
	defer unix.Close(top)
	r := &remover{ctx: ctx, top: top}
	for {
		left, err := r.empty(top)
		if err == nil && !left {
			err = ignoreMissing(unix.Rmdir(dir))
			if err == nil {
				return nil
			}
		}
		if err != nil && !errors.Is(err, unix.ENOTEMPTY) { // to which somebody else who removes it may have moved something
			return fmt.Errorf("removing a tree: %w", err)
		}
	}
}

type remover struct {
	ctx   context.Context
	top   int
	moved int // names the next directory that is moved to the top
}

// openDir opens a directory that is no link.
func openDir(dirfd int, name string, resolve uint64) (int, error) {
	fd, err := unix.Openat2(dirfd, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve})
	if errors.Is(err, unix.EXDEV) {
		return -1, errMounted
	}
	return fd, err
}

// errMounted: the removal of a tree stopped before what somebody mounted in it.
var errMounted = fmt.Errorf("something is mounted in it that is not the sandbox's, unmount it first: %w", backend.ErrUnavailable)

// batch is how many entries are looked at between two looks at the context.
const batch = 512

// empty takes everything out of a directory. Directories of the top are emptied and removed; those of another one move
// to the top. It tells whether there was anything, as there may be more by now.
func (r *remover) empty(dirfd int) (left bool, err error) {
	fd, err := openDir(dirfd, ".", unix.RESOLVE_NO_XDEV)
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(fd), "dir")
	defer f.Close()
	for {
		if r.ctx.Err() != nil {
			return true, context.Cause(r.ctx)
		}
		names, err := f.Readdirnames(batch)
		for _, name := range names {
			left = true
			if err := r.remove(dirfd, name); err != nil {
				return true, err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrNotExist) { // somebody else removed it
			return left, nil
		}
		if err != nil {
			return left, scrub(err)
		}
	}
}

func (r *remover) remove(dirfd int, name string) error {
	err := unix.Unlinkat(dirfd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.EBUSY) {
		return errMounted
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	err = unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.EBUSY) { // what is mounted there is somebody else's
		return errMounted
	}
	// An ordinary user needs the right to change a directory, also to move it.
	if err := unix.Fchmodat(dirfd, name, 0o700, 0); err != nil {
		return ignoreMissing(err)
	}
	if dirfd != r.top {
		return r.lift(dirfd, name)
	}
	fd, err := openDir(dirfd, name, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return ignoreMissing(err)
	}
	_, err = r.empty(fd)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	err = unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) {
		return nil // the next pass finds it
	}
	return ignoreMissing(err)
}

// lift moves a directory to the top.
func (r *remover) lift(dirfd int, name string) error {
	for {
		r.moved++
		err := unix.Renameat2(dirfd, name, r.top, fmt.Sprintf(".lifted-%d", r.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return ignoreMissing(err)
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// anybody owns what a removal left that did not come to its end.
const anybody = "any"

// discard removes a directory. Its name is free at once. What cannot be removed now, or before ctx ends, is left to the
// next sweep. One that is gone is no error; one in which something is mounted stays as it is.
func (d dirs) discard(ctx context.Context, dir string) error {
	if holdsMount(dir) {
		return errMounted
	}
	tmp := d.discarded()
	if err := os.Rename(dir, tmp); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return scrub(err)
	}
	err := removeTree(ctx, tmp)
	if err != nil {
		_, text, _ := cutLast(filepath.Base(tmp))
		_ = os.Rename(tmp, filepath.Join(d.trash(), anybody+"-"+text)) // else it is left until this process ends
	}
	return err
}

// holdsMount tells whether something is mounted on a directory or below it.
func holdsMount(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false // then the removal stops when it comes there
	}
	octal := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4]+"/", octal.Replace(real)+"/") {
			return true
		}
	}
	return false
}

func cutLast(name string) (owner, text string, ok bool) {
	at := strings.LastIndexByte(name, '-')
	if at < 0 {
		return "", "", false
	}
	return name[:at], name[at+1:], true
}

// sweep removes what dead processes left half made or half removed, and claims to user ids that nobody has any more.
func (d dirs) sweep(ctx context.Context) error {
	var errs []error
	for _, dir := range []string{d.tmp(), d.trash()} {
		for _, e := range d.entries(dir) {
			if owner, _, ok := cutLast(e); ok && (owner == anybody || isDead(owner, d.self)) {
				errs = append(errs, d.discard(ctx, filepath.Join(dir, e)))
			}
		}
	}
	for _, e := range d.entries(d.ids()) {
		d.dropStale(filepath.Join(d.ids(), e))
	}
	return errors.Join(errs...)
}

// entries lists names in a directory of ours; none when it cannot be read, which others will report.
func (d dirs) entries(dir string) []string {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil
	}
	return names
}
