package kit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// ErrElsewhere means that a guest cannot be reached but through its engine.
var ErrElsewhere = errors.New("the guest is no process that can be entered from here")

// defaultGuest returns the guest that the library carries.
func defaultGuest() *backend.Guest {
	return &backend.Guest{Version: embed.Version(), Binary: embed.Binary}
}

// InstallGuest puts the guest's program into dir, unless it is there: a file of that name is whole, because it gets its name
// last. Until then it lies at temp and some digits. Doing it twice at a time does no harm.
func InstallGuest(dir, temp string, g *backend.Guest, arch string) error {
	path := filepath.Join(dir, filepath.Base(embed.Path))
	if st, err := os.Lstat(path); err == nil && st.Mode() == embed.Mode && st.Size() > 0 {
		return nil
	}
	bin, err := g.Binary(arch)
	if err != nil {
		return fmt.Errorf("no guest for %s: %v: %w", arch, err, backend.ErrUnsupported)
	}
	// Whatever the umask, the sandbox's user must be able to execute it.
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil { //nolint:gosec // sandboxes read it
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(temp), filepath.Base(temp))
	if err != nil {
		return err
	}
	_, err = f.Write(bin)
	err = errors.Join(err, f.Chmod(embed.Mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}
