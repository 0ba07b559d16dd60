//go:build !no_kubernetes

package engines

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestClusterSettings verifies that every setting of a cluster reaches the driver.
func TestClusterSettings(t *testing.T) {
	t.Parallel()
	got := Set{Env: environ.Of(nil), Cluster: config.Kubernetes{
		Context: "c", Namespace: "n", GuestImage: "g", StorageClass: "s", NetworkPolicy: "enforced", PriorityClass: "low",
		RuntimeClasses: []string{"gvisor"}, ImagePullSecrets: []string{"registry"}, NodeSelector: []string{"pool=agents"},
		Labels: []string{"team=ml"}, Annotations: []string{"note=a=b"},
		AllowNets: []string{"10.0.0.7/32"}, DenyNets: []string{"2600:db8::/56"},
		DNSNamespace: "openshift-dns", DNSLabels: []string{"a=b"}, DNSPort: 5353, NodeTimeout: 1,
		Tolerations: []config.Toleration{{Key: "k", Operator: "Equal", Value: "v", Effect: "NoExecute", Seconds: 60}, {Operator: "Exists"}},
	}}.kubernetesOptions()
	got.Patience = 0
	if diff := cmp.Diff(&kubernetes.Options{
		Context: "c", Namespace: "n", GuestImage: "g", StorageClass: "s", NetworkPolicyEnforced: true, PriorityClass: "low",
		RuntimeClasses: []string{"gvisor"}, ImagePullSecrets: []string{"registry"}, NodeSelector: map[string]string{"pool": "agents"},
		Labels: map[string]string{"team": "ml"}, Annotations: map[string]string{"note": "a=b"},
		AllowNets: nets([]string{"10.0.0.7/32"}), DenyNets: nets([]string{"2600:db8::/56"}),
		DNSNamespace: "openshift-dns", DNSLabels: map[string]string{"a": "b"}, DNSPort: 5353, NodeTimeout: 1,
		Tolerations: []corev1.Toleration{
			{Key: "k", Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(60))},
			{Operator: corev1.TolerationOpExists},
		},
	}, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
}

// TestKubeconfigContext verifies that another process uses the current context and namespace of this process.
func TestKubeconfigContext(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config")
	checktest.Must(t, os.WriteFile(file, []byte(`
{"current-context": "a", "clusters": [{"name": "c", "cluster": {"server": "http://c"}}], "contexts": [
	{"name": "a", "context": {"cluster": "c", "namespace": "n"}}, {"name": "b", "context": {"cluster": "c"}}]}`), 0o600))
	for _, test := range []struct{ set, context, namespace string }{{"", "a", "n"}, {"b", "b", "default"}} {
		s := Set{Env: environ.Of(map[string]string{"KUBECONFIG": file}), Cluster: config.Kubernetes{Context: test.set}}
		vars, err := s.Environ()
		if err != nil || !slices.Contains(vars, "WORKCELL_KUBE_CONTEXT="+test.context) ||
			!slices.Contains(vars, "WORKCELL_KUBE_NAMESPACE="+test.namespace) {
			t.Errorf("%v, %v, want %+v", vars, err, test)
		}
	}
}

// TestKubeconfigPath verifies that an error in KUBECONFIG contains the path that the user set.
func TestKubeconfigPath(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "no-such-config")
	_, err := Set{Env: environ.Of(map[string]string{"KUBECONFIG": missing})}.kubernetes().Open(t.Context())
	if err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("%v, want the path %s", err, missing)
	}
}

// TestServerAwaited verifies that only servers in a pod wait for the API server, and not after other errors.
func TestServerAwaited(t *testing.T) {
	t.Parallel()
	inPod := environ.Of(map[string]string{"KUBERNETES_SERVICE_HOST": "192.0.2.1"})
	server, command, outside := Set{Env: inPod, Waits: true}, Set{Env: inPod}, Set{Env: environ.Of(nil), Waits: true}
	if !server.awaitsServer(backend.ErrUnavailable) || server.awaitsServer(backend.ErrInvalid) ||
		command.awaitsServer(backend.ErrUnavailable) || outside.awaitsServer(backend.ErrUnavailable) {
		t.Error("the wrong programs wait")
	}
}
