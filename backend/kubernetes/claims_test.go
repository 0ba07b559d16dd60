package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	claimapi "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/e2e/clustertest"
)

// makePool applies what the driver prints of a pool for sandboxes of a Spec, waits until it is full, and returns its name. In a process that a test
// started it is there.
func makePool(t testing.TB, ns, name string, spec backend.Spec, replicas int32, adjust ...func(*kubernetes.Options)) string {
	t.Helper()
	b := newBackend(t, func(o *kubernetes.Options) {
		o.Namespace, o.StorageClass = ns, ""
		for _, f := range adjust {
			f(o)
		}
	})
	text, err := b.WarmPool(t.Context(), name, spec, replicas)
	if err != nil {
		t.Fatal(err)
	}
	templateText, poolText, _ := strings.Cut(string(text), "---\n")
	var template claimapi.SandboxTemplate
	var pool claimapi.SandboxWarmPool
	if err := errors.Join(yaml.UnmarshalStrict([]byte(templateText), &template), yaml.UnmarshalStrict([]byte(poolText), &pool)); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	api := admin(t)
	_, err = clustertest.SandboxTemplates(api, ns).Create(t.Context(), &template, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return name
	}
	if err == nil {
		_, err = clustertest.SandboxWarmPools(api, ns).Create(t.Context(), &pool, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removePool(t, ns, name) })
	full(t, ns, name)
	settle(t)
	return name
}

// settle waits until the policy of closed sandboxes is so old that it counts for pods that are there.
func settle(t testing.TB) {
	t.Helper()
	closing.Do(func() {
		backendtest.Create(t, newBackend(t, nil), newSpec())
		time.Sleep(7 * time.Second)
	})
}

var closing sync.Once

func removePool(t testing.TB, ns, name string) {
	t.Helper()
	ctx, foreground := context.Background(), metav1.DeletePropagationForeground
	err := clustertest.SandboxWarmPools(admin(t), ns).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	eventually(t, "the end of the pool", func() bool {
		_, err := clustertest.SandboxWarmPools(admin(t), ns).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if err := clustertest.SandboxTemplates(admin(t), ns).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// full waits until all of a pool is ready.
func full(t testing.TB, ns, name string) {
	t.Helper()
	eventually(t, "a full pool", func() bool {
		p, err := clustertest.SandboxWarmPools(admin(t), ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && p.Status.ReadyReplicas == *p.Spec.Replicas
	})
}

// warmPods returns the pods of a pool that are nobody's, by UID.
func warmPods(t testing.TB, ns, name string) map[types.UID]corev1.Pod {
	t.Helper()
	list, err := clustertest.Pods(admin(t), ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := map[types.UID]corev1.Pod{}
	for _, p := range list.Items {
		if strings.HasPrefix(p.Name, name+"-") && p.Labels[backend.LabelID] == "" && p.DeletionTimestamp == nil {
			pods[p.UID] = p
		}
	}
	return pods
}

// podOf returns the pod of a sandbox.
func podOf(t testing.TB, ns string, info backend.Info) corev1.Pod {
	t.Helper()
	list, err := clustertest.Pods(admin(t), ns).List(t.Context(), metav1.ListOptions{LabelSelector: backend.LabelID + "=" + info.SessionID})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d pods, %v", len(list.Items), err)
	}
	return list.Items[0]
}

// claims returns how many claims a session has.
func claims(t testing.TB, ns, session string) int {
	t.Helper()
	list, err := clustertest.SandboxClaims(admin(t), ns).List(t.Context(), metav1.ListOptions{LabelSelector: backend.LabelID + "=" + session})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// claiming returns a driver that claims of a pool.
func claiming(t testing.TB, ns, pool string, adjust func(*kubernetes.Options)) *kubernetes.Backend {
	t.Helper()
	return newBackend(t, func(o *kubernetes.Options) {
		o.Namespace, o.StorageClass, o.Claims = ns, "", pool
		if adjust != nil {
			adjust(o)
		}
	})
}

// TestClaimsConformance: what a claimed sandbox owes is what every one does. Some of the suite's sandboxes are made, because nothing that is
// ready is like them.
func TestClaimsConformance(t *testing.T) {
	pool := makePool(t, namespace(), "conformance", newSpec(), 4)
	h := harness(t)
	h.New = func(t testing.TB) backend.SandboxBackend { return claiming(t, namespace(), pool, nil) }
	h.NewAllowing = func(t testing.TB, nets []netip.Prefix) backend.SandboxBackend {
		return claiming(t, namespace(), pool, func(o *kubernetes.Options) { o.AllowNets = nets })
	}
	vanish, describe := h.Vanish, h.Describe
	h.Vanish = func(ctx context.Context, id string) error {
		name, _, _ := strings.Cut(id, ".")
		foreground := metav1.DeletePropagationForeground
		err := clustertest.SandboxClaims(admin(t), namespace()).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground})
		if apierrors.IsNotFound(err) {
			return vanish(ctx, id)
		}
		return err
	}
	h.Describe = func(ctx context.Context, id string) (string, error) {
		_, nonce, _ := strings.Cut(id, ".")
		list, err := clustertest.Pods(admin(t), namespace()).List(ctx, metav1.ListOptions{LabelSelector: backend.LabelPrefix + "nonce=" + nonce})
		if err != nil || nonce == "" || len(list.Items) != 1 {
			return describe(ctx, id)
		}
		pod := list.Items[0]
		text, err := json.Marshal([]any{pod.Labels, pod.Annotations, pod.Spec})
		return string(text), err
	}
	backendtest.RunGroups(t, h, "lifecycle", "many", "dial", "loss", "crash", "network")
}

// TestClaimed: a sandbox is one of the pool, whose network was closed before, and is never anybody else's.
func TestClaimed(t *testing.T) {
	t.Parallel()
	ns := namespace()
	pool := makePool(t, ns, "claimed", newSpec(), 2)
	b := claiming(t, ns, pool, nil)
	used := map[types.UID]bool{}
	for range 3 {
		full(t, ns, pool)
		ready := warmPods(t, ns, pool)
		for _, p := range ready {
			if p.Labels[backend.LabelPrefix+"network"] != "none" || p.Labels["app.kubernetes.io/managed-by"] != "workcell" {
				t.Errorf("no NetworkPolicy selects a pod that is ready: %v", p.Labels)
			}
		}
		spec := newSpec()
		spec.OrphanTimeout = time.Hour // whatever it is, the same pods do
		info := backendtest.Create(t, b, spec)
		pod := podOf(t, ns, info)
		if _, ok := ready[pod.UID]; !ok || used[pod.UID] || claims(t, ns, spec.ID) != 1 {
			t.Errorf("the pod %s was ready: %v, was used: %v; %d claims", pod.Name, ok, used[pod.UID], claims(t, ns, spec.ID))
		}
		used[pod.UID] = true
		if got := backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "ls /workspace; touch /workspace/x"); got != "" {
			t.Errorf("files: %q", got)
		}
		other := claiming(t, ns, pool, nil) // which has not made it
		if got, err := other.Get(t.Context(), info.ID); err != nil || got.ID != info.ID || got.SessionID != spec.ID || got.State != backend.StateRunning {
			t.Errorf("Get: %+v, %v", got, err)
		}
		backendtest.Dial(t, other, info.ID)
		unclaiming(t, info)
		backendtest.Remove(t, other, info.ID)
		if _, err := clustertest.Pods(admin(t), ns).Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) || claims(t, ns, spec.ID) != 0 {
			t.Errorf("after Remove: pod: %v, %d claims", err, claims(t, ns, spec.ID))
		}
	}
}

// unclaiming: a driver without claims has the sandbox, too, but for what it cannot do.
func unclaiming(t *testing.T, info backend.Info) {
	t.Helper()
	b := newBackend(t, func(o *kubernetes.Options) { o.StorageClass = "" })
	list, err := b.List(t.Context(), backend.Filter{SessionID: info.SessionID})
	if err != nil || len(list) != 1 || list[0].ID != info.ID {
		t.Errorf("List without claims: %+v, %v", list, err)
	}
	backendtest.Dial(t, b, info.ID)
	if err := b.Remove(t.Context(), info.ID, backend.RemoveOptions{}); !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "kubernetes.claims") {
		t.Errorf("Remove without claims: %v, want ErrUnsupported", err)
	}
}

// TestClaimedPodDeleted: a claimed sandbox whose pod somebody deletes has stopped. It starts with another one.
func TestClaimedPodDeleted(t *testing.T) {
	t.Parallel()
	ns := namespace()
	b := claiming(t, ns, makePool(t, ns, "deleted", newSpec(), 1), nil)
	info := backendtest.Create(t, b, newSpec())
	pod := podOf(t, ns, info)
	if err := clustertest.Pods(admin(t), ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the pod", func() bool {
		got, err := b.Get(t.Context(), info.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got.State == backend.StateStopped
	})
	if err := b.Start(t.Context(), info.ID); err != nil {
		t.Fatal(err)
	}
	backendtest.Dial(t, b, info.ID)
	if again := podOf(t, ns, info); again.UID == pod.UID {
		t.Error("it has the same pod")
	}
}

// TestClaimedWithOtherNets: a claimed sandbox is not started where its pool's pods reach what the options no longer allow.
func TestClaimedWithOtherNets(t *testing.T) {
	t.Parallel()
	ns, spec, nets := namespace(), newSpec(), []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	spec.Network = backend.NetworkBridge
	allowing := func(o *kubernetes.Options) { o.AllowNets = nets }
	backendtest.Create(t, newBackend(t, allowing), spec) // its policy is there, and old enough when the pool is full
	b := claiming(t, ns, makePool(t, ns, "nets", spec, 1, allowing), allowing)
	time.Sleep(7 * time.Second)
	spec.ID, spec.Key = backendtest.Spec("", "").ID, "user:nets"
	info := backendtest.Create(t, b, spec)
	if claims(t, ns, spec.ID) != 1 {
		t.Fatal("the sandbox was made")
	}
	if err := b.Stop(t.Context(), info.ID); err != nil {
		t.Fatal(err)
	}
	if err := claiming(t, ns, "nets", nil).Start(t.Context(), info.ID); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("Start: %v, want ErrUnsupported", err)
	}
	if err := b.Start(t.Context(), info.ID); err != nil {
		t.Error(err)
	}
}

// log is what a driver reports.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), s)
}

// TestClaimedAfterTrial: a policy is not new because somebody just found again that it binds.
func TestClaimedAfterTrial(t *testing.T) {
	t.Parallel()
	ns := ownNamespace(t)
	plain := func(o *kubernetes.Options) { o.Namespace = ns }
	pool := makePool(t, ns, "trial", newSpec(), 1)
	backendtest.Create(t, newBackend(t, plain), newSpec())
	forget := []byte(`{"metadata":{"annotations":{"` + trialNote + `":null}}}`)
	if _, err := networkPolicies(admin(t), ns).Patch(t.Context(), "workcell-none", types.MergePatchType, forget, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(7 * time.Second)
	backendtest.Create(t, newBackend(t, plain), newSpec())
	if info := backendtest.Create(t, claiming(t, ns, pool, nil), newSpec()); claims(t, ns, info.SessionID) != 1 {
		t.Error("the sandbox was not claimed")
	}
}

// TestNotClaimed: what is not like the pool's is made, and why is reported once; so it is while the pool is empty or gone.
func TestNotClaimed(t *testing.T) {
	t.Parallel()
	ns := namespace()
	pool := makePool(t, ns, "other", newSpec(), 1)
	l := &log{}
	b := claiming(t, ns, pool, func(o *kubernetes.Options) { o.Logger = slog.New(slog.NewTextHandler(l, nil)) })
	made := func(why string, adjust func(*backend.Spec)) {
		t.Helper()
		spec := newSpec()
		adjust(&spec)
		info := backendtest.Create(t, b, spec)
		if pod := podOf(t, ns, info); claims(t, ns, spec.ID) != 0 || strings.HasPrefix(pod.Name, pool+"-") || l.count(why) != 1 {
			t.Errorf("%s: pod %s, %d claims, %d reports", why, pod.Name, claims(t, ns, spec.ID), l.count(why))
		}
		backendtest.Dial(t, b, info.ID)
		backendtest.Remove(t, b, info.ID)
	}
	for range 2 {
		made("container.Resources", func(s *backend.Spec) { s.Limits.MemoryBytes = 256 << 20 })
	}
	made("container.Image", func(s *backend.Spec) { s.Image = pythonImage })
	made("network", func(s *backend.Spec) { s.Network = backend.NetworkBridge })
	if n := len(warmPods(t, ns, pool)); n != 1 {
		t.Errorf("%d pods are ready, want the one", n)
	}
	scale := []byte(`{"spec":{"replicas":0}}`)
	if _, err := clustertest.SandboxWarmPools(admin(t), ns).Patch(t.Context(), pool, types.MergePatchType, scale, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	full(t, ns, pool)
	made("the pool is empty", func(*backend.Spec) {})
	removePool(t, ns, pool)
	made("there is no SandboxWarmPool", func(*backend.Spec) {})
}

// TestNoPool: a pool that is not there is reported where it is configured, and one with a class of volumes is refused.
func TestNoPool(t *testing.T) {
	t.Parallel()
	o := clustertest.Options(namespace())
	o.Claims, o.StorageClass = "nobodys", ""
	if _, err := kubernetes.New(t.Context(), o); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "nobodys") || !strings.Contains(err.Error(), "guest warmpool") {
		t.Errorf("New: %v, want ErrInvalid that names the pool", err)
	}
	o.StorageClass = clustertest.StorageClass
	if _, err := kubernetes.New(t.Context(), o); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "StorageClass") {
		t.Errorf("New with a class: %v, want ErrInvalid", err)
	}
	o.StorageClass = ""
	o.Config = through(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		r = r.Clone(r.Context()) // of a cluster without agent-sandbox
		r.URL.Path = strings.Replace(r.URL.Path, "extensions.agents.x-k8s.io", "none.example.com", 1)
		return next.RoundTrip(r)
	})
	if _, err := kubernetes.New(t.Context(), o); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("New without agent-sandbox: %v, want ErrInvalid", err)
	}
}

// TestStalePool: what is in a pool from a time when its template was another one is not used.
func TestStalePool(t *testing.T) {
	t.Parallel()
	ns := namespace()
	older := newSpec()
	older.Limits.MemoryBytes = 256 << 20
	pool := makePool(t, ns, "stale", older, 1)
	api := admin(t)
	keep := []byte(`{"spec":{"updateStrategy":{"type":"OnReplenish"}}}`)
	if _, err := clustertest.SandboxWarmPools(api, ns).Patch(t.Context(), pool, types.MergePatchType, keep, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	text, err := newBackend(t, func(o *kubernetes.Options) { o.StorageClass = "" }).WarmPool(t.Context(), pool, newSpec(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var now claimapi.SandboxTemplate
	template, err := clustertest.SandboxTemplates(api, ns).Get(t.Context(), pool, metav1.GetOptions{})
	if err = errors.Join(err, yaml.Unmarshal(text[:bytes.Index(text, []byte("---\n"))], &now)); err != nil {
		t.Fatal(err)
	}
	template.Spec = now.Spec
	if _, err := clustertest.SandboxTemplates(api, ns).Update(t.Context(), template, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l := &log{}
	b := claiming(t, ns, pool, func(o *kubernetes.Options) { o.Logger = slog.New(slog.NewTextHandler(l, nil)) })
	info := backendtest.Create(t, b, newSpec())
	if l.count("what is in the pool has another container.Resources") != 1 || claims(t, ns, info.SessionID) != 0 {
		t.Errorf("%d claims; reported: %s", claims(t, ns, info.SessionID), &l.text)
	}
	if pod := podOf(t, ns, info); pod.Spec.Containers[0].Resources.Limits.Memory().Value() < 512<<20 {
		t.Errorf("it has the older limits: %v", pod.Spec.Containers[0].Resources)
	}
}

// TestClaimOrPod: of two processes that make a session one sandbox each, one by a claim and one as a pod, one has it.
func TestClaimOrPod(t *testing.T) {
	t.Parallel()
	ns := namespace()
	pool := makePool(t, ns, "race", newSpec(), 2)
	for range 4 {
		same := newSpec()
		other := same
		other.Limits.MemoryBytes = 256 << 20
		var wg sync.WaitGroup
		won := make(chan backend.Info, 2)
		for _, spec := range []backend.Spec{same, other} {
			b := claiming(t, ns, pool, nil)
			wg.Go(func() {
				info, err := b.Create(t.Context(), spec)
				switch {
				case err == nil:
					won <- info
				case !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrLost):
					t.Errorf("Create: %v, want ErrExists", err)
				}
			})
		}
		wg.Wait()
		close(won)
		n := 0
		for info := range won {
			n++
			backendtest.Remove(t, claiming(t, ns, pool, nil), info.ID)
		}
		if n != 1 {
			t.Errorf("%d have a sandbox", n)
		}
		if claims(t, ns, same.ID) != 0 {
			t.Error("a claim is left")
		}
	}
}

// killedVariable names the session of a process that is killed at what it does to a pod.
const killedVariable = "WORKCELL_TEST_KILLED"

// TestClaimKilled: what a process leaves that is killed after its claim and before its first use is found and removed, and the session can be made
// again.
func TestClaimKilled(t *testing.T) {
	ns := namespace()
	if at, ok := os.LookupEnv(killedVariable); ok {
		claimAndDie(t, ns, at)
		return
	}
	t.Parallel()
	pool := makePool(t, ns, "killed", newSpec(), 2)
	for _, at := range []string{"exec", "patch"} {
		full(t, ns, pool)
		spec := newSpec()
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClaimKilled$")
		c.Env = append(os.Environ(), killedVariable+"="+at+" "+spec.ID+" "+instance)
		out, err := c.CombinedOutput()
		if status, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
			t.Fatalf("%s: it was not killed: %v\n%s", at, err, out)
		}
		b := claiming(t, ns, pool, nil)
		if n := claims(t, ns, spec.ID); n != 1 {
			t.Fatalf("%s: %d claims", at, n)
		}
		list, err := b.List(t.Context(), backend.Filter{SessionID: spec.ID, Instance: instance})
		if err != nil || len(list) != 1 || list[0].SessionID != spec.ID {
			t.Fatalf("%s: List: %+v, %v", at, list, err)
		}
		if got, err := b.Get(t.Context(), list[0].ID); err != nil || got.ID != list[0].ID {
			t.Errorf("%s: Get: %+v, %v", at, got, err)
		}
		if _, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrExists) {
			t.Errorf("%s: Create: %v, want ErrExists", at, err)
		}
		backendtest.Remove(t, b, list[0].ID)
		if n := claims(t, ns, spec.ID); n != 0 {
			t.Errorf("%s: %d claims are left", at, n)
		}
		full(t, ns, pool)
		backendtest.Dial(t, b, backendtest.Create(t, b, spec).ID)
	}
}

// claimAndDie makes a sandbox and is killed at the first request of a kind to a pod.
func claimAndDie(t *testing.T, ns, order string) {
	f := strings.Fields(order)
	at, id, of := f[0], f[1], f[2]
	config := through(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if pods := strings.Contains(r.URL.Path, "/pods/"); pods && (at == "exec" && strings.HasSuffix(r.URL.Path, "/exec") || at == "patch" && r.Method == http.MethodPatch) {
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Kill()
			}
			if err != nil {
				t.Error(err)
			}
			select {}
		}
		return next.RoundTrip(r)
	})
	spec := newSpec()
	spec.ID, spec.Key, spec.Run, spec.Instance = id, "user:"+id, "run_"+id, of
	info, err := claiming(t, ns, "killed", func(o *kubernetes.Options) { o.Config = config }).Create(t.Context(), spec)
	t.Fatalf("Create: %+v, %v", info, err)
}

// TestClaimsRole: the two Roles are enough for everything, and without any verb of the second one the error names that.
func TestClaimsRole(t *testing.T) {
	t.Parallel()
	pool := makePool(t, namespace(), "role", newSpec(), 2)
	base, more := role(t, "role.yaml"), role(t, "role-claims.yaml")
	try := func(t *testing.T, rules []rbacv1.PolicyRule) error {
		t.Helper()
		spec := newSpec()
		whole := claiming(t, namespace(), pool, nil) // who may not look at what was made cannot remove it
		t.Cleanup(func() {
			list, err := whole.List(context.Background(), backend.Filter{SessionID: spec.ID})
			for _, info := range list {
				err = errors.Join(err, whole.Remove(context.Background(), info.ID, backend.RemoveOptions{Volumes: true}))
			}
			if err != nil {
				t.Error(err)
			}
		})
		full(t, namespace(), pool)
		o := clustertest.Options(namespace())
		o.Config, o.StorageClass, o.Claims = as(t, namespace(), append(slices.Clone(base), rules...)), "", pool
		b, err := kubernetes.New(t.Context(), o)
		if err != nil {
			return err
		}
		defer b.Close()
		info, err := b.Create(t.Context(), spec)
		if err == nil {
			_, err = b.List(t.Context(), backend.Filter{SessionID: spec.ID})
		}
		for _, f := range []func(context.Context, string) error{b.Stop, b.Start} {
			if err == nil {
				err = f(t.Context(), info.ID)
			}
		}
		if err == nil {
			err = b.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true})
		}
		return err
	}
	if err := try(t, more); err != nil {
		t.Errorf("with both roles: %v", err)
	}
	for i, rule := range more {
		for _, verb := range rule.Verbs {
			t.Run(verb+" "+rule.Resources[0], func(t *testing.T) {
				rules := slices.Clone(more)
				if rules[i].Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == verb }); len(rules[i].Verbs) == 0 {
					rules = slices.Delete(rules, i, i+1)
				}
				err := try(t, rules)
				if !errors.Is(err, backend.ErrPermission) || !strings.Contains(err.Error(), "cannot "+verb) || !strings.Contains(err.Error(), rule.Resources[0]) {
					t.Errorf("%v, want ErrPermission for %s %s", err, verb, rule.Resources[0])
				}
			})
		}
	}
}

// TestClaimsControllerAway: while agent-sandbox does not answer, sandboxes are made. It runs alone.
func TestClaimsControllerAway(t *testing.T) {
	ns := namespace()
	pool := makePool(t, ns, "away", newSpec(), 1)
	l := &log{}
	b := claiming(t, ns, pool, func(o *kubernetes.Options) { o.Logger = slog.New(slog.NewTextHandler(l, nil)) })
	part(t, "end", "agent-sandbox")
	t.Cleanup(func() { part(t, "start", "agent-sandbox") })
	info := backendtest.Create(t, b, newSpec())
	backendtest.Dial(t, b, info.ID)
	if claims(t, ns, info.SessionID) != 0 || l.count("gave nothing within") != 1 {
		t.Errorf("%d claims; reported: %s", claims(t, ns, info.SessionID), &l.text)
	}
}
