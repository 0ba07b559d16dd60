package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/netguard"
)

// errUndeclared is returned because the driver cannot detect whether the cluster enforces policies.
var errUndeclared = fmt.Errorf("kubernetes: sandboxes require a cluster that enforces NetworkPolicies; run "+
	"`workcell doctor --backend kubernetes --network`, then set kubernetes.network_policy: enforced "+
	"(Options.NetworkPolicyEnforced): %w", backend.ErrUnsupported)

// isolate restricts the network of a sandbox before a pod with these labels exists.
func (d *driver) isolate(ctx context.Context, mode backend.NetworkMode, pod map[string]string) error {
	if !d.opts.NetworkPolicyEnforced {
		return errUndeclared
	}
	return d.ensurePolicy(ctx, mode, pod)
}

// networkLabel returns the label value selected by a network mode's policy. Bridged sandboxes with different AllowNets
// need different policies, so the value contains a hash of AllowNets. Processes with different options therefore do not
// change each other's policy.
func (d *driver) networkLabel(mode backend.NetworkMode) string {
	if mode == backend.NetworkNone || len(d.opts.AllowNets) == 0 {
		return string(mode)
	}
	sum := sha256.Sum256(fmt.Append(nil, d.opts.AllowNets))
	return string(mode) + "-" + hex.EncodeToString(sum[:4])
}

// networkPolicy returns the policy of a network mode. No policy allows ingress.
func (d *driver) networkPolicy(mode backend.NetworkMode) *networkingv1.NetworkPolicy {
	label, own := d.networkLabel(mode), map[string]string{labelName: "workcell", labelManagedBy: "workcell"}
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namePre + label, Labels: own},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelManagedBy: "workcell", labelNetwork: label}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	if mode == backend.NetworkBridge {
		p.Spec.Egress = d.outbound()
	}
	return p
}

// outbound returns the destinations of bridged sandboxes: public addresses, the cluster's resolver, and addresses
// allowed by the operator.
func (d *driver) outbound() []networkingv1.NetworkPolicyEgressRule {
	block := func(cidr string, except []netip.Prefix) networkingv1.NetworkPolicyPeer {
		b := &networkingv1.IPBlock{CIDR: cidr}
		for _, p := range except {
			b.Except = append(b.Except, p.String())
		}
		return networkingv1.NetworkPolicyPeer{IPBlock: b}
	}
	udp, tcp, port := corev1.ProtocolUDP, corev1.ProtocolTCP, intstr.FromInt32(53)
	label := func(name, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{name: value}}
	}
	type peers = []networkingv1.NetworkPolicyPeer
	rules := []networkingv1.NetworkPolicyEgressRule{
		{To: peers{block("0.0.0.0/0", netguard.Closed()), block(netguard.Public6, netguard.Closed6())}},
		{
			To: peers{{
				NamespaceSelector: label("kubernetes.io/metadata.name", "kube-system"),
				PodSelector:       label("k8s-app", "kube-dns"),
			}},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &port}, {Protocol: &tcp, Port: &port}},
		},
	}
	for _, n := range d.opts.AllowNets {
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{To: peers{block(n.Masked().String(), nil)}})
	}
	return rules
}

// ensurePolicy creates the policy of a network mode, or corrects a different existing policy. The policies of a
// namespace are additive. Therefore ensurePolicy fails if another policy opens the network of a pod without a network.
// It reads the policies each time, because they may change.
func (d *driver) ensurePolicy(ctx context.Context, mode backend.NetworkMode, pod map[string]string) error {
	want := d.networkPolicy(mode)
	all, err := kit.Call(ctx, d.calls, "network policy", func(ctx context.Context) ([]networkingv1.NetworkPolicy, error) {
		for {
			list, err := d.api.networks.List(ctx, "")
			if err != nil {
				return nil, err
			}
			at := slices.IndexFunc(list.Items, func(p networkingv1.NetworkPolicy) bool { return p.Name == want.Name })
			switch {
			case at < 0:
				_, err = d.api.networks.Create(ctx, want)
			case !apiequality.Semantic.DeepEqual(list.Items[at].Spec, want.Spec):
				list.Items[at].Spec = want.Spec
				_, err = d.api.networks.Update(ctx, want.Name, &list.Items[at])
			}
			if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) { // otherwise another process was faster
				return list.Items, err
			}
		}
	})
	if err != nil || mode != backend.NetworkNone {
		return err
	}
	for i := range all {
		if opens(&all[i].Spec, pod) {
			return fmt.Errorf("kubernetes: NetworkPolicy %s of namespace %s applies to sandboxes without a network and "+
				"allows traffic; exclude pods with the label %s=%s from it, or use a namespace for sandboxes only: %w",
				all[i].Name, d.opts.Namespace, labelNetwork, backend.NetworkNone, backend.ErrUnsupported)
		}
	}
	return nil
}

// opens reports whether a policy allows traffic of a pod with these labels.
func opens(policy *networkingv1.NetworkPolicySpec, pod map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(&policy.PodSelector)
	return (err != nil || s.Matches(labels.Set(pod))) &&
		(len(policy.Egress) > 0 && slices.Contains(policy.PolicyTypes, networkingv1.PolicyTypeEgress) ||
			len(policy.Ingress) > 0 && slices.Contains(policy.PolicyTypes, networkingv1.PolicyTypeIngress))
}
