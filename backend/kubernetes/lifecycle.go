package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

func (d *driver) getPod(ctx context.Context, name string) (*corev1.Pod, error) {
	return kit.Call(ctx, d.calls, "get pod", kit.With(d.api.pods.Get, name))
}

// own returns the pod of a sandbox. It returns ErrNotFound if the ID does not belong to a sandbox of this driver.
func (d *driver) own(ctx context.Context, id string) (*corev1.Pod, backend.Info, error) {
	name, nonce, ok := splitID(id)
	if !ok {
		return nil, backend.Info{}, notFound(id)
	}
	pod, err := d.getPod(ctx, name)
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		return nil, backend.Info{}, err
	}
	if err == nil && pod.Labels[labelNonce] == nonce && pod.DeletionTimestamp == nil {
		if info, ok := describe(pod); ok {
			return pod, info, nil
		}
	}
	return nil, backend.Info{}, notFound(id)
}

// Get describes a sandbox. Without the environment of the image, commands would not find programs, so Get fails if it
// cannot read the environment of a running sandbox.
func (d *driver) Get(ctx context.Context, id string) (backend.Info, error) {
	_, info, err := d.own(ctx, id)
	if err != nil || info.State != backend.StateRunning {
		return info, err
	}
	env, err := d.declared(ctx, info)
	if errors.Is(err, backend.ErrLost) { // it has exited since
		_, info, err = d.own(ctx, id)
	}
	if err != nil {
		return backend.Info{}, err
	}
	info.ImageEnv = env
	return info, nil
}

// declared returns the environment of the image of a running sandbox.
func (d *driver) declared(ctx context.Context, info backend.Info) (env []string, err error) {
	for _, key := range []string{info.ImageID, info.ID} {
		if env, ok := d.env.Load(key); ok {
			return env.([]string), nil
		}
	}
	err = d.reach(ctx, "get", info.ID, func(ctx context.Context, pod *corev1.Pod) error {
		r, err := d.report(ctx, pod.Name)
		if err == nil {
			env = d.keepEnv(info.ID, imageOf(pod), r)
		}
		return err
	})
	return env, err
}

// List describes the sandboxes matching filter.
func (d *driver) List(ctx context.Context, filter backend.Filter) ([]backend.Info, error) {
	list, err := kit.Call(ctx, d.calls, "list pods", kit.With(d.api.pods.List, selector(filter)))
	if err != nil {
		return nil, err
	}
	var infos []backend.Info
	for i := range list.Items {
		pod := &list.Items[i]
		if info, ok := describe(pod); ok && pod.DeletionTimestamp == nil {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// Start creates a new pod for a stopped sandbox.
func (d *driver) Start(ctx context.Context, id string) error {
	d.first.drop(id)
	pod, info, err := d.own(ctx, id)
	if err != nil || info.State != backend.StateStopped {
		return err
	}
	if err := d.checkWorkspace(ctx, pod); err != nil {
		return err
	}
	next := d.again(pod)
	next.Labels[labelNetwork] = d.networkLabel(info.Network) // the options may have changed
	if err := d.isolate(ctx, info.Network, next.Labels); err != nil {
		return err
	}
	if err := d.admits(ctx, next); err != nil {
		return err
	}
	err = d.replace(ctx, pod, next)
	if errors.Is(err, backend.ErrExists) { // another process has created it
		return nil
	}
	if err == nil {
		_, err = d.await(ctx, next, info.Image, id)
	}
	return err
}

// checkWorkspace returns ErrLost if the claim of a stopped pod is missing or being deleted, because its next pod could
// never run. Without the permission to read claims, it returns nil, because the claim may be from an earlier
// configuration.
func (d *driver) checkWorkspace(ctx context.Context, pod *corev1.Pod) error {
	claimed := func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }
	if !slices.ContainsFunc(pod.Spec.Volumes, claimed) {
		return nil
	}
	claim, err := kit.Call(ctx, d.calls, "get workspace", kit.With(d.api.volumes.Get, pod.Name))
	if errors.Is(err, backend.ErrNotFound) || err == nil && claim.DeletionTimestamp != nil {
		return fmt.Errorf("kubernetes: the workspace was deleted (claim %s); remove the sandbox: %w",
			pod.Name, backend.ErrLost)
	}
	return kit.Ignore(err, backend.ErrPermission)
}

// replace replaces an ended pod with a new pod. It ignores the cancellation of ctx, because between the deletion and
// the creation, only this process knows the sandbox.
func (d *driver) replace(ctx context.Context, pod, next *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opts.CallTimeout)
	defer cancel()
	// Another process may have created the sandbox's next pod by now.
	if err := d.removePod(ctx, pod.Name, false, func(now *corev1.Pod) bool { return now.UID == pod.UID }); err != nil {
		return err
	}
	return d.createPod(ctx, next)
}

// admits returns the reason why the server would reject a pod whose name still belongs to another pod.
func (d *driver) admits(ctx context.Context, pod *corev1.Pod) error {
	return d.calls.Do(ctx, "create pod", func(ctx context.Context) error {
		_, err := d.api.pods.Try(ctx, pod)
		if apierrors.IsAlreadyExists(err) { // the server checks this after admission
			return nil
		}
		return err
	})
}

// Stop kills the processes of a sandbox. The pod is kept, because it contains all information about the sandbox.
func (d *driver) Stop(ctx context.Context, id string) error {
	d.first.drop(id)
	pod, info, err := d.own(ctx, id)
	if err != nil || info.State == backend.StateStopped {
		return err
	}
	err = d.calls.Do(ctx, "stop pod", func(ctx context.Context) error {
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"activeDeadlineSeconds":1}}`, pod.UID)
		_, err := d.api.pods.Patch(ctx, pod.Name, patch)
		return err
	})
	if err != nil {
		return err
	}
	begin := time.Now()
	return d.calls.Retry(ctx, func() (bool, error) {
		_, info, err := d.own(ctx, id)
		stopped := err == nil && info.State == backend.StateStopped
		if err == nil && !stopped && time.Since(begin) >= goesWithin {
			err = fmt.Errorf("kubernetes: %s was stopped but still runs; its node may be unreachable: %w",
				pod.Name, backend.ErrUnavailable)
		}
		return stopped || err != nil, err
	})
}

// Remove stops a sandbox and deletes it.
func (d *driver) Remove(ctx context.Context, id string, opts backend.RemoveOptions) error {
	d.first.drop(id)
	name, nonce, ok := splitID(id)
	if !ok {
		return nil
	}
	if err := d.removePod(ctx, name, false, hasNonce(nonce)); err != nil {
		return err
	}
	d.env.Delete(id)
	if !opts.Volumes {
		return nil
	}
	if replaced, err := d.replaced(ctx, name, nonce); replaced || err != nil {
		return err
	}
	claim, _, err := d.getClaim(ctx, name)
	if err != nil {
		return kit.Ignore(err, backend.ErrNotFound, backend.ErrExists)
	}
	return d.removeClaim(ctx, claim)
}

// replaced reports whether the session has a newer sandbox, which uses the session's claim.
func (d *driver) replaced(ctx context.Context, name, nonce string) (bool, error) {
	pod, err := d.getPod(ctx, name)
	return err == nil && pod.Labels[labelNonce] != nonce, kit.Ignore(err, backend.ErrNotFound)
}

// hasNonce returns a function to select the pod of a sandbox among the pods with the sandbox's name.
func hasNonce(nonce string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool { return pod.Labels[labelNonce] == nonce }
}

// removePod deletes the named pod if meant returns true, and waits until it is deleted. unused means a pod without an
// earlier command. removePod does not wait for an unused pod whose image is being pulled, because kubelets finish the
// pull for a deleted pod. If the kubelet then starts the container in order to stop it, the container only runs the
// guest agent.
func (d *driver) removePod(ctx context.Context, name string, unused bool, meant func(*corev1.Pod) bool) error {
	begin := time.Now()
	return d.calls.Retry(ctx, func() (bool, error) {
		pod, err := d.getPod(ctx, name)
		if errors.Is(err, backend.ErrNotFound) || err == nil && !meant(pod) {
			return true, nil
		}
		force := unused && time.Since(begin) > stuckFor && err == nil && imageOf(pod) == ""
		if err == nil && !force {
			err = stuck(begin, &pod.ObjectMeta)
		}
		if err == nil && (pod.DeletionTimestamp == nil || force) {
			grace := int64(1)
			if force {
				grace = 0
			}
			only := &metav1.Preconditions{UID: &pod.UID}
			options := metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: only}
			err = d.calls.Do(ctx, "delete pod", func(ctx context.Context) error {
				err := d.api.pods.Delete(ctx, name, options)
				if apierrors.IsConflict(err) {
					return nil // another pod with this name: check again
				}
				return err
			})
		}
		if errors.Is(err, backend.ErrNotFound) {
			return true, nil
		}
		return err != nil, err
	})
}

// A deleted object disappears and a stopped pod ends within goesWithin, unless the node is unreachable. A call waits at
// least stuckFor, because the clock of this host may be wrong.
const goesWithin, stuckFor = 45 * time.Second, 5 * time.Second

// stuck returns an error for an object still existing goesWithin after the deletion.
func stuck(begin time.Time, m *metav1.ObjectMeta) error {
	if m.DeletionTimestamp == nil || time.Since(begin) < stuckFor || time.Since(m.DeletionTimestamp.Time) < goesWithin {
		return nil
	}
	return fmt.Errorf("kubernetes: %s was deleted but still exists; its node may be unreachable, "+
		"or it has a finalizer: %w", m.Name, backend.ErrUnavailable)
}

// getClaim returns a session's claim and config. If the claim does not belong to Workcell, getClaim returns ErrExists.
// Without a storage class, a claim may still exist from an earlier configuration. In this case, getClaim treats a
// missing permission to read claims as ErrNotFound.
func (d *driver) getClaim(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, config, error) {
	c, err := kit.Call(ctx, d.calls, "get workspace", kit.With(d.api.volumes.Get, name))
	if errors.Is(err, backend.ErrPermission) && d.opts.StorageClass == "" {
		err = fmt.Errorf("kubernetes: claim %s: %w", name, backend.ErrNotFound)
	}
	if err != nil {
		return nil, config{}, err
	}
	of, ok := configOf(&c.ObjectMeta, backend.RoleWorkspace)
	if !ok {
		return nil, config{}, fmt.Errorf("kubernetes: claim %s is not a workspace: %w", name, backend.ErrExists)
	}
	return c, of, nil
}

// deleteClaim requests the deletion of a claim, but not of a newer claim with the same name.
func (d *driver) deleteClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	only := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}}
	err := d.calls.Do(ctx, "delete workspace", func(ctx context.Context) error {
		return d.api.volumes.Delete(ctx, claim.Name, only)
	})
	return kit.Ignore(err, backend.ErrNotFound, backend.ErrExists)
}

// removeClaim deletes a claim and waits until it is deleted.
func (d *driver) removeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if err := d.deleteClaim(ctx, claim); err != nil {
		return err
	}
	return d.awaitClaim(ctx, claim)
}

// awaitClaim waits until a claim is deleted.
func (d *driver) awaitClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	begin := time.Now()
	return d.calls.Retry(ctx, func() (bool, error) {
		now, _, err := d.getClaim(ctx, claim.Name)
		if err != nil || now.UID != claim.UID {
			return true, kit.Ignore(err, backend.ErrNotFound, backend.ErrExists)
		}
		err = stuck(begin, &now.ObjectMeta)
		return err != nil, err
	})
}

// HasWorkspace reports whether a session has a workspace.
func (d *driver) HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error) {
	if d.opts.StorageClass == "" {
		return false, nil
	}
	claim, of, err := d.getClaim(ctx, objectName(sessionID))
	own := err == nil && claim.DeletionTimestamp == nil && of.belongs(instance, sessionID)
	return own, kit.Ignore(err, backend.ErrNotFound, backend.ErrExists)
}

// RemoveWorkspace deletes the workspace of a session without a pod.
func (d *driver) RemoveWorkspace(ctx context.Context, instance, sessionID string) error {
	name := objectName(sessionID)
	claim, of, err := d.getClaim(ctx, name)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil
	case err != nil:
		return err
	case !of.belongs(instance, sessionID):
		return fmt.Errorf("kubernetes: claim %s belongs to another sandbox: %w", name, backend.ErrExists)
	}
	err = d.calls.Retry(ctx, func() (bool, error) {
		pod, err := d.getPod(ctx, name)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			return true, nil
		case err == nil && pod.DeletionTimestamp == nil:
			return true, fmt.Errorf("kubernetes: the workspace of sandbox %s is in use: %w", sessionID, backend.ErrExists)
		}
		return err != nil, err // waits for the end of a pod's deletion
	})
	if err != nil {
		return err
	}
	return d.removeClaim(ctx, claim)
}
