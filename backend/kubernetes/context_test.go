package kubernetes_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

// TestCredentialProgram verifies that the credential program of a kubeconfig starts in the root directory with the
// configured arguments.
func TestCredentialProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, started := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "a file")
	config := api.NewConfig()
	config.Clusters["c"] = &api.Cluster{Server: "https://127.0.0.1:1"}
	config.AuthInfos["u"] = &api.AuthInfo{Exec: &api.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode,
		Command: "sh", Args: []string{"-c", `pwd >"$0"; exit 1`, started},
	}}
	config.Contexts["x"], config.CurrentContext = &api.Context{Cluster: "c", AuthInfo: "u"}, "x"
	must(t, clientcmd.WriteToFile(*config, file))
	if b, err := kubernetes.New(t.Context(), &kubernetes.Options{Kubeconfig: file}); err == nil {
		t.Errorf("%v of a missing cluster", b)
	}
	if got, err := os.ReadFile(started); err != nil || string(got) != "/\n" {
		t.Errorf("started in %q, %v, want /", got, err)
	}
}

// TestContext verifies that Options.Context overrides the current context of the kubeconfig, which belongs to an
// unreachable cluster here.
func TestContext(t *testing.T) {
	t.Parallel()
	config, err := clientcmd.LoadFromFile(clustertest.Kubeconfig())
	must(t, err)
	right := config.CurrentContext
	config.Clusters["away"] = &api.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["away"] = &api.Context{Cluster: "away", AuthInfo: config.Contexts[right].AuthInfo}
	config.CurrentContext = "away"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, file))
	use := func(name string) func(*kubernetes.Options) {
		return func(o *kubernetes.Options) { o.Config, o.Kubeconfig, o.Context = nil, file, name }
	}
	b := newBackend(t, use(right))
	backendtest.Fails(t, "the context "+right, second(b.Ping(t.Context())), nil)
	o := clustertest.Options(namespace())
	use("")(o)
	o.Patience = time.Second
	backendtest.Fails(t, "the current context", second(kubernetes.New(t.Context(), o)), backend.ErrUnavailable)
	use("no-such")(o)
	backendtest.Fails(t, "a context that there is not", second(kubernetes.New(t.Context(), o)), backend.ErrInvalid)
}
