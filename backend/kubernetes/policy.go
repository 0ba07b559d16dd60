package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

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

// checkBridge validates the options of bridged networks.
func (o *Options) checkBridge() error {
	problem := ""
	for _, n := range slices.Concat(o.AllowNets, o.DenyNets) {
		switch {
		case !n.IsValid() || n != n.Masked() || n.Addr().Is4In6():
			problem = fmt.Sprintf("invalid network %s in kubernetes.allow_nets or kubernetes.deny_nets", n)
		case slices.Contains(o.AllowNets, n) && slices.Contains(o.DenyNets, n):
			problem = fmt.Sprintf("network %s is in kubernetes.allow_nets and in kubernetes.deny_nets", n)
		}
	}
	if _, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchLabels: o.DNSLabels}); err != nil {
		problem = fmt.Sprintf("invalid kubernetes.dns.labels: %.200v", err)
	}
	if o.DNSNamespace != "" && len(validation.IsDNS1123Label(o.DNSNamespace)) > 0 {
		problem = fmt.Sprintf("invalid kubernetes.dns.namespace %.80q", o.DNSNamespace)
	}
	if o.DNSPort < 0 || o.DNSPort > math.MaxUint16 {
		problem = fmt.Sprintf("invalid kubernetes.dns.port %d", o.DNSPort)
	}
	if problem != "" {
		return fmt.Errorf("kubernetes: %s: %w", problem, backend.ErrInvalid)
	}
	return nil
}

// bridge returns the options of bridged networks as text.
func (o *Options) bridge() string {
	return fmt.Sprintf("%v %v %q %v %d", o.AllowNets, o.DenyNets, o.DNSNamespace, o.DNSLabels, o.DNSPort)
}

// networkLabel returns the label value selected by a network mode's policy. Bridged sandboxes with different options
// need different policies, so the value contains a hash of the options. Processes with different options therefore do
// not change each other's policy.
func (d *driver) networkLabel(mode backend.NetworkMode) string {
	text := d.opts.bridge()
	if mode == backend.NetworkNone || text == new(Options).bridge() {
		return string(mode)
	}
	sum := sha256.Sum256([]byte(text))
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
// allowed by the operator. Rules add up, so each one excludes the denied addresses in its network.
func (d *driver) outbound() []networkingv1.NetworkPolicyEgressRule {
	o := &d.opts
	type peers = []networkingv1.NetworkPolicyPeer
	block := func(all netip.Prefix, closed []netip.Prefix) networkingv1.NetworkPolicyPeer {
		b := &networkingv1.IPBlock{CIDR: all.String()}
		for _, n := range slices.Concat(closed, o.DenyNets) {
			if n.Bits() > all.Bits() && n.Overlaps(all) { // the server rejects other exceptions
				b.Except = append(b.Except, n.String())
			}
		}
		return networkingv1.NetworkPolicyPeer{IPBlock: b}
	}
	var public peers
	add := func(cidr string, closed []netip.Prefix) {
		all := netip.MustParsePrefix(cidr)
		covers := func(n netip.Prefix) bool { return n.Bits() <= all.Bits() && n.Overlaps(all) }
		if !slices.ContainsFunc(o.DenyNets, covers) {
			public = append(public, block(all, closed))
		}
	}
	add("0.0.0.0/0", netguard.Closed())
	add(netguard.Public6, netguard.Closed6())
	var rules []networkingv1.NetworkPolicyEgressRule
	if public != nil { // a rule without peers would allow everything
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{To: public})
	}
	dns := o.DNSLabels
	if len(dns) == 0 {
		dns = map[string]string{"k8s-app": "kube-dns"}
	}
	namespace := map[string]string{corev1.LabelMetadataName: cmp.Or(o.DNSNamespace, "kube-system")}
	udp, tcp, port := corev1.ProtocolUDP, corev1.ProtocolTCP, intstr.FromInt32(cmp.Or(o.DNSPort, 53))
	rules = append(rules, networkingv1.NetworkPolicyEgressRule{
		To: peers{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: namespace},
			PodSelector:       &metav1.LabelSelector{MatchLabels: dns},
		}},
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &port}, {Protocol: &tcp, Port: &port}},
	})
	for _, n := range o.AllowNets {
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{To: peers{block(n, nil)}})
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
