package state

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/hint"
)

// TestStateDirOfOthers verifies that the hint about another user's state directory is to use a separate directory.
func TestStateDirOfOthers(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // for the ID of the user, which only root can change
	defer runtime.UnlockOSThread()
	for name, mode := range map[string]os.FileMode{"not readable": 0, "not writable": 0o555} {
		dir := filepath.Join(t.TempDir(), "state")
		above := filepath.Dir(filepath.Dir(dir)) // private to root
		must(t, errors.Join(os.Mkdir(dir, 0o700), os.Chmod(above, 0o755), os.Chmod(dir, mode)))
		_ = unix.Setfsuid(65534)
		_, err := Dir(dir).instanceAlone()
		_ = unix.Setfsuid(os.Geteuid())
		if h := hint.Of(err); h == nil || !strings.HasPrefix(h.Hint, "run `workcell --state-dir DIR …`") {
			t.Errorf("%s: %v (%+v)", name, err, h)
		}
	}
}
