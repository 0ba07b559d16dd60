package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/e2e/clustertest"
)

// simulated marks nodes that have no machine, and keeps everybody else's pods away from them.
const simulated = "workcell.test/simulated"

// kubeletLease is how often a kubelet renews its lease, by default.
const kubeletLease = 10 * time.Second

var (
	events = clustertest.Kind[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events")
	leases = clustertest.Kind[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion, "leases")
)

// nodes are kubelets without machines: each says that it is there, takes the pods that the scheduler gives it, and writes of
// them what a kubelet writes. No container runs.
type nodes struct {
	api   *rest.Config
	names []string
	end   context.CancelFunc
	work  *errgroup.Group
}

// startNodes registers n nodes and works for them until close.
func startNodes(ctx context.Context, api *rest.Config, n int) (_ *nodes, err error) {
	running, end := context.WithCancel(ctx)
	ns := &nodes{api: api, end: end}
	ns.work, running = errgroup.WithContext(running)
	for i := range n {
		name := fmt.Sprintf("simulated-%03d", i)
		if err := ns.register(ctx, name); err != nil {
			return nil, errors.Join(err, ns.close(ctx))
		}
		ns.names = append(ns.names, name)
		ns.work.Go(func() error { return untilDone(running, func() error { return kubelet(running, api, name) }) })
		ns.work.Go(func() error { return untilDone(running, func() error { return renew(running, api, name) }) })
	}
	return ns, nil
}

// untilDone takes what fn returned because ctx is over for its regular end.
func untilDone(ctx context.Context, fn func() error) error {
	if err := fn(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// register makes a node of 64 processors and 256 GiB that is ready.
func (ns *nodes) register(ctx context.Context, name string) error {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("4Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	now := metav1.Now()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{simulated: "true"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: simulated, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}
	_, err := clustertest.Nodes(ns.api, "").Create(ctx, node, metav1.CreateOptions{})
	return err
}

// close ends the kubelets and removes their nodes.
func (ns *nodes) close(ctx context.Context) error {
	ns.end()
	errs := []error{ns.work.Wait()}
	for _, name := range ns.names {
		errs = append(errs, clustertest.Nodes(ns.api, "").Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// renew keeps the lease of a node.
func renew(ctx context.Context, api *rest.Config, node string) error {
	own, seconds := leases(api, corev1.NamespaceNodeLease), int32(40)
	now := metav1.NowMicro()
	lease, err := own.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		lease, err = own.Get(ctx, node, metav1.GetOptions{})
	}
	for err == nil {
		select {
		case <-time.After(kubeletLease):
		case <-ctx.Done():
			return own.Delete(context.WithoutCancel(ctx), node, metav1.DeleteOptions{})
		}
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		lease, err = own.Update(ctx, lease, metav1.UpdateOptions{})
	}
	return err
}

// kubelet works on the pods of a node.
func kubelet(ctx context.Context, api *rest.Config, node string) error {
	for ctx.Err() == nil { // an API server ends a watch after some time
		pods, err := clustertest.Pods(api, "").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		for event := range pods.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || event.Type == watch.Deleted {
				continue
			}
			if err := attend(ctx, api, pod); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: pod %s: %w", node, pod.Name, err)
			}
		}
		pods.Stop()
	}
	return nil
}

// attend writes what a kubelet of Kubernetes 1.34 was counted to write of a pod of ours: two states and three events when it
// starts, two states, an event and the deletion when it ends.
func attend(ctx context.Context, api *rest.Config, pod *corev1.Pod) error {
	switch {
	case pod.DeletionTimestamp != nil && pod.Status.Reason != "Ended":
		if err := tell(ctx, api, pod, "Killing"); err != nil {
			return err
		}
		if err := become(ctx, api, pod, corev1.PodRunning, "Ending"); err != nil {
			return err
		}
		if err := become(ctx, api, pod, corev1.PodFailed, "Ended"); err != nil {
			return err
		}
		now := int64(0)
		return clustertest.Pods(api, pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.DeletionTimestamp == nil && pod.Status.Reason == "":
		for _, reason := range []string{"Pulled", "Created", "Started"} {
			if err := tell(ctx, api, pod, reason); err != nil {
				return err
			}
		}
		if err := become(ctx, api, pod, corev1.PodPending, "Starting"); err != nil {
			return err
		}
		return become(ctx, api, pod, corev1.PodRunning, "Started")
	}
	return nil
}

// become patches the state of a pod, as large as a kubelet's patch.
func become(ctx context.Context, api *rest.Config, pod *corev1.Pod, phase corev1.PodPhase, reason string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":%q,"reason":%q,"hostIP":"127.0.0.1","startTime":%q,"conditions":[`+
		`{"type":"Initialized","status":"True","lastTransitionTime":%[4]q},{"type":"PodScheduled","status":"True","lastTransitionTime":%[4]q},`+
		`{"type":"ContainersReady","status":"%[5]t","lastTransitionTime":%[4]q},{"type":"Ready","status":"%[5]t","lastTransitionTime":%[4]q}]}}`,
		pod.UID, phase, reason, now, phase == corev1.PodRunning)
	_, err := clustertest.Pods(api, pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// tell writes an event of a pod. A namespace that is being removed takes none.
func tell(ctx context.Context, api *rest.Config, pod *corev1.Pod, reason string) error {
	now := metav1.Now()
	_, err := events(api, pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: pod.Namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Reason:         reason, Message: reason + " container main", Type: corev1.EventTypeNormal, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "kubelet", Host: pod.Spec.NodeName},
	}, metav1.CreateOptions{})
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}
