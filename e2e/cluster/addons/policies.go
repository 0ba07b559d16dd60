package main

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// chain is the iptables chain for packets from and to pods. The rules implement the policies. Packets with the address
// of an unknown pod are dropped, so a pod is isolated until its policies are known.
const chain = "WORKCELL-CLUSTER"

// allowed is the mark of a packet allowed by a policy rule.
const allowed = "0x40000/0x40000"

// enforce updates the node's rules to the policies.
func (a *addons) enforce() error {
	pods, err := a.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	policies, err := a.policies.List(labels.Everything())
	if err != nil {
		return err
	}
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !live(p) || p.Spec.NodeName != a.node })
	slices.SortFunc(pods, func(x, y *corev1.Pod) int { return strings.Compare(x.Status.PodIP, y.Status.PodIP) })
	w := &writer{a: a, pods: pods}
	w.rule(chain, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	for _, p := range pods {
		w.direction(p, policies, networkingv1.PolicyTypeEgress)
	}
	for _, p := range pods {
		w.direction(p, policies, networkingv1.PolicyTypeIngress)
	}
	for _, p := range pods { // allowed by the policies of both ends
		w.rule(chain, "-s "+p.Status.PodIP+" -j ACCEPT")
	}
	w.rule(chain, "-s "+a.network+" "+reject)
	text := w.String()
	if text == a.rules && exec.Command("iptables", "-w", "-C", "FORWARD", "-j", chain).Run() == nil {
		return nil
	}
	restore := exec.Command("iptables-restore", "-w", "--noflush")
	restore.Stdin = strings.NewReader(text)
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s", err, out)
	}
	a.rules = text
	for _, from := range []string{"FORWARD", "INPUT"} { // other programs insert their rules first, so insert again
		if exec.Command("iptables", "-w", "-C", from, "-j", chain).Run() == nil {
			continue
		}
		if out, err := exec.Command("iptables", "-w", "-I", from, "-j", chain).CombinedOutput(); err != nil {
			return fmt.Errorf("iptables: %w: %s", err, out)
		}
	}
	return nil
}

const reject = "-j REJECT --reject-with icmp-admin-prohibited"

// writer creates the input of iptables-restore.
type writer struct {
	a      *addons
	pods   []*corev1.Pod
	chains []string
	rules  []string
}

func (w *writer) rule(in, text string) { w.rules = append(w.rules, "-A "+in+" "+text) }

func (w *writer) String() string {
	var b strings.Builder
	b.WriteString("*filter\n")
	for _, c := range append([]string{chain}, w.chains...) {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c)
	}
	b.WriteString(strings.Join(w.rules, "\n") + "\nCOMMIT\n")
	return b.String()
}

// direction writes the rules of the policies for packets from a pod or to a pod.
func (w *writer) direction(p *corev1.Pod, policies []*networkingv1.NetworkPolicy, d networkingv1.PolicyType) {
	end, other := "-s", "-d"
	if d == networkingv1.PolicyTypeIngress {
		end, other = other, end
	}
	var of []*networkingv1.NetworkPolicy
	for _, policy := range policies {
		s, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if policy.Namespace == p.Namespace && slices.Contains(policy.Spec.PolicyTypes, d) && selected(s, err, p.Labels) {
			of = append(of, policy)
		}
	}
	if len(of) == 0 {
		return
	}
	slices.SortFunc(of, func(x, y *networkingv1.NetworkPolicy) int { return strings.Compare(x.Name, y.Name) })
	name := fmt.Sprintf("WCC-%s-%d", strings.ToUpper(string(d)[:1]), len(w.chains))
	w.chains = append(w.chains, name)
	w.rule(chain, end+" "+p.Status.PodIP+" -j "+name)
	w.rule(name, "-j MARK --set-xmark 0x0/0x40000")
	for _, policy := range of {
		if d == networkingv1.PolicyTypeEgress {
			for _, r := range policy.Spec.Egress {
				w.peers(name, other, policy.Namespace, r.To, r.Ports)
			}
			continue
		}
		for _, r := range policy.Spec.Ingress {
			w.peers(name, other, policy.Namespace, r.From, r.Ports)
		}
	}
	w.rule(name, "-m mark --mark "+allowed+" -j RETURN")
	w.rule(name, reject)
}

// peers writes a rule of a policy.
func (w *writer) peers(in, end, namespace string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	var services []string
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		service := "-p " + strings.ToLower(string(protocol))
		if p.Port != nil {
			service += " --dport " + p.Port.String()
		}
		services = append(services, service)
	}
	if len(services) == 0 {
		services = []string{""}
	}
	for _, service := range services {
		if len(peers) == 0 {
			w.rule(in, service+" -j MARK --set-xmark "+allowed)
		}
		for _, peer := range peers {
			w.peer(in, end, namespace, peer, service)
		}
	}
}

func (w *writer) peer(in, end, namespace string, peer networkingv1.NetworkPolicyPeer, service string) {
	if b := peer.IPBlock; b != nil {
		if cidr, err := netip.ParsePrefix(b.CIDR); err != nil || !cidr.Addr().Is4() {
			return
		}
		block := fmt.Sprintf("WCC-B-%d", len(w.chains))
		w.chains = append(w.chains, block)
		w.rule(in, end+" "+b.CIDR+" "+service+" -j "+block)
		for _, except := range b.Except {
			w.rule(block, end+" "+except+" -j RETURN")
		}
		w.rule(block, "-j MARK --set-xmark "+allowed)
		return
	}
	for _, p := range w.pods {
		if w.matches(peer, p, namespace) {
			w.rule(in, end+" "+p.Status.PodIP+" "+service+" -j MARK --set-xmark "+allowed)
		}
	}
}

// matches reports whether a pod matches a peer of a policy in a namespace.
func (w *writer) matches(peer networkingv1.NetworkPolicyPeer, p *corev1.Pod, namespace string) bool {
	if peer.NamespaceSelector == nil && p.Namespace != namespace {
		return false
	}
	if peer.NamespaceSelector != nil {
		ns, err := w.a.namespaces.Get(p.Namespace)
		s, wrong := metav1.LabelSelectorAsSelector(peer.NamespaceSelector)
		if err != nil || !selected(s, wrong, ns.Labels) {
			return false
		}
	}
	if peer.PodSelector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(peer.PodSelector)
	return selected(s, err, p.Labels)
}
