package kit_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestReadAccounts verifies that whatever an image has as /etc/passwd neither blocks nor leads out of the image.
func TestReadAccounts(t *testing.T) {
	t.Parallel()
	const own = "a:x:1:1::/:/bin/sh\n"
	for name, test := range map[string]struct {
		make func(passwd string) error
		want string // empty: no accounts of the image
		err  error
	}{
		"file": {func(p string) error { return os.WriteFile(p, []byte(own), 0o600) }, own, nil},
		"link in the image": {func(p string) error {
			return errors.Join(os.WriteFile(p+"-", []byte(own), 0o600), os.Symlink("passwd-", p))
		}, own, nil},
		"none":           {func(string) error { return nil }, "", nil},
		"absolute link":  {func(p string) error { return os.Symlink("/etc/passwd", p) }, "", nil},
		"link out":       {func(p string) error { return os.Symlink("../../../../../../../../etc/passwd", p) }, "", nil},
		"link to itself": {func(p string) error { return os.Symlink("passwd", p) }, "", nil},
		"pipe":           {func(p string) error { return unix.Mkfifo(p, 0o600) }, "", nil},
		"empty":          {func(p string) error { return os.WriteFile(p, nil, 0o600) }, "", nil},
		"huge":           {func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 1<<40)) }, "", nil},
		"directory":      {func(p string) error { return os.Mkdir(p, 0o700) }, "", backend.ErrInvalid},
		"etc is a link": {func(p string) error {
			return errors.Join(os.Remove(filepath.Dir(p)), os.Symlink("/etc", filepath.Dir(p)))
		}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			checktest.Must(t, errors.Join(err, os.Mkdir(filepath.Join(dir, "etc"), 0o700), test.make(filepath.Join(dir, "etc", "passwd"))))
			defer root.Close()
			got := kit.NoAccounts()
			if test.want == "" {
				test.want = string(got["passwd"])
			}
			if err := got.Read(root); !errors.Is(err, test.err) || string(got["passwd"]) != test.want {
				t.Errorf("passwd %.100q, %v", got["passwd"], err)
			}
		})
	}
}
