//go:build !no_docker

package engines

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestDockerOfOthers verifies that the remedy for a socket that this user may not use is one command.
func TestDockerOfOthers(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // for the ID of the user, which only root can change
	defer runtime.UnlockOSThread()
	path := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", path)
	checktest.Must(t, err)
	defer l.Close()
	checktest.Must(t, os.Chmod(path, 0))
	_ = unix.Setfsuid(65534)
	defer func() { _ = unix.Setfsuid(os.Geteuid()) }()
	fix := Set{Env: environ.Of(map[string]string{"DOCKER_HOST": "unix://" + path})}.docker().Fix(nil)
	if !strings.HasPrefix(fix, "run `sudo usermod") {
		t.Error(fix)
	}
}
