//go:build unix

package patch

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestModes: only the executable bit of the mode of a patch or an output matters. Existing files keep their
// permissions and owners. New files and directories get the umask's permissions.
func TestModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o002)) // of the process, so no test may run in parallel
	dir := put(t, Tree{"mine": file("x"), "tool": script("x"), "link": link("mine")})
	for name, mode := range map[string]fs.FileMode{"mine": 0o600, "tool": 0o750 | fs.ModeSetuid | fs.ModeSetgid} {
		must(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	owner := cmp.Or(os.Geteuid(), 1000) // only root can change it
	must(t, os.Chown(filepath.Join(dir, "mine"), owner, -1))
	wild := func(content string) *Entry {
		return &Entry{Mode: 0o777 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky, Content: []byte(content)}
	}
	was := func(e Entry) *Entry { return &e }
	p := &Patch{Changes: []Change{
		{Path: "d/new", New: wild("x")},
		{Path: "d/plain", New: &Entry{Mode: 0o666 | fs.ModeSetuid}},
		{Path: "d/none", New: &Entry{}},
		{Path: "link", Old: was(link("mine")), New: wild("x")},
		{Path: "mine", Old: was(file("x")), New: wild("y")},
		{Path: "tool", Old: was(script("x")), New: wild("y")},
	}}
	if r, err := applied(t, p, dir); err != nil || len(r.Conflicts) > 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if r, err := (Tree{"mine": script("z"), "tool": file("z")}).Write(dir, nil, true); err != nil || len(r.Applied) != 2 {
		t.Fatalf("%+v %v", r, err)
	}
	for name, want := range map[string]fs.FileMode{
		"d": fs.ModeDir | 0o775, "d/new": 0o775, "d/plain": 0o664, "d/none": 0o664, "link": 0o775,
		"mine": 0o700, "tool": 0o640,
	} {
		info, err := os.Lstat(filepath.Join(dir, name))
		must(t, err)
		if got := info.Mode(); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; name == "mine" && int(uid) != owner {
			t.Errorf("%s has owner %d, want %d", name, uid, owner)
		}
	}
}
