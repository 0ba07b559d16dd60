package server

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// oldHome returns typical entries of a home directory. Tools create them, and projects do not contain them.
func oldHome() []string {
	return []string{
		".bash_history", ".cache", ".cargo/registry", ".gitconfig", ".local", ".m2/repository", ".npm", "go/pkg/mod",
	}
}

// findHome returns the home directory of commands. Earlier versions used the workspace. A workspace with files of
// oldHome remains the home directory, because programs would not find installed packages and settings in another
// directory.
func findHome(workdir string) string {
	home := wire.Home(workdir)
	old := func(name string) bool { return exists(filepath.Join(workdir, name)) }
	if !exists(ignoreFile(home)) && slices.ContainsFunc(oldHome(), old) {
		return workdir
	}
	return home
}

// ignoreFile returns the path of a .gitignore file, to keep `git add .` from adding the home directory.
func ignoreFile(home string) string { return filepath.Join(filepath.Dir(home), ".gitignore") }

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// makeHome creates the home directory, before each command because a command can remove it. If it cannot be created,
// the command reports what it misses.
func (s *Server) makeHome(env []string) {
	ignore := ignoreFile(s.home)
	if s.home == s.cfg.Workdir || !slices.Contains(env, "HOME="+s.home) || exists(s.home) && exists(ignore) {
		return
	}
	_ = os.MkdirAll(s.home, 0o755)                                                          //nolint:gosec // public
	f, err := os.OpenFile(ignore, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644) //nolint:gosec // public
	if err == nil {
		_, _ = f.WriteString("*\n") // the directory is usable without it
		_ = f.Close()
	}
}
