package proc

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestLoginShell verifies that loginShell handles valid entries and any other contents of /etc/passwd.
func TestLoginShell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "passwd")
	const users = "root:x:0:0:root:/root:/bin/bash\nshort:x:5\nplain:x:6:6::/:/bin/sh\nodd:x:7:7::/:bin/zsh\nnode:x:1000:1000::/home/node:/usr/bin/zsh\nlate:x:1000:1::/:/bin/late\n"
	checktest.Must(t, os.WriteFile(path, []byte(users), 0o600))
	for uid, want := range map[int]string{0: "/bin/bash", 5: "", 6: "", 7: "", 1000: "/usr/bin/zsh", 1001: ""} {
		if got := loginShell(path, uid); got != want {
			t.Errorf("uid %d: %q, want %q", uid, got, want)
		}
	}
	fifo := filepath.Join(dir, "fifo")
	checktest.Must(t, syscall.Mkfifo(fifo, 0o600))
	for _, bad := range []string{fifo, dir, filepath.Join(dir, "nothing")} {
		if got := loginShell(bad, 0); got != "" {
			t.Errorf("%s: %q", bad, got)
		}
	}
}
