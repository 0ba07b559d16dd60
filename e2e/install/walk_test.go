package install

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	claimapi "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/workcell-dev/workcell/e2e/clustertest"
	"github.com/workcell-dev/workcell/internal/guestimage"
	"github.com/workcell-dev/workcell/internal/reaper"
)

// TestCommandLine runs testdata/*.txtar: the command of the image, as users call it, on the cluster.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	must(t, os.Symlink(filepath.Join(imagesDir, "workcell-linux-"+runtime.GOARCH), filepath.Join(bin, "workcell")))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			for name, value := range map[string]string{
				"PATH": bin + string(os.PathListSeparator) + os.Getenv("PATH"), "WORKCELL_STATE_DIR": filepath.Join(e.WorkDir, ".state"), reaper.Variable: "off",
				"WORKCELL_BACKEND": "kubernetes", "KUBECONFIG": clustertest.Kubeconfig(), "WORKCELL_KUBE_NAMESPACE": namespace(),
				"WORKCELL_KUBE_GUEST_IMAGE": guestimage.Reference(), "WORKCELL_KUBE_STORAGE_CLASS": clustertest.StorageClass,
			} {
				e.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code, "apply": apply, "claimed": claimed},
	})
}

// code is "code N PROGRAM ARG…": runs a program, which must exit with N.
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

func admin(ts *testscript.TestScript) *rest.Config {
	api, err := clustertest.Config()
	ts.Check(err)
	return api
}

// apply is "apply FILE": makes the template and the pool of a file until the script's end, and waits until the pool is full.
func apply(ts *testscript.TestScript, _ bool, args []string) {
	first, second, _ := strings.Cut(ts.ReadFile(args[0]), "---\n")
	var template claimapi.SandboxTemplate
	var pool claimapi.SandboxWarmPool
	ts.Check(errors.Join(yaml.UnmarshalStrict([]byte(first), &template), yaml.UnmarshalStrict([]byte(second), &pool)))
	ctx, api := context.Background(), admin(ts)
	templates, pools := clustertest.SandboxTemplates(api, namespace()), clustertest.SandboxWarmPools(api, namespace())
	_, err := templates.Create(ctx, &template, metav1.CreateOptions{})
	ts.Check(err)
	_, err = pools.Create(ctx, &pool, metav1.CreateOptions{})
	ts.Check(err)
	ts.Defer(func() {
		foreground := metav1.DeletePropagationForeground
		ts.Check(errors.Join(pools.Delete(ctx, pool.Name, metav1.DeleteOptions{PropagationPolicy: &foreground}), templates.Delete(ctx, template.Name, metav1.DeleteOptions{})))
	})
	until(ts, "the pool is full", func() bool {
		now, err := pools.Get(ctx, pool.Name, metav1.GetOptions{})
		ts.Check(err)
		return now.Status.ReadyReplicas == *pool.Spec.Replicas
	})
}

// claimed is "claimed N": waits until so many sandboxes are claimed.
func claimed(ts *testscript.TestScript, _ bool, args []string) {
	until(ts, args[0]+" claims", func() bool {
		list, err := clustertest.SandboxClaims(admin(ts), namespace()).List(context.Background(), metav1.ListOptions{})
		ts.Check(err)
		return strconv.Itoa(len(list.Items)) == args[0]
	})
}

func until(ts *testscript.TestScript, what string, is func() bool) {
	for end := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("not within %v: %s", patience, what)
		}
	}
}
