package kit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// ErrElsewhere means that only the engine can reach a guest agent.
var ErrElsewhere = errors.New("cannot enter the guest agent's process from this host")

// ErrNoProcess means that the process does not exist on this host. It wraps ErrElsewhere.
var ErrNoProcess = fmt.Errorf("no such process: %w", ErrElsewhere)

// defaultGuest returns the library's embedded guest agent.
func defaultGuest() *backend.Guest {
	return &backend.Guest{Version: embed.Version(), Binary: embed.Binary}
}

// ReadableGuest returns g with a readable program file, for sandboxes with gVisor. gVisor loads programs with the
// permissions of their user.
func ReadableGuest(g *backend.Guest) *backend.Guest {
	return &backend.Guest{Version: g.Version + "-readable", Binary: g.Binary, Readable: true}
}

// guestMode returns the file mode of the guest agent.
func guestMode(g *backend.Guest) fs.FileMode {
	if g.Readable {
		return embed.Mode | 0o444
	}
	return embed.Mode
}

// guestFiles returns the files for [embed.Dir] in a sandbox of this architecture. The guest agent is the last file.
func guestFiles(g *backend.Guest, arch string) ([]embed.File, error) {
	bin, err := g.Binary(arch)
	if err != nil {
		return nil, fmt.Errorf("no guest agent for %s: %v: %w", arch, err, backend.ErrUnsupported)
	}
	files, err := embed.Files(bin)
	if err == nil {
		files[len(files)-1].Mode = guestMode(g)
	}
	return files, err
}

// InstallGuest installs the guest agent's files in dir, unless they are already installed. It installs the guest agent
// last, so a directory with the guest agent is complete. It writes each file under a temporary name (temp and some
// digits) and renames it when the file is complete. Concurrent calls are safe.
func InstallGuest(dir, temp string, g *backend.Guest, arch string) error {
	st, err := os.Lstat(filepath.Join(dir, filepath.Base(embed.Path)))
	if err == nil && st.Mode() == guestMode(g) && st.Size() > 0 {
		return nil
	}
	files, err := guestFiles(g, arch)
	for _, f := range files {
		if err == nil {
			err = installFile(dir, temp, f)
		}
	}
	return err
}

func installFile(root, temp string, f embed.File) error {
	to := filepath.Join(root, filepath.FromSlash(f.Path))
	// The sandbox's user must be able to read the directory, regardless of the umask.
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // sandboxes read it
		return err
	}
	for dir := filepath.Dir(to); ; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // sandboxes read it
			return err
		}
		if dir == filepath.Clean(root) {
			break
		}
	}
	from, err := writeTemp(temp, f)
	if err == nil {
		err = os.Rename(from, to)
	}
	if err != nil && from != "" {
		err = errors.Join(err, os.Remove(from))
	}
	return err
}

// writeTemp writes a file under a unique temporary name.
func writeTemp(temp string, f embed.File) (name string, err error) {
	if name, err = writeAlone(temp, f); err != nil || f.Mode.Type() == fs.ModeSymlink {
		return name, err
	}
	return name, errors.Join(host.Sync(name), os.Chmod(name, f.Mode)) // a mode may forbid the owner to open the file
}

// writeAlone performs the part of writeTemp during which the file is open for writing. A child process forked in this
// time would inherit the open file until it calls exec. Until then, executing the file would fail with ETXTBSY.
func writeAlone(temp string, f embed.File) (name string, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	t, err := os.CreateTemp(filepath.Dir(temp), filepath.Base(temp))
	if err != nil {
		return "", err
	}
	if f.Mode.Type() == fs.ModeSymlink {
		return t.Name(), errors.Join(t.Close(), os.Remove(t.Name()), os.Symlink(string(f.Data), t.Name()))
	}
	_, err = t.Write(f.Data)
	return t.Name(), errors.Join(err, t.Close())
}

// TarGuest writes the guest agent's files and then last as an archive, for the engine to unpack in [embed.Dir]. It
// returns the size of the guest agent.
func TarGuest(w io.Writer, g *backend.Guest, arch string, last embed.File) (size int, err error) {
	files, err := guestFiles(g, arch)
	if err != nil {
		return 0, err
	}
	return len(files[len(files)-1].Data), embed.Tar(w, append(files, last)...)
}
