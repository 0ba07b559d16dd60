package kubernetes_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/e2e/clustertest"
)

// trialNote is when the policies of a namespace were found to bind.
const trialNote = backend.LabelPrefix + "enforced"

// TestPolicyUntold: where no pod reaches another one, nobody can tell whether policies bind, and nothing is made; where those of
// the trial may, it is told.
func TestPolicyUntold(t *testing.T) {
	t.Parallel()
	ns := ownNamespace(t)
	policies := networkPolicies(admin(t), ns)
	add := func(name string, spec networkingv1.NetworkPolicySpec) {
		t.Helper()
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
		if _, err := policies.Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	add("nothing", networkingv1.NetworkPolicySpec{})
	b := newBackend(t, func(o *kubernetes.Options) { o.Namespace = ns })
	if _, err := b.Create(t.Context(), newSpec()); !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "reach each other") {
		t.Fatalf("Create: %v, want ErrUnsupported", err)
	}
	there, err := policies.Get(t.Context(), "workcell-none", metav1.GetOptions{})
	if err != nil || there.Annotations[trialNote] != "" {
		t.Errorf("noted as enforced: %v, %v", there.Annotations, err)
	}
	left, err := clustertest.Pods(admin(t), ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("left: %d pods, %v", len(left.Items), err)
	}
	add("trial", networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{backend.LabelPrefix + "network": "open"}},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{}}, Egress: []networkingv1.NetworkPolicyEgressRule{{}},
	})
	backendtest.Create(t, b, newSpec())
}

// TestPolicyNotEnforced: where a pod that a policy isolates reaches another one, no sandbox is made, unless the operator says that
// something else isolates it.
func TestPolicyNotEnforced(t *testing.T) {
	t.Parallel()
	ns := ownNamespace(t)
	label := regexp.MustCompile(`(?s)(network-trial.*` + regexp.QuoteMeta(backend.LabelPrefix) + `network\W{1,4})none`)
	b := newBackend(t, func(o *kubernetes.Options) {
		o.Namespace = ns
		o.Config = through(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) { // the policy selects no pod of a trial
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				r.Body = io.NopCloser(bytes.NewReader(label.ReplaceAll(body, []byte("${1}open"))))
			}
			return next.RoundTrip(r)
		})
	})
	if _, err := b.Create(t.Context(), newSpec()); !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "does not enforce") {
		t.Fatalf("Create: %v, want ErrUnsupported", err)
	}
	there, err := networkPolicies(admin(t), ns).Get(t.Context(), "workcell-none", metav1.GetOptions{})
	if err != nil || there.Annotations[trialNote] != "" {
		t.Errorf("noted as enforced: %v, %v", there.Annotations, err)
	}
	backendtest.Create(t, newBackend(t, func(o *kubernetes.Options) { o.Namespace, o.TrustNetworkPolicy = ns, true }), newSpec())
}

// TestPolicyDeleted: what closes the network of sandboxes is there for each that is made or started, whatever became of it.
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
		if err := policies.Delete(t.Context(), "workcell-none", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := makeOne(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := policies.Get(t.Context(), "workcell-none", metav1.GetOptions{}); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

// TestTrialAgain: that policies bind is found out anew once a day, also by a process that goes on.
func TestTrialAgain(t *testing.T) {
	t.Parallel()
	ns := ownNamespace(t)
	policies := networkPolicies(admin(t), ns)
	b := newBackend(t, func(o *kubernetes.Options) { o.Namespace = ns })
	backendtest.Create(t, b, newSpec())
	// The note of a trial that counts for two seconds more, for a process that has made none.
	old := time.Now().Add(2*time.Second - 24*time.Hour).UTC().Format(time.RFC3339)
	note := `{"metadata":{"annotations":{"` + trialNote + `":"` + old + `"}}}`
	if _, err := policies.Patch(t.Context(), "workcell-none", types.MergePatchType, []byte(note), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	later := newBackend(t, func(o *kubernetes.Options) { o.Namespace = ns })
	eventually(t, "another trial", func() bool {
		backendtest.Remove(t, later, backendtest.Create(t, later, newSpec()).ID)
		there, err := policies.Get(t.Context(), "workcell-none", metav1.GetOptions{})
		return err == nil && there.Annotations[trialNote] != old
	})
}
