package cli

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestTakeStdout verifies that afterwards, data written to the old file, by this process or by a child that inherits
// it, goes elsewhere. The client's stream receives only the data written to the new file.
func TestTakeStdout(t *testing.T) {
	t.Parallel()
	client, stdout := osPipe(t)
	elsewhere, stderr := osPipe(t)
	own, err := TakeStdout(stdout, stderr)
	checktest.Must(t, err)
	if _, err := io.WriteString(stdout, "stray print\n"); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sh", "-c", "echo stray child; ls -l /proc/self/fd | wc -l >/dev/null")
	child.Stdout = stdout
	checktest.Must(t, child.Run())
	if _, err := io.WriteString(own, "message\n"); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{own, stdout, stderr} {
		checktest.Must(t, f.Close())
	}
	if got, err := io.ReadAll(client); err != nil || string(got) != "message\n" {
		t.Errorf("the client got %q, %v", got, err)
	}
	if got, err := io.ReadAll(elsewhere); err != nil || string(got) != "stray print\nstray child\n" {
		t.Errorf("standard error got %q, %v", got, err)
	}
}

func osPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	checktest.Must(t, err)
	t.Cleanup(func() {
		for _, c := range []io.Closer{r, w} {
			_ = c.Close() // the test closes some
		}
	})
	return r, w
}
