package kubernetes_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

const (
	egress  = networkingv1.PolicyTypeEgress
	ingress = networkingv1.PolicyTypeIngress
)

// addPolicy creates a NetworkPolicy for pods with these labels.
func addPolicy(t *testing.T, ns, name string, pods map[string]string, spec networkingv1.NetworkPolicySpec) {
	t.Helper()
	spec.PodSelector.MatchLabels = pods
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	must(t, second(networkPolicies(admin(t), ns).Create(t.Context(), policy, metav1.CreateOptions{})))
}

// noPods fails the test if a namespace contains pods.
func noPods(t *testing.T, ns string) {
	t.Helper()
	left, err := clustertest.Pods(admin(t), ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("left: %d pods, %v", len(left.Items), err)
	}
}

// TestPolicyUndeclared verifies that Create fails unless the operator declares that the cluster enforces policies, and
// that the error names the test and the setting.
func TestPolicyUndeclared(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(o *kubernetes.Options) { o.NetworkPolicyEnforced = false })
	for _, mode := range []backend.NetworkMode{backend.NetworkNone, backend.NetworkBridge} {
		spec := newSpec()
		spec.Network = mode
		_, err := b.Create(t.Context(), spec)
		for _, word := range []string{"kubernetes.network_policy: enforced", "workcell doctor", "--network"} {
			if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v, want ErrUnsupported with %q", mode, err, word)
			}
		}
	}
}

// TestPolicyAddsUp verifies that Create and Start fail and name the policy if another policy of the namespace opens the
// network of a sandbox without a network. Policies without allowed traffic or for other pods must not matter.
func TestPolicyAddsUp(t *testing.T) {
	t.Parallel()
	ns, udp := ownNamespace(t), corev1.ProtocolUDP
	b := newBackend(t, func(o *kubernetes.Options) { o.Namespace = ns })
	everything := []networkingv1.NetworkPolicyEgressRule{{}}
	out, in := []networkingv1.PolicyType{egress}, []networkingv1.PolicyType{ingress}
	addPolicy(t, ns, "deny", nil, networkingv1.NetworkPolicySpec{PolicyTypes: append(in, egress)})
	addPolicy(t, ns, "others", map[string]string{"app": "web"}, networkingv1.NetworkPolicySpec{Egress: everything, PolicyTypes: out})
	addPolicy(t, ns, "without-type", nil, networkingv1.NetworkPolicySpec{Egress: everything, PolicyTypes: in})
	first := backendtest.Create(t, b, newSpec())
	must(t, b.Stop(t.Context(), first.ID))
	dns := []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp}}}}
	for name, spec := range map[string]networkingv1.NetworkPolicySpec{
		"allow-dns": {Egress: dns, PolicyTypes: out},
		"allow-in":  {Ingress: []networkingv1.NetworkPolicyIngressRule{{}}, PolicyTypes: in},
	} {
		addPolicy(t, ns, name, nil, spec)
		_, created := b.Create(t.Context(), newSpec())
		_, tried := b.TryNetwork(t.Context(), debianImage)
		started := b.Start(t.Context(), first.ID)
		for what, err := range map[string]error{"Create": created, "TryNetwork": tried, "Start": started} {
			if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "NetworkPolicy "+name) {
				t.Errorf("%s with %s: %v, want ErrUnsupported that names it", what, name, err)
			}
		}
		bridged := newSpec()
		bridged.Network = backend.NetworkBridge
		backendtest.Create(t, b, bridged)
		must(t, networkPolicies(admin(t), ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	must(t, b.Start(t.Context(), first.ID))
}

// TestTryNetwork verifies that TryNetwork lists the unreachable targets of a sandbox without a network, that it fails
// if the sandbox reaches a target, and that it leaves no pods.
func TestTryNetwork(t *testing.T) {
	t.Parallel()
	ns, udp := ownNamespace(t), corev1.ProtocolUDP
	b := newBackend(t, func(o *kubernetes.Options) { o.Namespace, o.NetworkPolicyEnforced = ns, false })
	closed, err := b.TryNetwork(t.Context(), debianImage)
	text := strings.Join(closed, ", ")
	for _, want := range []string{"a pod by UDP", "a pod by TCP", "DNS", "the API server", "the node at"} {
		if err != nil || !strings.Contains(text, want) || strings.Contains(text, want+" (no pod") && want != "DNS" {
			t.Errorf("closed: %s; %v, want %s", text, err, want)
		}
	}
	noPods(t, ns)
	one := map[string]string{"app.kubernetes.io/component": "network-trial", backend.LabelPrefix + "network": "none"}
	addPolicy(t, ns, "udp", one, networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{egress},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp}}}},
	})
	if _, err := b.TryNetwork(t.Context(), debianImage); !errors.Is(err, backend.ErrUnsupported) ||
		!strings.Contains(err.Error(), "reached a pod by UDP") || strings.Contains(err.Error(), "TCP") {
		t.Errorf("with UDP open: %v, want ErrUnsupported that names it alone", err)
	}
	noPods(t, ns)
}

// TestTryNetworkUntold verifies that TryNetwork fails if no pod reaches another pod, and succeeds if only the pods of
// the test may do so.
func TestTryNetworkUntold(t *testing.T) {
	t.Parallel()
	ns := ownNamespace(t)
	b := newBackend(t, func(o *kubernetes.Options) { o.Namespace = ns })
	both := []networkingv1.PolicyType{egress, ingress}
	addPolicy(t, ns, "deny", nil, networkingv1.NetworkPolicySpec{PolicyTypes: both})
	_, err := b.TryNetwork(t.Context(), debianImage)
	if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "reach each other") {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	noPods(t, ns)
	addPolicy(t, ns, "trial", map[string]string{backend.LabelPrefix + "network": "open"}, networkingv1.NetworkPolicySpec{
		PolicyTypes: both, Ingress: []networkingv1.NetworkPolicyIngressRule{{}}, Egress: []networkingv1.NetworkPolicyEgressRule{{}},
	})
	backendtest.Fails(t, "TryNetwork", second(b.TryNetwork(t.Context(), debianImage)), nil)
}

// TestPolicyDeleted verifies that Create and Start restore a deleted or changed network policy.
func TestPolicyDeleted(t *testing.T) {
	t.Parallel()
	ns := ownNamespace(t)
	policies := networkPolicies(admin(t), ns)
	b := newBackend(t, func(o *kubernetes.Options) { o.Namespace = ns })
	first := backendtest.Create(t, b, newSpec())
	for name, makeOne := range map[string]func() error{
		"Create": func() error { backendtest.Create(t, b, newSpec()); return nil },
		"Start":  func() error { return errors.Join(b.Stop(t.Context(), first.ID), b.Start(t.Context(), first.ID)) },
	} {
		must(t, policies.Delete(t.Context(), "workcell-none", metav1.DeleteOptions{}))
		must(t, makeOne())
		if _, err := policies.Get(t.Context(), "workcell-none", metav1.GetOptions{}); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}
