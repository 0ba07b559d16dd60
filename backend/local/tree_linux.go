package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/workcell-dev/workcell/backend/internal/host"
)

// anybody owns what a removal left that did not come to its end.
const anybody = "any"

// discard removes a directory. Its name is free at once. What cannot be removed now, or before ctx ends, is left to the
// next sweep. One that is gone is no error; one in which something is mounted stays as it is.
func (d dirs) discard(ctx context.Context, dir string) error {
	if holdsMount(dir) {
		return host.ErrMounted
	}
	tmp := d.discarded()
	if err := os.Rename(dir, tmp); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return scrub(err)
	}
	err := scrub(host.RemoveTree(ctx, tmp))
	if err != nil {
		_, text, _ := cutLast(filepath.Base(tmp))
		_ = os.Rename(tmp, filepath.Join(d.trash(), anybody+"-"+text)) // else it is left until this process ends
	}
	return err
}

// holdsMount reports whether something is mounted on a directory or below it.
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
		entries, _ := os.ReadDir(dir) // another call reports what cannot be read
		for _, e := range entries {
			if owner, _, ok := cutLast(e.Name()); ok && (owner == anybody || isDead(owner, d.self)) {
				errs = append(errs, d.discard(ctx, filepath.Join(dir, e.Name())))
			}
		}
	}
	claims, _ := os.ReadDir(d.ids()) // as above
	for _, e := range claims {
		d.dropStale(filepath.Join(d.ids(), e.Name()))
	}
	return errors.Join(errs...)
}
