package kubernetes

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// trialPort is the port on which one pod of a trial listens, in the pod's network namespace.
const trialPort = 17253

// open is the network of a trial pod not selected by any policy.
const open = "open"

// roleTrial is the role label of trial pods.
const roleTrial = "network-trial"

// trialPatience is how long a pod tries to reach a target. In a busy cluster, the network may be ready late.
const trialPatience = 10 * time.Second

// trialLife is the maximum lifetime of a trial pod, even if this process dies. It is long because the image may have to
// be pulled.
const trialLife = 10 * time.Minute

// trialCode is the exit code of a pod without reached targets. Each reached target adds a bit.
const trialCode = 64

// trial is a group of pods to test whether a policy is enforced.
type trial struct {
	d    *driver
	p    *kit.Plan
	node string   // node of all pods, to avoid mistaking a broken link between nodes for a policy
	made []string // names of the created pods
}

// TryNetwork tests with pods whether the cluster isolates a sandbox without a network. It returns the unreachable
// targets of such a sandbox. If the sandbox reaches a target, TryNetwork returns ErrUnsupported. It also returns
// ErrUnsupported if no pod reaches another pod, because then the test proves nothing. Without Options.GuestImage, image
// must contain the guest agent.
func (b *Backend) TryNetwork(ctx context.Context, image string) (closed []string, err error) {
	return kit.Admit(ctx, b.d.calls, "", func(ctx context.Context) (_ []string, err error) {
		p, err := kit.NewPlan(b.Name(), backend.Spec{ID: "trial", Image: image}, b.d.opts.Images, b.d.opts.Limits)
		if err != nil {
			return nil, err
		}
		pod := map[string]string{labelName: "workcell", labelManagedBy: "workcell", labelComponent: backend.RoleSandbox,
			backend.LabelRole: backend.RoleSandbox, labelNetwork: string(backend.NetworkNone)}
		maps.Copy(pod, b.d.opts.Labels)
		if err := b.d.ensurePolicy(ctx, backend.NetworkNone, pod); err != nil {
			return nil, err
		}
		t := &trial{d: b.d, p: p}
		defer func() { err = errors.Join(err, t.clean(context.WithoutCancel(ctx))) }()
		return t.run(ctx)
	})
}

// target is a destination to reach from a trial pod.
type target struct{ name, address string }

// run starts a listening pod. It then tries to reach this pod and other targets from pods with and without a policy.
func (t *trial) run(ctx context.Context) ([]string, error) {
	listener, err := t.start(ctx, open, "listen", strconv.Itoa(trialPort))
	if err != nil {
		return nil, err
	}
	pod, err := t.until(ctx, listener, func(pod *corev1.Pod) bool {
		return pod.Status.PodIP != "" && pod.Status.Phase == corev1.PodRunning
	})
	if err != nil {
		return nil, err
	}
	t.node = pod.Spec.NodeName
	targets := []target{{"a pod by UDP", "udp:" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(trialPort))}}
	for _, ip := range pod.Status.PodIPs { // one address per IP family
		address := net.JoinHostPort(ip.IP, strconv.Itoa(trialPort))
		targets = append(targets, target{"a pod by TCP at " + address, "tcp:" + address})
	}
	pods := len(targets)
	kubelet := net.JoinHostPort(pod.Status.HostIP, "10250")
	targets = append(targets,
		target{"DNS", "dns:"}, target{"the API server", "api:"}, target{"the node at " + kubelet, "tcp:" + kubelet})
	before, err := t.dial(ctx, open, targets)
	if err != nil {
		return nil, err
	}
	reached, err := t.dial(ctx, string(backend.NetworkNone), targets)
	if err != nil {
		return nil, err
	}
	after := before
	if reached == 0 {
		if after, err = t.dial(ctx, open, targets); err != nil {
			return nil, err
		}
	}
	var closed, opened []string
	for i, one := range targets {
		switch bit := 1 << i; {
		case reached&bit != 0:
			opened = append(opened, one.name)
		case i < pods && before&after&bit == 0:
			return nil, fmt.Errorf("kubernetes: pods of this namespace cannot reach each other, so the test is inconclusive; "+
				"allow traffic between pods with the label %s=%s: %w", labelNetwork, open, backend.ErrUnsupported)
		case before&bit != 0:
			closed = append(closed, one.name)
		default:
			closed = append(closed, one.name+" (no pod reaches it)")
		}
	}
	if opened != nil {
		return nil, fmt.Errorf("kubernetes: a pod without network access reached %s; the cluster does not enforce "+
			"NetworkPolicies, so use a network plugin that does: %w", strings.Join(opened, ", "), backend.ErrUnsupported)
	}
	return closed, nil
}

// dial returns a bit mask of the reached targets of a pod in a network.
func (t *trial) dial(ctx context.Context, network string, targets []target) (reached int, err error) {
	args := []string{"dial", trialPatience.String()}
	for _, one := range targets {
		args = append(args, one.address)
	}
	name, err := t.start(ctx, network, args...)
	if err != nil {
		return 0, err
	}
	pod, err := t.until(ctx, name, func(pod *corev1.Pod) bool { return terminated(pod) != nil })
	if err != nil {
		return 0, err
	}
	code := int(terminated(pod).ExitCode)
	if code < trialCode || code >= 2*trialCode {
		err = fmt.Errorf("kubernetes: a network test exited with code %d: %w", code, backend.ErrUnavailable)
	}
	return code - trialCode, err
}

// start creates a pod from the guest image, or from the sandbox image if it contains the guest agent.
func (t *trial) start(ctx context.Context, network string, args ...string) (string, error) {
	name := namePre + "trial-" + strings.ToLower(rand.Text())[:12]
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: t.d.opts.Annotations, Labels: map[string]string{
			labelName: "workcell", labelManagedBy: "workcell", labelComponent: roleTrial, labelNetwork: network,
			backend.LabelRole: roleTrial,
		}},
		Spec: t.d.podSpec(t.p.User),
	}
	maps.Copy(pod.Labels, t.d.opts.Labels)
	pod.Spec.ActiveDeadlineSeconds = new(int64(trialLife / time.Second))
	pod.Spec.NodeName, pod.Spec.DNSPolicy = t.node, corev1.DNSClusterFirst
	limits := backend.Limits{MemoryBytes: 32 << 20, CPUMillis: 100}
	pod.Spec.Containers = []corev1.Container{{
		Name: containerName, Image: cmp.Or(t.d.opts.GuestImage, t.p.Ref), ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         append([]string{embed.Path, "network-trial"}, args...),
		SecurityContext: confined(true), Resources: resources(limits, limits),
	}}
	t.made = append(t.made, name)
	_, err := kit.Finish(ctx, t.d.calls, "create pod", kit.With(t.d.api.pods.Create, pod))
	return name, err
}

// until waits until is returns true for a pod, and returns the pod. If this can never happen, until returns the reason.
func (t *trial) until(ctx context.Context, name string, is func(*corev1.Pod) bool) (pod *corev1.Pod, err error) {
	begin := time.Now()
	err = t.d.calls.Retry(ctx, func() (bool, error) {
		if pod, err = t.d.getPod(ctx, name); err != nil || is(pod) {
			return true, err
		}
		err = cmp.Or(unplaced(begin, t.d.opts.NodeTimeout, pod), trouble(begin, pod, t.p.Image))
		return err != nil, err
	})
	return pod, err
}

// clean removes the pods.
func (t *trial) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kit.CleanupTimeout)
	defer cancel()
	var errs []error
	for _, name := range t.made {
		errs = append(errs, t.remove(ctx, name))
	}
	t.sweep(ctx)
	return errors.Join(errs...)
}

// sweep removes trial pods of processes killed during a trial.
func (t *trial) sweep(ctx context.Context) {
	list, err := kit.Call(ctx, t.d.calls, "list pods", kit.With(t.d.api.pods.List, backend.LabelRole+"="+roleTrial))
	if err == nil {
		for i := range list.Items {
			if pod := &list.Items[i]; time.Since(pod.CreationTimestamp.Time) > trialLife {
				err = errors.Join(err, t.remove(ctx, pod.Name))
			}
		}
	}
	if err != nil {
		t.d.opts.Logger.WarnContext(ctx, "kubernetes: cannot remove pods of earlier network tests", "error", err)
	}
}

func (t *trial) remove(ctx context.Context, name string) error {
	err := t.d.calls.Do(ctx, "delete pod", func(ctx context.Context) error {
		return t.d.api.pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	})
	return kit.Ignore(err, backend.ErrNotFound)
}
