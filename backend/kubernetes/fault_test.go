package kubernetes_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// patience is the maximum time to wait for an event in a test. It is long because test hosts may be very busy.
const patience = 3 * time.Minute

// ownNamespace creates a namespace for one test.
func ownNamespace(t *testing.T) string {
	t.Helper()
	api, ns := admin(t), namespace()+"-"+strings.ToLower(rand.Text())[:8]
	must(t, clustertest.Make(t.Context(), api, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	t.Cleanup(func() {
		must(t, clustertest.Namespaces(api, "").Delete(context.Background(), ns, metav1.DeleteOptions{}))
	})
	return ns
}

// as returns the configuration of a user with only a role with these rules in a namespace.
func as(t *testing.T, namespace string, rules []rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	api, name := admin(t), "user-"+strings.ToLower(rand.Text())
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	must(t, second(roles(api, namespace).Create(t.Context(), role, metav1.CreateOptions{})))
	_, err := roleBindings(api, namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}, metav1.CreateOptions{})
	must(t, err)
	last := rules[len(rules)-1]
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: name, ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: namespace, Group: last.APIGroups[0], Resource: last.Resources[0], Verb: last.Verbs[0],
	}}}
	reviews := accessReviews(api, "") // list types of reviews do not exist
	backendtest.Eventually(t, "the server to know of the role", func() bool {
		r, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
		return err == nil && r.Status.Allowed
	})
	config, err := clustertest.Config()
	must(t, err)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	return config
}

// everything performs all operations of a driver in a namespace.
func everything(t *testing.T, b *kubernetes.Backend, namespace string, spec backend.Spec) error {
	ctx := t.Context()
	if _, err := b.Identity(ctx); err != nil {
		return err
	}
	whole := newBackend(t, func(o *kubernetes.Options) { o.Namespace = namespace }) // may remove all objects
	t.Cleanup(func() {
		list, err := whole.List(context.Background(), backend.Filter{SessionID: spec.ID})
		for _, info := range list {
			err = errors.Join(err, whole.Remove(context.Background(), info.ID, backend.RemoveOptions{Volumes: true}))
		}
		if err = errors.Join(err, whole.RemoveWorkspace(context.Background(), instance, spec.ID)); err != nil {
			t.Error(err)
		}
	})
	info, err := b.Create(ctx, spec)
	if err != nil {
		return err
	}
	rw, err := b.Dial(ctx, info.ID)
	if err != nil {
		return err
	}
	list, err := b.List(ctx, backend.Filter{SessionID: spec.ID})
	if err != nil || len(list) != 1 {
		return fmt.Errorf("list: %d, %w", len(list), err)
	}
	for _, f := range []func() error{
		rw.Close,
		func() error { return b.Stop(ctx, info.ID) },
		func() error { return b.Start(ctx, info.ID) },
		func() error { return b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}) },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// role returns the rules of a published Role.
func role(t *testing.T, file string) []rbacv1.PolicyRule {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	var r rbacv1.Role
	must(t, yaml.Unmarshal(text, &r))
	return r.Rules
}

// TestRole verifies that the published Role is sufficient for all operations. It also verifies that, if a verb is
// missing, the error names the verb and the resource.
func TestRole(t *testing.T) {
	t.Parallel()
	whole := role(t, "role.yaml")
	try := func(t *testing.T, namespace string, rules []rbacv1.PolicyRule) error {
		t.Helper()
		b := newBackend(t, func(o *kubernetes.Options) { o.Config, o.Namespace = as(t, namespace, rules), namespace })
		return everything(t, b, namespace, newSpec())
	}
	must(t, try(t, namespace(), whole))
	for i, rule := range whole {
		for _, verb := range rule.Verbs {
			what := rule.Resources[0]
			if what == "pods/exec" && verb == "get" {
				continue // SPDY requests are not rejected
			}
			t.Run(verb+" "+what, func(t *testing.T) {
				t.Parallel()
				rules := slices.Clone(whole)
				if rules[i].Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == verb }); len(rules[i].Verbs) == 0 {
					rules = slices.Delete(rules, i, i+1) // an empty rule is invalid
				}
				ns := namespace()
				if what == "networkpolicies" && verb != "list" {
					ns = ownNamespace(t) // in the shared namespace, they already exist
				}
				if verb == "update" {
					foreign := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "workcell-none"}}
					must(t, second(networkPolicies(admin(t), ns).Create(t.Context(), foreign, metav1.CreateOptions{})))
				}
				err := try(t, ns, rules)
				if !errors.Is(err, backend.ErrPermission) || !strings.Contains(err.Error(), "cannot "+verb) || !strings.Contains(err.Error(), what) {
					t.Errorf("%v, want ErrPermission for %s %s", err, verb, what)
				}
			})
		}
	}
}

// TestNoNode verifies that Create fails after a while if no node can run the sandbox, and that no objects remain.
func TestNoNode(t *testing.T) {
	t.Parallel()
	spec := newSpec()
	spec.Limits.MemoryBytes = 1 << 40
	_, err := newBackend(t, nil).Create(t.Context(), spec)
	if !errors.Is(err, backend.ErrCapacity) || !strings.Contains(err.Error(), "memory") {
		t.Errorf("Create: %v, want ErrCapacity for memory", err)
	}
}

// TestEvicted verifies that a sandbox evicted by the node because of disk usage is reported as lost, and that it can be
// started again.
func TestEvicted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		class string
		root  backend.RootMode
		file  func(*testing.T, types.UID) string // a file on the node, because the guest agent would enforce the limit first
		bytes int
	}{
		"workspace": {"", backend.RootReadonly, func(_ *testing.T, pod types.UID) string {
			return filepath.Join(filepath.Dir(clustertest.Kubeconfig()), "kubelet", "pods", string(pod), "volumes", "kubernetes.io~empty-dir", "workspace", "fill")
		}, 8 << 20},
		"root": {clustertest.StorageClass, backend.RootWritable, func(t *testing.T, pod types.UID) string {
			return filepath.Join("/proc", guestOf(t, pod), "root/var/fill")
		}, 128 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t, func(o *kubernetes.Options) { o.StorageClass = c.class })
			spec := newSpec()
			spec.Limits.WorkspaceBytes, spec.Root = 1<<20, c.root
			info := backendtest.Create(t, b, spec)
			conn := backendtest.Dial(t, b, info.ID)
			must(t, os.WriteFile(c.file(t, podOf(t, info.ID).UID), make([]byte, c.bytes), 0o600))
			select {
			case <-conn.Done():
			case <-time.After(patience):
				t.Fatal("the sandbox stays")
			}
			backendtest.Eventually(t, "the news of it", func() bool {
				_, err := b.Dial(t.Context(), info.ID)
				return errors.Is(err, backend.ErrLost) && strings.Contains(err.Error(), "evicted")
			})
			must(t, b.Start(t.Context(), info.ID))
			backendtest.Prints(t, backendtest.Dial(t, b, info.ID), "find . /var -maxdepth 1 -name fill", "")
		})
	}
}

// guestOf returns the process of the guest agent in a pod, on this host.
func guestOf(t *testing.T, pod types.UID) string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, dir := range dirs {
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup")) // the process may have exited
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		id := string(pod)
		is := strings.Contains(string(groups), id) || strings.Contains(string(groups), strings.ReplaceAll(id, "-", "_"))
		if is && strings.HasPrefix(string(args), "/.workcell/") {
			return filepath.Base(dir)
		}
	}
	t.Fatal("the guest is not on this machine")
	return ""
}

// part stops or starts a component of the cluster. No other test may need this component at the same time.
func part(t *testing.T, do, name string) {
	t.Helper()
	c := exec.Command("hack/cluster.sh", do, name)
	c.Dir = filepath.Join("..", "..")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("cluster.sh %s %s: %v: %s", do, name, err, out)
	}
}

// TestNodeAway verifies the state of sandboxes if the kubelet of their node stops. The state of a sandbox is unknown,
// but the sandbox keeps running and is reachable when the kubelet is back. A sandbox whose pod was deleted in the
// meantime no longer exists. This test does not run in parallel.
func TestNodeAway(t *testing.T) {
	b := newBackend(t, nil)
	info, other := backendtest.Create(t, b, newSpec()), backendtest.Create(t, b, newSpec())
	conn := backendtest.Dial(t, b, info.ID)
	boot := conn.Hello().BootID
	part(t, "end", "kubelet")
	t.Cleanup(func() { part(t, "start", "kubelet") }) // if the test has failed
	<-conn.Done()
	backendtest.Fails(t, "Dial", second(b.Dial(t.Context(), info.ID)), backend.ErrUnavailable)
	if got, err := b.Get(t.Context(), info.ID); err != nil || got.State != backend.StateRunning {
		t.Errorf("Get: %+v, %v", got, err)
	}
	backendtest.Fails(t, "Stop", b.Stop(t.Context(), other.ID), backend.ErrUnavailable)
	name, _, _ := strings.Cut(other.ID, ".")
	now := int64(0)
	pods := clustertest.Pods(admin(t), namespace())
	must(t, pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	backendtest.Fails(t, "Dial of a deleted pod", second(b.Dial(t.Context(), other.ID)), backend.ErrNotFound)
	part(t, "start", "kubelet")
	backendtest.Eventually(t, "the sandbox is reached again", func() bool {
		rw, err := b.Dial(t.Context(), info.ID)
		if err != nil && !errors.Is(err, backend.ErrUnavailable) {
			t.Fatalf("Dial: %v", err)
		}
		return err == nil && rw.Close() == nil
	})
	if again := backendtest.Dial(t, b, info.ID); again.Hello().BootID != boot {
		t.Error("it is another guest")
	}
}

// TestNoGuest verifies the error for an image without the guest agent.
func TestNoGuest(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(o *kubernetes.Options) { o.GuestImage, o.StorageClass = "", "" })
	if _, err := b.Create(t.Context(), newSpec()); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "GuestImage") {
		t.Errorf("an image without the guest: %v, want ErrInvalid", err)
	}
}

// proxy is a proxy between a driver and the API server.
type proxy struct {
	config *rest.Config

	mu    sync.Mutex // guards the fields below
	down  bool
	conns map[net.Conn]bool
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	config, err := clustertest.Config()
	must(t, err)
	server, err := url.Parse(config.Host)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{config: rest.CopyConfig(config), conns: map[net.Conn]bool{}}
	p.config.Host = "https://" + l.Addr().String()
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.serve(c, server.Host) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut(true)
		running.Wait()
	})
	return p
}

func (p *proxy) serve(c net.Conn, server string) {
	defer c.Close() //nolint:errcheck // both ends know
	s, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer s.Close() //nolint:errcheck // both ends know
	p.mu.Lock()
	refused := p.down
	p.conns[c], p.conns[s] = true, true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
		delete(p.conns, s)
	}()
	if refused {
		return
	}
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{c, s}, {s, c}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
}

// cut closes all connections. If down is true, the proxy then rejects new connections until the next call.
func (p *proxy) cut(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	for c := range p.conns {
		_ = c.Close()
	}
}

// TestServerRestarts verifies that a 12 s outage of the API server delays commands but does not make them fail.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *kubernetes.Options) { o.Config = p.config })
	m, err := session.NewManager(b, &session.Options{Instance: instance})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	run := session.NewRunID()
	s, _, err := m.Open(t.Context(), session.WorkflowKey(run, "default"), session.Request{Image: debianImage})
	must(t, err)
	ended := make(chan error, 2)
	exec := func(command, want string) {
		res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: command})
		if got := string(res.Stdout.Bytes()); err == nil && got != want {
			err = fmt.Errorf("%q printed %q, want %q", command, got, want)
		}
		ended <- err
	}
	go exec("echo ran >> log; sleep 20; cat log", "ran\n")
	backendtest.Eventually(t, "the command to run", func() bool {
		_, err := s.StatFile(t.Context(), "log")
		return err == nil
	})
	p.cut(true)
	go exec("echo started", "started\n") // during the outage
	time.Sleep(12 * time.Second)
	p.cut(false)
	for range 2 {
		must(t, <-ended)
	}
}

// TestServerAway verifies the error of every call during an outage of the API server. Sandboxes keep running.
func TestServerAway(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	b := newBackend(t, func(o *kubernetes.Options) { o.Config, o.Patience = p.config, time.Second })
	info := backendtest.Create(t, b, newSpec())
	conn := backendtest.Dial(t, b, info.ID)
	boot := conn.Hello().BootID
	p.cut(true)
	<-conn.Done()
	for name, call := range backendtest.Calls(b, info.ID, newSpec) {
		backendtest.Fails(t, name, call(t.Context()), backend.ErrUnavailable)
	}
	p.cut(false)
	if again := backendtest.Dial(t, b, info.ID); again.Hello().BootID != boot {
		t.Error("it is another guest")
	}
}
