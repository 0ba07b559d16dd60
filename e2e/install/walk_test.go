package install

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/workcell-dev/workcell/internal/clustertest"
	"github.com/workcell-dev/workcell/internal/guestimage"
)

// TestCommandLine runs testdata/*.txtar with the command from the image on the cluster.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	must(t, os.Symlink(filepath.Join(imagesDir, "workcell-linux-"+runtime.GOARCH), filepath.Join(bin, "workcell")))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			for name, value := range map[string]string{
				"PATH": bin + string(os.PathListSeparator) + os.Getenv("PATH"), "WORKCELL_STATE_DIR": filepath.Join(e.WorkDir, ".state"), "WORKCELL_REAPER": "off",
				"WORKCELL_BACKEND": "kubernetes", "KUBECONFIG": clustertest.Kubeconfig(), "WORKCELL_KUBE_NAMESPACE": namespace(),
				"WORKCELL_KUBE_GUEST_IMAGE": guestimage.Reference(), "WORKCELL_KUBE_STORAGE_CLASS": clustertest.StorageClass,
				"WORKCELL_KUBE_NETWORK_POLICY": "enforced",
			} {
				e.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code},
	})
}

// code implements "code N PROGRAM ARG…". It runs a program, which must exit with N.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program arg...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
