package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/e2e/clustertest"
)

// The load that docs/scale.md is about.
const (
	fleetNodes     = 200
	fleetSandboxes = 10_000
	fleetGroup     = 1000 // sandboxes of a namespace
	fleetRate      = 17   // opens, and closes, a second
	fleetSteady    = 60 * time.Second
	fleetBurst     = 200
)

// clusterState is where hack/cluster.sh keeps the process ids of the cluster's parts.
const clusterState = "/run/workcell/cluster"

// fleet is a control plane that has sandboxes on nodes without machines: their pods are ours, created, scheduled, watched and
// deleted for real; only what runs on a node is played.
type fleet struct {
	figures   figures
	api       *rest.Config
	template  *corev1.Pod
	namespace []string

	mu      sync.Mutex
	started map[string]chan struct{} // closed when the pod runs
	live    []*corev1.Pod
}

// measureControlPlane puts the control plane under the load of many sandboxes. -scale is the percentage of them.
func (c *contest) measureControlPlane(ctx context.Context) (err error) {
	baseline, ok := c.all[len(c.all)-2].(*clientGo)
	if !ok {
		return errors.New("the control plane's benchmark needs the cluster")
	}
	f := &fleet{figures: c.figures, api: baseline.config, started: map[string]chan struct{}{}}
	if f.template, err = oursIn(ctx, baseline.config, baseline.namespace); err != nil {
		return err
	}
	ns, err := startNodes(ctx, baseline.config, fleetNodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.close(ctx)) }()
	defer func() { err = errors.Join(err, f.close(ctx)) }()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	for i := range max(fleetSandboxes*c.opts.scale/100/fleetGroup, 1) {
		if err := f.addNamespace(watching, fmt.Sprintf("workcell-fleet-%02d", i)); err != nil {
			return err
		}
	}
	return f.measure(ctx, max(fleetSandboxes*c.opts.scale/100, fleetBurst))
}

// oursIn returns the pod of the only sandbox in a namespace, as it is to be created for a node without a machine.
func oursIn(ctx context.Context, api *rest.Config, namespace string) (*corev1.Pod, error) {
	list, err := clustertest.Pods(api, namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=workcell"})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("%d sandboxes are in %s, want the one that is copied", len(list.Items), namespace)
	}
	from := list.Items[0]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: from.Labels, Annotations: from.Annotations}, Spec: *from.Spec.DeepCopy()}
	pod.Spec.NodeName = ""
	pod.Spec.NodeSelector = map[string]string{simulated: "true"}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: simulated, Operator: corev1.TolerationOpExists}}
	return pod, nil
}

// addNamespace makes a namespace of the fleet, and watches it as its host does.
func (f *fleet) addNamespace(ctx context.Context, name string) error {
	if err := clustertest.Make(ctx, f.api, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return err
	}
	f.namespace = append(f.namespace, name)
	pods, err := clustertest.Pods(f.api, name).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	go func() {
		defer pods.Stop()
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
				f.runs(pod.Name)
			}
		}
	}()
	return nil
}

func (f *fleet) runs(pod string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if started, ok := f.started[pod]; ok {
		close(started)
		delete(f.started, pod)
	}
}

// open creates the pod of a sandbox, and returns how long the create call, and the way to its start, took.
func (f *fleet) open(ctx context.Context) (created, started time.Duration, err error) {
	pod := f.template.DeepCopy()
	pod.Name = fmt.Sprintf("fleet-%016x", rand.Uint64())
	pod.Namespace = f.namespace[rand.IntN(len(f.namespace))]
	runs, begin := make(chan struct{}), time.Now()
	f.mu.Lock()
	f.started[pod.Name] = runs
	f.mu.Unlock()
	if pod, err = clustertest.Pods(f.api, pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	created = time.Since(begin)
	f.mu.Lock()
	f.live = append(f.live, pod)
	f.mu.Unlock()
	select {
	case <-runs:
		return created, time.Since(begin), nil
	case <-time.After(5 * time.Minute):
		return 0, 0, fmt.Errorf("the pod %s/%s was not started in five minutes", pod.Namespace, pod.Name)
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// closeOne deletes the pod that was opened first. There is none when opens have come to a halt.
func (f *fleet) closeOne(ctx context.Context) error {
	f.mu.Lock()
	if len(f.live) == 0 {
		f.mu.Unlock()
		return errors.New("the control plane opens fewer than are closed")
	}
	pod := f.live[0]
	f.live = f.live[1:]
	f.mu.Unlock()
	return clustertest.Pods(f.api, pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
}

// measure fills the fleet, runs it steadily, and opens many at once.
func (f *fleet) measure(ctx context.Context, n int) error {
	began := time.Now()
	if _, _, err := f.openMany(ctx, n, 64); err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	f.figures["fleet_sandboxes"], f.figures["fleet_fill_per_s"] = float64(n), float64(n)/time.Since(began).Seconds()
	if err := f.steady(ctx); err != nil {
		return fmt.Errorf("steady: %w", err)
	}
	created, started, err := f.openMany(ctx, fleetBurst, fleetBurst)
	if err != nil {
		return fmt.Errorf("at once: %w", err)
	}
	f.figures["fleet_burst_create_p99_ms"], f.figures["fleet_burst_started_p99_ms"] = millis(created.quantile(.99)), millis(started.quantile(.99))
	listed, err := series(5, func() error {
		_, err := clustertest.Pods(f.api, f.namespace[0]).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err
	})
	f.figures["fleet_list_namespace_ms"] = millis(listed.quantile(.5))
	return err
}

// openMany opens n sandboxes, a number of them at a time.
func (f *fleet) openMany(ctx context.Context, n, atOnce int) (created, started sample, err error) {
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for range n {
		group.Go(func() error {
			c, s, err := f.open(ctx)
			mu.Lock()
			defer mu.Unlock()
			created, started = append(created, c), append(started, s)
			return err
		})
	}
	err = group.Wait()
	return created, started, err
}

// steady opens and closes at the rate of the fleet, and looks at what the parts of the control plane spend on it.
func (f *fleet) steady(ctx context.Context) error {
	before, err := clusterUse()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var created, started sample
	group, working := errgroup.WithContext(ctx)
	tick := time.NewTicker(time.Second / fleetRate)
	defer tick.Stop()
	began := time.Now()
	for time.Since(began) < fleetSteady && working.Err() == nil {
		<-tick.C
		group.Go(func() error {
			c, s, err := f.open(working)
			mu.Lock()
			created, started = append(created, c), append(started, s)
			mu.Unlock()
			return err
		})
		group.Go(func() error { return f.closeOne(working) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := clusterUse()
	if err != nil {
		return err
	}
	for part, now := range after {
		f.figures["fleet_cpu."+part] = (now.cpu - before[part].cpu).Seconds() / took.Seconds()
		f.figures["fleet_rss_mib."+part] = now.rss
	}
	f.figures["fleet_opens_per_s"] = float64(len(created)) / took.Seconds()
	f.figures["fleet_create_p50_ms"], f.figures["fleet_create_p99_ms"] = millis(created.quantile(.5)), millis(created.quantile(.99))
	f.figures["fleet_started_p50_ms"], f.figures["fleet_started_p99_ms"] = millis(started.quantile(.5)), millis(started.quantile(.99))
	return nil
}

// close removes the pods, without waiting for nodes, and the namespaces.
func (f *fleet) close(ctx context.Context) error {
	ctx, now := context.WithoutCancel(ctx), int64(0)
	var errs []error
	for _, name := range f.namespace {
		errs = append(errs,
			clustertest.Pods(f.api, name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}),
			clustertest.Namespaces(f.api, "").Delete(ctx, name, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// use is what a process has taken.
type use struct {
	cpu time.Duration
	rss float64 // MiB
}

// clusterUse returns what the parts of the control plane have taken since their starts.
func clusterUse() (map[string]use, error) {
	all := map[string]use{}
	for _, part := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		text, err := os.ReadFile(filepath.Join(clusterState, part+".pid"))
		if err != nil {
			return nil, err
		}
		pid := strings.TrimSpace(string(text))
		cpu, err := cpuOf(pid)
		if err != nil {
			return nil, err
		}
		rss, err := rssMiB(pid)
		if err != nil {
			return nil, err
		}
		all[part] = use{cpu, rss}
	}
	return all, nil
}
