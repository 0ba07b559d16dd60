package local

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/workcell-dev/workcell/backend/internal/host"
)

// Name of the owner of leftovers after an incomplete removal. Any process may remove them.
const anybody = "any"

// discard removes a directory. The directory's name is free immediately. Files not removed before ctx ends are left for
// the next sweep. If the directory does not exist, discard does nothing. If it contains a mount, discard returns
// host.ErrMounted and does not change it.
func (d dirs) discard(ctx context.Context, dir string) error {
	if holdsMount(dir) {
		return host.ErrMounted
	}
	text := "-" + strings.ToLower(rand.Text())
	tmp := filepath.Join(d.trash(), d.self+text)
	if err := os.Rename(dir, tmp); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return host.Public(err)
	}
	err := host.Public(host.RemoveTree(ctx, tmp))
	if err != nil {
		_ = os.Rename(tmp, filepath.Join(d.trash(), anybody+text)) // otherwise it is left until this process exits
	}
	return err
}

// holdsMount reports whether a directory or a subdirectory is a mount point.
func holdsMount(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false // then the removal stops at the mount point
	}
	octal := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4]+"/", octal.Replace(real)+"/") {
			return true
		}
	}
	return false
}

// sweep removes leftovers of dead processes and claims of user IDs without an owner.
func (d dirs) sweep(ctx context.Context) error {
	var errs []error
	for _, dir := range []string{d.tmp(), d.trash()} {
		entries, _ := os.ReadDir(dir) // another call reports errors
		for _, e := range entries {
			owner := e.Name()[:max(0, strings.LastIndexByte(e.Name(), '-'))]
			if owner == anybody || isDead(owner, d.self) {
				errs = append(errs, d.discard(ctx, filepath.Join(dir, e.Name())))
			}
		}
	}
	claims, _ := os.ReadDir(d.ids()) // another call reports errors
	for _, e := range claims {
		d.dropStale(filepath.Join(d.ids(), e.Name()))
	}
	return errors.Join(errs...)
}
