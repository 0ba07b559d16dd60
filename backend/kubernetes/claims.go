package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	agentapi "sigs.k8s.io/agent-sandbox/api/v1beta1"
	claimapi "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// With Options.Claims a sandbox is a SandboxClaim of agent-sandbox where a SandboxWarmPool has a pod of its shape. The claim has
// the name that the sandbox's own pod would have, so that a session has only one of them, and its labels and annotations; the
// pod keeps the name that it got in the pool. agent-sandbox lets no claim set our labels on a pod, because their names have no
// domain, so the driver sets them, as the last step: until then the claim alone is the sandbox, which List finds as well.

const (
	// claimPatience is how long agent-sandbox may take to give a claim a sandbox. What it makes anew it names in a fraction of it.
	claimPatience = 5 * time.Second
	// claimMade is how old a claim must be before a pod that is not the sandbox's counts as gone, not as being given to it.
	claimMade = 2 * time.Minute
	// policyBinds is how old a NetworkPolicy must be for a pod that runs already: network plugins take a moment to act on one.
	policyBinds = 5 * time.Second
)

// warm is what a driver has that claims sandboxes.
type warm struct {
	pods sync.Map // id of a claimed sandbox -> name of its pod
	told sync.Map // reasons that the log has
}

// errVolume: what has no session yet has no volume of it.
var errVolume = fmt.Errorf("kubernetes: sandboxes with a volume of their session's cannot be warm: Options.Claims and Options.StorageClass exclude each other: %w", backend.ErrInvalid)

// unfit is why a sandbox is none of the pool's: it gets a pod of its own.
type unfit struct{ why string }

func (u *unfit) Error() string { return "kubernetes: no warm sandbox fits: " + u.why }

func isUnfit(err error) bool { return errors.As(err, new(*unfit)) }

// newWarm makes sure that there is a pool: a mistake in its name would only cost time, for ever.
func (d *driver) newWarm(ctx context.Context) error {
	if d.opts.Claims == "" {
		return nil
	}
	if d.opts.StorageClass != "" {
		return errVolume
	}
	d.warm = new(warm)
	_, _, err := d.pool(ctx)
	if isUnfit(err) {
		return fmt.Errorf("%v: %w", err, backend.ErrInvalid)
	}
	return err
}

func (d *driver) getSandboxClaim(ctx context.Context, name string) (*claimapi.SandboxClaim, error) {
	return kit.Call(ctx, d.calls, "get sandboxclaim", call(d.api.claims.Get, name))
}

// pool returns the pool and its template; an unfit error where one of them is not there.
func (d *driver) pool(ctx context.Context) (*claimapi.SandboxWarmPool, *claimapi.SandboxTemplate, error) {
	uninstalled := false
	pool, err := kit.Call(ctx, d.calls, "get sandboxwarmpool", func(ctx context.Context) (*claimapi.SandboxWarmPool, error) {
		pool, err := d.api.pools.Get(ctx, d.opts.Claims, metav1.GetOptions{})
		uninstalled = apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
		return pool, err
	})
	switch {
	case errors.Is(err, backend.ErrNotFound) && uninstalled:
		return nil, nil, &unfit{"agent-sandbox is not installed in the cluster, of which claims need v1beta1 with its extensions"}
	case errors.Is(err, backend.ErrNotFound):
		return nil, nil, &unfit{fmt.Sprintf("there is no SandboxWarmPool %s in namespace %s; `workcell guest warmpool` prints one", d.opts.Claims, d.opts.Namespace)}
	case err != nil:
		return nil, nil, err
	}
	template, err := kit.Call(ctx, d.calls, "get sandboxtemplate", call(d.api.templates.Get, pool.Spec.TemplateRef.Name))
	if errors.Is(err, backend.ErrNotFound) {
		return nil, nil, &unfit{fmt.Sprintf("the SandboxTemplate %s of SandboxWarmPool %s is not there", pool.Spec.TemplateRef.Name, pool.Name)}
	}
	return pool, template, err
}

// fromPool makes a sandbox of one that is warm; an unfit error where that cannot be, and then nothing is left of it.
func (d *driver) fromPool(ctx context.Context, p *plan) (backend.Info, error) {
	info, err := d.claimWarm(ctx, p)
	var u *unfit
	if !errors.As(err, &u) {
		return info, err
	}
	if _, told := d.warm.told.LoadOrStore(u.why, true); !told {
		d.log.WarnContext(ctx, "kubernetes: sandboxes are not claimed but made", "pool", d.opts.Claims, "reason", u.why)
	}
	if wrong := d.removeSandboxClaim(ctx, p.name, p.nonce); wrong != nil {
		return backend.Info{}, wrong
	}
	return backend.Info{}, err
}

// fits returns an unfit error where the pool has nothing for a plan.
func (d *driver) fits(ctx context.Context, p *plan) error {
	want, err := d.blueprint(p)
	if err != nil {
		return err
	}
	pool, template, err := d.pool(ctx)
	if err != nil {
		return err
	}
	switch why := differs(want, &template.Spec.SandboxBlueprint); {
	case p.Spec.Pull == backend.PullAlways:
		return &unfit{"an image that is pulled for every sandbox"}
	case template.Spec.NetworkPolicyManagement != claimapi.NetworkPolicyManagementUnmanaged:
		return &unfit{"the template's networkPolicyManagement is not Unmanaged"}
	case why != "":
		return &unfit{"the template has another " + why}
	case pool.Status.ReadyReplicas == 0: // what would be made for a claim takes as long as a pod of its own
		return &unfit{"the pool is empty"}
	}
	return nil
}

func (d *driver) claimWarm(ctx context.Context, p *plan) (backend.Info, error) {
	if p.unfit != nil {
		return backend.Info{}, p.unfit
	}
	want, err := d.blueprint(p)
	if err != nil {
		return backend.Info{}, err
	}
	claim, err := d.createSandboxClaim(ctx, p)
	if err != nil {
		return backend.Info{}, err
	}
	if claim.CreationTimestamp.Sub(p.closed) < policyBinds {
		return backend.Info{}, &unfit{"its NetworkPolicy is new"}
	}
	var pod *corev1.Pod
	g, both := errgroup.WithContext(ctx)
	g.Go(func() error { return d.loneClaim(both, p) })
	g.Go(func() (err error) {
		pod, err = d.assigned(both, claim, "", func(s *agentapi.Sandbox) string { return differs(want, &s.Spec.SandboxBlueprint) })
		return err
	})
	if err := g.Wait(); err != nil {
		return backend.Info{}, err
	}
	// What is ready answers at once, unless its node is away.
	answer, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	info, err := d.inhabit(answer, claim, pod)
	if err != nil && answer.Err() != nil && ctx.Err() == nil {
		err = &unfit{fmt.Sprintf("one of the pool does not answer within %v", attachTimeout)}
	}
	return info, err
}

// createSandboxClaim asks for a sandbox of the pool.
func (d *driver) createSandboxClaim(ctx context.Context, p *plan) (*claimapi.SandboxClaim, error) {
	meta, err := p.metaOf(backend.RoleSandbox)
	if err != nil {
		return nil, err
	}
	claim := &claimapi.SandboxClaim{ObjectMeta: meta, Spec: claimapi.SandboxClaimSpec{WarmPoolRef: claimapi.SandboxWarmPoolRef{Name: d.opts.Claims}}}
	made, err := kit.Finish(ctx, d.calls, "create sandboxclaim", call(d.api.claims.Create, claim))
	if errors.Is(err, backend.ErrExists) {
		return nil, fmt.Errorf("kubernetes: session %s has a claim: %w", p.Spec.ID, backend.ErrExists)
	}
	return made, err
}

// loneClaim fails where the session of a claim has a pod of its own too. Whoever makes one of them looks for the other one
// afterwards, and who finds a pod gives up, so that of two who make one of each one has a sandbox.
func (d *driver) loneClaim(ctx context.Context, p *plan) error {
	pod, err := d.getPod(ctx, p.name)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return nil
	case err == nil && pod.Labels[labelNonce] != "": // else agent-sandbox made it for this claim
		return fmt.Errorf("kubernetes: session %s has a pod: %w", p.Spec.ID, backend.ErrExists)
	}
	return err
}

// lonePod is loneClaim for a pod. A claim that has no pod yet may be about to give up.
func (d *driver) lonePod(ctx context.Context, p *plan) error {
	if d.warm == nil {
		return nil
	}
	begin := time.Now()
	return d.calls.Retry(ctx, func() (bool, error) {
		claim, err := d.getSandboxClaim(ctx, p.name)
		if errors.Is(err, backend.ErrNotFound) {
			return true, nil
		}
		if err != nil {
			return true, err
		}
		pod, _, err := d.claimedPod(ctx, p.name, claim.Labels[labelNonce])
		if err == nil && pod.UID != "" || time.Since(begin) > claimPatience {
			return true, fmt.Errorf("kubernetes: session %s has a claim: %w", p.Spec.ID, backend.ErrExists)
		}
		return false, nil
	})
}

// assigned returns the pod that agent-sandbox gives a claim, other than the one of a UID. What it gave may be older than its
// template, so that wrong looks at that itself.
func (d *driver) assigned(ctx context.Context, claim *claimapi.SandboxClaim, other types.UID, wrong func(*agentapi.Sandbox) string) (pod *corev1.Pod, err error) {
	begin := time.Now()
	wait, cancel := context.WithTimeout(ctx, d.opts.PullTimeout)
	defer cancel()
	err = d.calls.Retry(wait, func() (bool, error) {
		sandbox, err := d.sandboxOf(wait, claim)
		if err != nil {
			return true, err
		}
		if sandbox == nil {
			if time.Since(begin) < claimPatience {
				return false, nil
			}
			return true, &unfit{fmt.Sprintf("agent-sandbox gave nothing within %v", claimPatience)}
		}
		if why := wrong(sandbox); why != "" {
			return true, &unfit{"what is in the pool has another " + why}
		}
		pod, err = d.getPod(wait, sandbox.Name)
		switch {
		case errors.Is(err, backend.ErrNotFound), err == nil && (pod.UID == other || pod.DeletionTimestamp != nil):
			return false, nil
		case err == nil && !metav1.IsControlledBy(pod, sandbox):
			return true, &unfit{"a pod of the pool is not its sandbox's"}
		case err == nil && ended(pod):
			return true, &unfit{"a pod of the pool has ended"}
		}
		return true, err
	})
	if err != nil && wait.Err() != nil {
		err = d.whyNot(ctx, wait, err)
	}
	return pod, err
}

// sandboxOf returns the sandbox that a claim got, nil while it has none.
func (d *driver) sandboxOf(ctx context.Context, claim *claimapi.SandboxClaim) (*agentapi.Sandbox, error) {
	now, err := d.getSandboxClaim(ctx, claim.Name)
	switch {
	case err == nil && (now.UID != claim.UID || now.DeletionTimestamp != nil), errors.Is(err, backend.ErrNotFound):
		return nil, fmt.Errorf("kubernetes: the sandbox was removed while it was being made: %w", backend.ErrLost)
	case err != nil || now.Status.SandboxStatus.Name == "":
		return nil, err
	}
	sandbox, err := kit.Call(ctx, d.calls, "get sandbox", call(d.api.sandboxes.Get, now.Status.SandboxStatus.Name))
	if errors.Is(err, backend.ErrNotFound) || err == nil && !metav1.IsControlledBy(sandbox, claim) {
		return nil, nil // the status is older
	}
	return sandbox, err
}

// inhabit makes a claim's pod the sandbox, in an order in which nothing can be left behind: a guest that is claimed ends when it
// is alone for longer than it may from then on, and a pod has the labels of a sandbox only when its guest is claimed.
func (d *driver) inhabit(ctx context.Context, claim *claimapi.SandboxClaim, pod *corev1.Pod) (backend.Info, error) {
	c, _ := configOf(&claim.ObjectMeta, backend.RoleSandbox)
	id := claim.Name + "." + claim.Labels[labelNonce]
	info, err := d.await(ctx, pod, c.Image, id, id, c.Orphan.String())
	if err != nil {
		return backend.Info{}, err
	}
	labels := objectPatch(pod.UID, claim.Labels, claim.Annotations)
	pod, err = kit.Call(ctx, d.calls, "patch pod", func(ctx context.Context) (*corev1.Pod, error) {
		return d.api.pods.Patch(ctx, pod.Name, types.MergePatchType, labels, metav1.PatchOptions{})
	})
	if err != nil {
		return backend.Info{}, err
	}
	d.warm.pods.Store(id, pod.Name)
	env := info.ImageEnv
	info, _ = describe(pod)
	info.ImageEnv = env
	return info, nil
}

// startClaimed starts a claimed sandbox that has ended: agent-sandbox makes another pod in the place of one that is deleted.
func (d *driver) startClaimed(ctx context.Context, info backend.Info, old *corev1.Pod) error {
	id := info.ID
	name, nonce, _ := splitID(id)
	claim, err := d.getSandboxClaim(ctx, name)
	switch {
	case err == nil && claim.Labels[labelNonce] != nonce:
		return notFound(id)
	case err == nil && claim.Labels[labelNetwork] != d.networkLabel(info.Network): // its pool's pods have that label, whatever the claim says
		return fmt.Errorf("kubernetes: the sandbox was claimed with other Options.AllowNets, and is not started with these: %w", backend.ErrUnsupported)
	case err == nil && old.UID != "":
		err = d.removeThis(ctx, old)
	}
	if err != nil {
		return err
	}
	pod, err := d.assigned(ctx, claim, old.UID, func(*agentapi.Sandbox) string { return "" })
	if err == nil {
		_, err = d.inhabit(ctx, claim, pod)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, info, wrong := d.own(ctx, id); wrong == nil && info.State == backend.StateRunning { // another process was faster
		return nil
	}
	if isUnfit(err) {
		err = fmt.Errorf("%v: %w", err, backend.ErrUnavailable)
	}
	return err
}

// removeSandboxClaim deletes a claim, and returns when it is gone with its sandbox and pod. That of another sandbox of the name
// stays.
func (d *driver) removeSandboxClaim(ctx context.Context, name, nonce string) error {
	if d.warm == nil {
		return nil
	}
	sandbox, begin := "", time.Now()
	foreground := metav1.DeletePropagationForeground
	err := d.calls.Retry(ctx, func() (bool, error) {
		claim, err := d.getSandboxClaim(ctx, name)
		if errors.Is(err, backend.ErrNotFound) || err == nil && claim.Labels[labelNonce] != nonce {
			return true, nil
		}
		if err == nil {
			sandbox = cmp.Or(claim.Status.SandboxStatus.Name, sandbox)
			err = stuck(begin, &claim.ObjectMeta)
		}
		if err == nil && claim.DeletionTimestamp == nil {
			err = d.calls.Do(ctx, "delete sandboxclaim", func(ctx context.Context) error {
				err := d.api.claims.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &claim.UID}})
				if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
					return nil // looked at again
				}
				return err
			})
		}
		return err != nil, err
	})
	d.warm.pods.Delete(name + "." + nonce)
	if err != nil || sandbox == "" {
		return err
	}
	return d.removePod(ctx, sandbox, nonce) // the garbage collector may not have known yet that it was the claim's
}

// claimedPod returns the pod of a claimed sandbox and what it says, or what its claim says where no pod is the sandbox's.
func (d *driver) claimedPod(ctx context.Context, name, nonce string) (*corev1.Pod, backend.Info, error) {
	id := name + "." + nonce
	claim, err := d.getSandboxClaim(ctx, name)
	if err == nil && (claim.Labels[labelNonce] != nonce || claim.DeletionTimestamp != nil) || errors.Is(err, backend.ErrNotFound) {
		d.warm.pods.Delete(id)
		err = notFound(id)
	}
	if err != nil {
		return nil, backend.Info{}, err
	}
	info, ok := describeClaim(claim)
	if !ok {
		return nil, backend.Info{}, notFound(id)
	}
	if _, was := d.warm.pods.Load(id); was {
		info.State = backend.StateStopped
	}
	sandbox := cmp.Or(claim.Status.SandboxStatus.Name, name)
	pod, err := d.getPod(ctx, sandbox)
	if err == nil && pod.Labels[labelNonce] == nonce && pod.DeletionTimestamp == nil {
		d.warm.pods.Store(id, pod.Name)
		info, _ = describe(pod)
		return pod, info, nil
	}
	if err == nil && claimed(&pod.ObjectMeta) && ended(pod) { // before it had the labels of a sandbox
		info.State = backend.StateStopped
		return pod, info, nil
	}
	if err == nil || errors.Is(err, backend.ErrNotFound) {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: sandbox}}, info, nil
	}
	return nil, backend.Info{}, err
}

// claimedOnly lists the claims that match filter and whose sandboxes are not among those of pods.
func (d *driver) claimedOnly(ctx context.Context, filter backend.Filter, found []backend.Info) ([]backend.Info, error) {
	list, err := kit.Call(ctx, d.calls, "list sandboxclaims", listing(d.api.claims.List, selector(filter)))
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, i := range found {
		seen[i.ID] = true
	}
	var infos []backend.Info
	for i := range list.Items {
		claim := &list.Items[i]
		if info, ok := describeClaim(claim); ok && claim.DeletionTimestamp == nil && matches(&info, filter) && !seen[info.ID] {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// describeClaim returns what a claim says of a sandbox that has no pod: it is being made, or its pod is gone.
func describeClaim(claim *claimapi.SandboxClaim) (backend.Info, bool) {
	info, ok := describe(&corev1.Pod{ObjectMeta: claim.ObjectMeta})
	if time.Since(claim.CreationTimestamp.Time) > claimMade {
		info.State = backend.StateStopped
	}
	return info, ok
}
