package kubernetes

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

const (
	// A scheduled pod is tried at this interval. The phase shows a running container up to a second late. The interval
	// grows with the elapsed time.
	tryEvery, tryAtLeast = 30 * time.Millisecond, time.Second
	// tryAfter is the delay before the first attempt to reach a pod before the phase Running. Kubelets check every 300 ms
	// whether a pod's volumes are mounted, and the driver's pods have volumes.
	tryAfter = 250 * time.Millisecond
	// lookEvery is how often the driver reads the pod during this time, to detect a pod without a chance to run.
	lookEvery = 250 * time.Millisecond
	// crowded is the default of Options.NodeTimeout.
	crowded = 30 * time.Second
	// restarts is the maximum time for the server to be unavailable while a created pod starts.
	restarts = time.Minute
)

// plan describes the requests to the cluster.
type plan struct {
	*kit.Plan
	name    string // name of the pod and of the claim
	nonce   string
	guest   string // version of the guest agent
	network string // label selected by the NetworkPolicy
}

func (p *plan) id() string { return p.name + "." + p.nonce }

// newPlan checks a plan against the capabilities of a cluster. If a RuntimeClass could not be read before, newPlan
// tries again. If it fails, the class counts as a container.
func (d *driver) newPlan(ctx context.Context, p *kit.Plan) (*plan, error) {
	s := p.Spec
	switch {
	case s.OCIRuntime != "" && !slices.Contains(d.opts.RuntimeClasses, s.OCIRuntime):
		return nil, fmt.Errorf("kubernetes: %.40q is not in kubernetes.runtime_classes (Options.RuntimeClasses): %w",
			s.OCIRuntime, backend.ErrUnsupported)
	case p.Asked.PIDs > 0:
		return nil, fmt.Errorf("kubernetes: the process limit of a pod is set on its node (podPidsLimit), not per sandbox: "+
			"%w", backend.ErrUnsupported)
	case s.Fork != nil:
		return nil, fmt.Errorf("kubernetes: %w", backend.ErrNoSnapshots)
	case s.Environment != "":
		return nil, d.CommitEnvironment(context.Background(), "")
	case len(s.Mounts) > 0:
		return nil, fmt.Errorf("kubernetes: host directories cannot be mounted, because pods can run on any node: %w",
			backend.ErrUnsupported)
	}
	arch := strings.TrimPrefix(s.Platform, "linux/")
	if s.Platform != "" && !slices.Contains(embed.Arches(), arch) {
		arch = strings.Join(embed.Arches(), " or ")
	}
	caps := d.Capabilities()
	if caps.Isolation[s.OCIRuntime] == "" {
		if err := d.classes(ctx, s.OCIRuntime); err != nil {
			return nil, err
		}
		caps = d.Capabilities()
		caps.Isolation[s.OCIRuntime] = cmp.Or(caps.Isolation[s.OCIRuntime], backend.IsolationContainer)
	}
	if err := p.Supports(caps, arch); err != nil {
		return nil, err
	}
	p.Spec.Limits.PIDs = 0 // see Capabilities
	return &plan{
		Plan: p, name: objectName(s.ID), nonce: strings.ToLower(rand.Text()), guest: d.opts.Guest.Version,
		network: d.networkLabel(s.Network),
	}, nil
}

// Create creates a sandbox and waits for the guest agent.
func (d *driver) Create(ctx context.Context, checked *kit.Plan) (_ backend.Info, err error) {
	p, err := d.newPlan(ctx, checked)
	if err != nil {
		return backend.Info{}, err
	}
	pod := d.manifest(p)
	if err := d.isolate(ctx, p.Spec.Network, pod.Labels); err != nil {
		return backend.Info{}, err
	}
	defer func() {
		if err != nil {
			err = d.calls.Undo(ctx, p.Spec.ID, err, func(ctx context.Context) error { return d.rollback(ctx, p) })
		}
	}()
	if d.opts.StorageClass != "" {
		if err := d.ensureClaim(ctx, p); err != nil {
			return backend.Info{}, err
		}
	}
	if err := d.createPod(ctx, pod); err != nil {
		return backend.Info{}, err
	}
	return d.await(ctx, pod, p.Image, p.id())
}

// ensureClaim creates the claim of a session's workspace if it does not exist or is being deleted. It first reads the
// claim, because the server checks an exhausted quota before it checks whether the claim exists.
func (d *driver) ensureClaim(ctx context.Context, p *plan) error {
	old, there, err := d.getClaim(ctx, p.name)
	if err == nil && old.DeletionTimestamp != nil {
		if err = d.awaitClaim(ctx, old); err == nil {
			_, there, err = d.getClaim(ctx, p.name)
		}
	}
	if errors.Is(err, backend.ErrNotFound) {
		_, err = kit.Finish(ctx, d.calls, "create workspace", kit.With(d.api.volumes.Create, d.claim(p)))
		if !errors.Is(err, backend.ErrExists) {
			return err
		}
		_, there, err = d.getClaim(ctx, p.name)
	}
	if err == nil && !there.belongs(p.Spec.Instance, p.Spec.ID) {
		err = fmt.Errorf("kubernetes: the workspace of sandbox %s belongs to another installation: %w",
			p.Spec.ID, backend.ErrExists)
	}
	return err
}

// createPod creates a pod. It waits for the deletion of an earlier pod with this name.
func (d *driver) createPod(ctx context.Context, pod *corev1.Pod) error {
	session := pod.Name
	if c, ok := configOf(&pod.ObjectMeta, backend.RoleSandbox); ok {
		session = c.Values[backend.LabelID]
	}
	create := kit.With(d.api.pods.Create, pod)
	_, err := kit.Finish(ctx, d.calls, "create pod", create)
	if errors.Is(err, backend.ErrExists) {
		old, wrong := d.getPod(ctx, pod.Name)
		if wrong == nil && old.DeletionTimestamp != nil {
			err = d.removePod(ctx, pod.Name, false, func(now *corev1.Pod) bool { return now.UID == old.UID })
			if err == nil {
				_, err = kit.Finish(ctx, d.calls, "create pod", create)
			}
		}
	}
	if errors.Is(err, backend.ErrExists) {
		return fmt.Errorf("kubernetes: sandbox %s already has a pod: %w", session, backend.ErrExists)
	}
	return err
}

// await waits until the guest agent of a pod responds, and returns the info of the sandbox. If the pod cannot start,
// the error contains the reason. await keeps the first stream for the first Dial.
func (d *driver) await(ctx context.Context, pod *corev1.Pod, image, id string) (backend.Info, error) {
	wait, cancel := context.WithTimeout(ctx, d.opts.PullTimeout)
	defer cancel()
	begin := time.Now()
	now, looked := pod, begin
	var last error // of an attempt to reach the guest agent
	for {
		if now.Spec.NodeName == "" || time.Since(looked) >= lookEvery {
			switch next, err := d.getPod(wait, pod.Name); {
			case errors.Is(err, backend.ErrUnavailable) && wait.Err() == nil && time.Since(looked) < restarts:
			case err != nil:
				return backend.Info{}, d.whyNot(ctx, wait, err, last)
			case next.Labels[labelNonce] != pod.Labels[labelNonce]:
				return backend.Info{}, errRemoved
			default:
				now, looked = next, time.Now()
				if err := cmp.Or(unplaced(begin, d.opts.NodeTimeout, now), trouble(begin, now, image)); err != nil {
					return backend.Info{}, err
				}
			}
		}
		if now.Spec.NodeName != "" && (now.Status.Phase == corev1.PodRunning || time.Since(begin) >= tryAfter) {
			env, err := d.greet(wait, now, id)
			if err == nil {
				info, _ := describe(now)
				info.ImageEnv = env
				return info, nil
			}
			if rejects(err) {
				return backend.Info{}, d.calls.Fail(ctx, "exec", err)
			}
			if wait.Err() == nil {
				last = err
			}
		}
		select {
		case <-wait.Done():
			return backend.Info{}, d.whyNot(ctx, wait, wait.Err(), last)
		case <-time.After(min(max(tryEvery, time.Since(begin)/20), tryAtLeast)):
		}
	}
}

// whyNot returns the real reason of a failure to wait for a new object. last is the error of the last attempt to reach
// the guest agent, if any.
func (d *driver) whyNot(ctx, wait context.Context, err, last error) error {
	switch {
	case ctx.Err() != nil:
		return d.calls.Fail(ctx, "create", ctx.Err())
	case wait.Err() != nil && last != nil:
		return fmt.Errorf("kubernetes: the guest agent did not respond within %v: %s: %w",
			d.opts.PullTimeout, kit.Scrub(last.Error()), backend.ErrUnavailable)
	case wait.Err() != nil:
		return fmt.Errorf("kubernetes: the sandbox did not start within %v: %w", d.opts.PullTimeout, backend.ErrUnavailable)
	case errors.Is(err, backend.ErrNotFound):
		return errRemoved
	}
	return err
}

// report reads the report of a sandbox's guest agent. The guest agent sends it as soon as it runs.
func (d *driver) report(ctx context.Context, pod string) (wire.PodReport, error) {
	s, r, err := d.hear(ctx, pod, "report")
	if err != nil {
		return r, err
	}
	return r, s.Close()
}

// greet opens the first stream to a guest agent and returns the environment of the image.
func (d *driver) greet(ctx context.Context, pod *corev1.Pod, id string) ([]string, error) {
	s, r, err := d.hear(ctx, pod.Name, "connect", "--report")
	switch {
	case err == nil:
		d.first.keep(id, s)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil: // a guest agent of another version sends no report
		r, err = d.report(ctx, pod.Name)
	}
	if err != nil {
		return nil, err
	}
	return d.keepEnv(id, imageOf(pod), r), nil
}

// keepEnv returns the environment of a sandbox's image and caches it. It is constant for an image ID. The node reports
// the image ID late, so until then the environment belongs to the sandbox. Other processes may remove the sandbox.
func (d *driver) keepEnv(id, image string, r wire.PodReport) []string {
	env := imageEnv(r.Environ)
	d.env.Store(cmp.Or(image, id), env)
	if image == "" {
		time.AfterFunc(d.opts.PullTimeout, func() { d.env.Delete(id) })
	}
	return env
}

// hear runs the guest agent's program in a pod. It reads the report at the beginning of the output and returns the
// streams after it.
func (d *driver) hear(ctx context.Context, pod string, args ...string) (_ *stream, r wire.PodReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	s, err := d.exec(ctx, pod, append([]string{embed.Path}, args...)...)
	if err != nil {
		return nil, r, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	line, err := firstLine(s, 1<<20)
	if !stop() {
		err = ctx.Err()
	}
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		return nil, r, errors.Join(err, s.Close())
	}
	return s, r, nil
}

// firstLine reads a line of at most most bytes, and no bytes after the line.
func firstLine(r io.Reader, most int) ([]byte, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < most; line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		if b[0] == '\n' {
			return line, nil
		}
	}
	return nil, fmt.Errorf("kubernetes: the guest agent's report exceeds %d bytes: %w", most, backend.ErrUnavailable)
}

// rollback removes only the objects of a failed creation. An existing claim contains the session's files. rollback
// first requests the deletion of a new claim, because the removal of the pod may take too long. The server keeps a
// claim until no pod uses it.
func (d *driver) rollback(ctx context.Context, p *plan) error {
	claim, wrong := d.newClaim(ctx, p)
	if claim != nil {
		wrong = d.deleteClaim(ctx, claim)
	}
	err := errors.Join(wrong, d.removePod(ctx, p.name, true, hasNonce(p.nonce)))
	if claim != nil && err == nil {
		err = d.removeClaim(ctx, claim)
	}
	return err
}

// newClaim returns the claim created for a plan, or nil if there is none or if a newer sandbox of the session uses it.
func (d *driver) newClaim(ctx context.Context, p *plan) (*corev1.PersistentVolumeClaim, error) {
	if d.opts.StorageClass == "" {
		return nil, nil
	}
	if replaced, err := d.replaced(ctx, p.name, p.nonce); replaced || err != nil {
		return nil, err
	}
	claim, _, err := d.getClaim(ctx, p.name)
	if err != nil || claim.Labels[labelNonce] != p.nonce {
		return nil, kit.Ignore(err, backend.ErrNotFound, backend.ErrExists)
	}
	return claim, nil
}
