package kubernetes

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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

// trialPort is where the one pod of a trial listens, in its own network namespace.
const trialPort = 17253

// open is the network of a trial's pod that no policy selects.
const open = "open"

// roleTrial is what a trial's pods are for.
const roleTrial = "network-trial"

// A pod that reaches nothing is tried again with twice the patience: a busy cluster may connect one late.
const trialFirst, trialLast = 3 * time.Second, 12 * time.Second

// trialLife is how long a pod of a trial may live, whatever becomes of this process: its image may have to be pulled.
const trialLife = 10 * time.Minute

// trial is some pods that find out whether a policy binds.
type trial struct {
	d    *driver
	p    *plan
	node string   // of the first pod, and of the others: that nodes do not reach each other must not be taken for a policy's work
	made []string // names of pods
}

// run reports whether a pod that a policy isolates reaches another one, and whether one without does.
func (t *trial) run(ctx context.Context) (closed, opened bool, err error) {
	listener, err := t.start(ctx, open, "listen", strconv.Itoa(trialPort))
	if err != nil {
		return false, false, err
	}
	pod, err := t.until(ctx, listener, func(pod *corev1.Pod) bool {
		return pod.Status.PodIP != "" && pod.Status.Phase == corev1.PodRunning
	})
	if err != nil {
		return false, false, err
	}
	t.node = pod.Spec.NodeName
	address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(trialPort))
	// Whoever is closed gets twice the time in which the one without a policy was connected, and what it did not reach is there
	// before and after.
	patience, opened, err := t.reach(ctx, address)
	if err == nil && opened {
		closed, err = t.dial(ctx, address, t.d.networkLabel(backend.NetworkNone), 2*patience)
	}
	if err == nil && opened && !closed {
		_, opened, err = t.reach(ctx, address)
	}
	if err != nil || opened {
		return closed, opened, err
	}
	pod, err = t.d.getPod(ctx, listener)
	if err == nil && ended(pod) {
		err = fmt.Errorf("kubernetes: the trial of the network was cut short: the pod that listened has ended: %w", backend.ErrUnavailable)
	}
	return false, false, err
}

// reach reports whether a pod that no policy isolates reaches an address, and within which time.
func (t *trial) reach(ctx context.Context, address string) (patience time.Duration, reached bool, err error) {
	for patience = trialFirst; patience <= trialLast; patience *= 2 {
		if reached, err = t.dial(ctx, address, open, patience); err != nil || reached {
			break
		}
	}
	return patience, reached, err
}

// dial reports whether a pod in this network reaches an address within patience.
func (t *trial) dial(ctx context.Context, address, network string, patience time.Duration) (reached bool, err error) {
	name, err := t.start(ctx, network, "dial", address, patience.String())
	if err != nil {
		return false, err
	}
	code := int32(-1)
	_, err = t.until(ctx, name, func(pod *corev1.Pod) bool {
		for _, s := range pod.Status.ContainerStatuses {
			if s.State.Terminated != nil {
				code = s.State.Terminated.ExitCode
				return true
			}
		}
		return false
	})
	switch {
	case err != nil:
		return false, err
	case code == 0, code == 3: // as the guest says: it answered, it did not
		return code == 0, nil
	}
	return false, fmt.Errorf("kubernetes: a trial of the network ended with exit code %d: %w", code, backend.ErrUnavailable)
}

// start makes a pod of the guest's image, or of the sandbox's own where that has the guest.
func (t *trial) start(ctx context.Context, network string, args ...string) (string, error) {
	name := namePre + "trial-" + strings.ToLower(rand.Text())[:12]
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			labelName: "workcell", labelManagedBy: "workcell", labelComponent: roleTrial, labelNetwork: network,
			backend.LabelRole: roleTrial, backend.LabelInstance: labelValue(t.p.Spec.Instance),
		}},
		Spec: t.d.podSpec(t.p.User),
	}
	deadline := int64(trialLife / time.Second)
	pod.Spec.ActiveDeadlineSeconds, pod.Spec.NodeName = &deadline, t.node
	limits := backend.Limits{MemoryBytes: 32 << 20, CPUMillis: 100}
	pod.Spec.Containers = []corev1.Container{{
		Name: containerName, Image: cmp.Or(t.d.opts.GuestImage, t.p.Ref), ImagePullPolicy: corev1.PullIfNotPresent,
		Command: append([]string{embed.Path, "network-trial"}, args...), SecurityContext: confined(true), Resources: resources(limits, limits),
	}}
	t.made = append(t.made, name)
	_, err := kit.Finish(ctx, t.d.calls, "create pod", call(t.d.api.pods.Create, pod))
	return name, err
}

// until looks at a pod until it is as it should be, and returns it, or why it never will be.
func (t *trial) until(ctx context.Context, name string, is func(*corev1.Pod) bool) (pod *corev1.Pod, err error) {
	begin := time.Now()
	err = t.d.calls.Retry(ctx, func() (bool, error) {
		if pod, err = t.d.getPod(ctx, name); err != nil || is(pod) {
			return true, err
		}
		err = troubleSince(begin, pod, t.p.Image)
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

// sweep removes what a process left that was killed during its trial.
func (t *trial) sweep(ctx context.Context) {
	list, err := kit.Call(ctx, t.d.calls, "list pods", listing(t.d.api.pods.List, backend.LabelRole+"="+roleTrial))
	if err == nil {
		for i := range list.Items {
			if pod := &list.Items[i]; time.Since(pod.CreationTimestamp.Time) > trialKept {
				err = errors.Join(err, t.remove(ctx, pod.Name))
			}
		}
	}
	if err != nil {
		t.d.log.WarnContext(ctx, "kubernetes: pods of an earlier trial of the network may be left", "error", err)
	}
}

func (t *trial) remove(ctx context.Context, name string) error {
	now := int64(0)
	err := t.d.calls.Do(ctx, "delete pod", func(ctx context.Context) error {
		return t.d.api.pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	if errors.Is(err, backend.ErrNotFound) {
		return nil
	}
	return err
}
