package kit

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
)

// Read reads passwd and group from the root directory of an image. Images are untrusted: the paths can be links, pipes,
// directories, or huge files.
func (a Accounts) Read(root *os.Root) error {
	for _, file := range AccountFiles() {
		name := "etc/" + file
		st, err := root.Stat(name) // a device must not be opened
		switch {
		case err != nil: // also a link out of the root
			continue
		case st.IsDir():
			return fmt.Errorf("%s of the image is a directory: %w", name, backend.ErrInvalid)
		case !st.Mode().IsRegular() || st.Size() == 0 || st.Size() > MaxAccounts:
			continue
		}
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		a[file], err = io.ReadAll(io.LimitReader(f, MaxAccounts))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
