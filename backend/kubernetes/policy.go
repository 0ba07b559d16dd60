package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/netguard"
)

// policies remembers what was found out.
type policies struct {
	turn  chan struct{} // has one place, of whoever finds out whether they bind; it guards what follows
	tried time.Time     // when they were found to
}

// annotationTrial is on the policy of closed sandboxes: when a trial of this namespace found that policies bind.
const annotationTrial = backend.LabelPrefix + "enforced"

// trialKept is how long a trial's result counts, for all processes: network plugins are not changed every day.
const trialKept = 24 * time.Hour

// isolate makes sure that the network of a sandbox is closed before there is one. Policies are looked at each time: somebody may
// have deleted or changed one.
func (d *driver) isolate(ctx context.Context, p *plan) error {
	_, err := d.ensurePolicy(ctx, p.Spec.Network)
	if err != nil || d.opts.TrustNetworkPolicy {
		return err
	}
	select {
	case d.policies.turn <- struct{}{}:
		defer func() { <-d.policies.turn }()
	case <-ctx.Done():
		return d.calls.Fail(ctx, "create", ctx.Err())
	}
	if counts(d.policies.tried) {
		return nil
	}
	there, err := d.ensurePolicy(ctx, backend.NetworkNone)
	if err != nil {
		return err
	}
	if at, err := time.Parse(time.RFC3339, there.Annotations[annotationTrial]); err == nil && counts(at) {
		d.policies.tried = at
		return nil
	}
	if err := d.tryPolicy(ctx, p); err != nil {
		return err
	}
	d.policies.tried = time.Now()
	note := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotationTrial, d.policies.tried.UTC().Format(time.RFC3339))
	return d.calls.Do(ctx, "network policy", func(ctx context.Context) error {
		_, err := d.api.networks.Patch(ctx, there.Name, types.MergePatchType, note, metav1.PatchOptions{})
		return err
	})
}

// counts reports whether a trial of this time still does.
func counts(tried time.Time) bool { return time.Since(tried).Abs() < trialKept }

// networkLabel returns what the policy of a network mode selects by: what bridged sandboxes may reach is not the same with all
// options, and nobody's policy changes another one's.
func (d *driver) networkLabel(mode backend.NetworkMode) string {
	if mode == backend.NetworkNone || len(d.opts.AllowNets) == 0 {
		return string(mode)
	}
	sum := sha256.Sum256(fmt.Append(nil, d.opts.AllowNets))
	return string(mode) + "-" + hex.EncodeToString(sum[:4])
}

// networkPolicy returns that of a network mode. None lets anything in.
func (d *driver) networkPolicy(mode backend.NetworkMode) *networkingv1.NetworkPolicy {
	label := d.networkLabel(mode)
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namePre + label, Labels: map[string]string{labelName: "workcell", labelManagedBy: "workcell"}},
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

// outbound returns what bridged sandboxes may reach: public addresses, the cluster's resolver, and what the operator allows.
func (d *driver) outbound() []networkingv1.NetworkPolicyEgressRule {
	block := func(cidr string, except []netip.Prefix) networkingv1.NetworkPolicyPeer {
		b := &networkingv1.IPBlock{CIDR: cidr}
		for _, p := range except {
			b.Except = append(b.Except, p.String())
		}
		return networkingv1.NetworkPolicyPeer{IPBlock: b}
	}
	udp, tcp, port := corev1.ProtocolUDP, corev1.ProtocolTCP, intstr.FromInt32(53)
	rules := []networkingv1.NetworkPolicyEgressRule{
		{To: []networkingv1.NetworkPolicyPeer{block("0.0.0.0/0", netguard.Closed()), block(netguard.Public6, netguard.Closed6())}},
		{
			To: []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "kube-system"}},
				PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
			}},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &port}, {Protocol: &tcp, Port: &port}},
		},
	}
	for _, n := range d.opts.AllowNets {
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{block(n.Masked().String(), nil)}})
	}
	return rules
}

// ensurePolicy makes the policy of a network mode, or puts right one of the name that says something else, and returns it.
func (d *driver) ensurePolicy(ctx context.Context, mode backend.NetworkMode) (*networkingv1.NetworkPolicy, error) {
	want := d.networkPolicy(mode)
	return kit.Call(ctx, d.calls, "network policy", func(ctx context.Context) (*networkingv1.NetworkPolicy, error) {
		for {
			there, err := d.api.networks.Get(ctx, want.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				there, err = d.api.networks.Create(ctx, want, metav1.CreateOptions{})
			case err == nil && !apiequality.Semantic.DeepEqual(there.Spec, want.Spec):
				there.Spec = want.Spec
				there, err = d.api.networks.Update(ctx, there, metav1.UpdateOptions{})
			}
			if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) { // else another process was faster
				return there, err
			}
		}
	})
}

// validNets refuses what a policy cannot say.
func validNets(nets []netip.Prefix) error {
	for _, n := range nets {
		if !n.IsValid() {
			return fmt.Errorf("kubernetes: Options.AllowNets has an address that is none: %w", backend.ErrInvalid)
		}
	}
	return nil
}

// errUntold: a policy cannot be seen to keep a pod from what no pod reaches.
var errUntold = fmt.Errorf("kubernetes: pods of this namespace do not reach each other, so that nobody can tell whether its NetworkPolicies bind; "+
	"allow pods with the label %s=%s to reach each other, or say that another wall is there (Options.TrustNetworkPolicy): %w", labelNetwork, open, backend.ErrUnsupported)

// tryPolicy returns nil where the cluster keeps a pod that a policy isolates from another pod which one without reaches.
func (d *driver) tryPolicy(ctx context.Context, p *plan) (err error) {
	t := &trial{d: d, p: p}
	defer func() { err = errors.Join(err, t.clean(context.WithoutCancel(ctx))) }()
	wait, cancel := context.WithTimeout(ctx, d.opts.PullTimeout)
	defer cancel()
	closed, opened, err := t.run(wait)
	switch {
	case wait.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("kubernetes: the trial of the network did not end within %v: %w", d.opts.PullTimeout, backend.ErrUnavailable)
	case err != nil:
		return err
	case closed:
		return fmt.Errorf("kubernetes: this cluster does not enforce NetworkPolicies, so that no sandbox is kept from its network; "+
			"use a network plugin that does, or say that another wall is there (Options.TrustNetworkPolicy): %w", backend.ErrUnsupported)
	case !opened:
		return errUntold
	}
	return nil
}
