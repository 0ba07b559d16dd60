//go:build linux && !no_kubernetes

package promises

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
	"github.com/workcell-dev/workcell/internal/guestimage"
)

// kubernetesEngine is a namespace in the cluster of `make cluster`. The cluster's only node is the host, with a
// separate containerd.
type kubernetesEngine struct {
	containerdImages
	config    *rest.Config // administrator's configuration
	namespace string
	remove    func() error // removes the namespace
}

func openKubernetes() (engine, error) {
	e := &kubernetesEngine{}
	var err error
	if e.config, err = clustertest.Config(); err != nil {
		return nil, err
	}
	if e.namespace, e.remove, err = clustertest.Namespace(context.Background()); err != nil {
		return nil, err
	}
	e.containerdImages, err = openContainerdImages(clustertest.Containerd, "k8s.io")
	return e, err
}

// cannot returns the tests excluded on Kubernetes. docs/operations/kubernetes.md has the reasons.
func (e *kubernetesEngine) cannot() []string {
	return []string{
		"TestH3Root",                                        // require root
		"TestL4DiskFull", "TestL4Reserved", "TestL7Runtime", // require a private engine
		"TestL5TagSwapped",
		"TestM4SocketKinds", "TestN7KernelFiles", "TestN9SystemCalls", // depend on the container runtime
	}
}

// TestNotOnKubernetes: docs/operations/kubernetes.md lists the excluded tests.
func TestNotOnKubernetes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations/kubernetes.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "## What is not promised here")
	for _, name := range (*kubernetesEngine)(nil).cannot() {
		if !strings.Contains(section, "`"+name+"`") {
			t.Errorf("docs/operations/kubernetes.md does not name %s", name)
		}
	}
}

func (e *kubernetesEngine) connect(ctx context.Context, c connection) (backend.SandboxBackend, error) {
	o := clustertest.Options(e.namespace)
	o.AllowNets, o.Patience, o.PullTimeout, o.Logger, o.TracerProvider = c.allowNets, c.patience, c.pullTimeout, c.logger, c.tracer
	if c.address != "" {
		o.Config = &rest.Config{Host: c.address, QPS: e.config.QPS, Burst: e.config.Burst}
	}
	return kubernetes.New(ctx, o)
}

func (e *kubernetesEngine) environ() []string {
	return []string{
		"KUBECONFIG=" + clustertest.Kubeconfig(), "WORKCELL_KUBE_NAMESPACE=" + e.namespace,
		"WORKCELL_KUBE_GUEST_IMAGE=" + guestimage.Reference(), "WORKCELL_KUBE_STORAGE_CLASS=" + clustertest.StorageClass,
		"WORKCELL_KUBE_NETWORK_POLICY=enforced",
	}
}

func (e *kubernetesEngine) left(ctx context.Context, prefix string) ([]string, error) {
	pods, err := clustertest.Pods(e.config, e.namespace).List(ctx, metav1.ListOptions{})
	claims, cerr := clustertest.PersistentVolumeClaims(e.config, e.namespace).List(ctx, metav1.ListOptions{})
	if err = errors.Join(err, cerr); err != nil {
		return nil, err
	}
	var list []string
	add := func(kind string, m *metav1.ObjectMeta) {
		if strings.HasPrefix(m.Labels[backend.LabelInstance], prefix) || strings.Contains(m.Name, prefix) {
			list = append(list, kind+" "+m.Name)
		}
	}
	for i := range pods.Items {
		add("pod", &pods.Items[i].ObjectMeta)
	}
	for i := range claims.Items {
		add("claim", &claims.Items[i].ObjectMeta)
	}
	return list, nil
}

// podOf returns the name of the pod of a sandbox or a stranger.
func podOf(id string) string {
	name, _, _ := strings.Cut(id, ".")
	return name
}

// pid returns the main process, as reported by the node's containerd.
func (e *kubernetesEngine) pid(ctx context.Context, id string) (int, error) {
	ctx = e.in(ctx)
	list, err := e.api.Containers(ctx, fmt.Sprintf(`labels."io.kubernetes.pod.name"==%q,labels."io.kubernetes.pod.namespace"==%q,labels."io.kubernetes.container.name"==sandbox`, podOf(id), e.namespace))
	for _, c := range list {
		task, terr := c.Task(ctx, nil)
		if terr != nil {
			err = errors.Join(err, terr)
			continue
		}
		if status, terr := task.Status(ctx); terr == nil && status.Status == ctrd.Running {
			return int(task.Pid()), nil
		}
	}
	return 0, errors.Join(err, fmt.Errorf("%s does not run", id))
}

func (e *kubernetesEngine) describe(ctx context.Context, id string) (string, error) {
	pod, err := clustertest.Pods(e.config, e.namespace).Get(ctx, podOf(id), metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	claim, err := clustertest.PersistentVolumeClaims(e.config, e.namespace).Get(ctx, podOf(id), metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal([]any{pod, claim})
	return string(text), err
}

func (e *kubernetesEngine) stranger(t testing.TB, image string, labels map[string]string) stranger {
	t.Helper()
	no, yes, now, user := false, true, int64(0), int64(1000)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: strangerName(), Labels: map[string]string{}},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: []corev1.Container{{
			Name: "sandbox", Image: image, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "6000"},
			SecurityContext: &corev1.SecurityContext{
				RunAsUser: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		}}},
	}
	for k, v := range labels {
		pod.Labels[k] = strings.NewReplacer(":", "-", "/", "-").Replace(v) // pod labels cannot contain these characters
	}
	pod, err := clustertest.Pods(e.config, e.namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, clustertest.Pods(e.config, e.namespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	})
	eventually(t, pod.Name+" runs", func() bool { return running(pod.Name) })
	return stranger{[]string{pod.Name, string(pod.UID)}, func() bool { return running(pod.Name) }}
}

// proxy accepts plain HTTP and connects to the server as the administrator.
func (e *kubernetesEngine) proxy(t testing.TB) *proxy {
	t.Helper()
	server, err := url.Parse(e.config.Host)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	cert, err := tls.X509KeyPair(e.config.CertData, e.config.KeyData)
	must(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: x509.NewCertPool(), NextProtos: []string{"http/1.1"}}
	config.RootCAs.AppendCertsFromPEM(e.config.CAData)
	p := newProxy(t, l, func() (net.Conn, error) { return tls.Dial("tcp", server.Host, config) }, forwardHTTP)
	p.address = "http://" + p.address
	return p
}

func (e *kubernetesEngine) creates(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods")
}

func (e *kubernetesEngine) streams() bool { return true }

// mounts also allows the container's termination log, a file on the node for every container.
func (e *kubernetesEngine) mounts() *regexp.Regexp {
	return regexp.MustCompile(containerMounts().String() + `|^/dev/termination-log$`)
}

func (e *kubernetesEngine) close() error {
	return errors.Join(e.containerdImages.close(), e.remove())
}

// inspect checks a pod's description against the restricted Pod Security Standard and our additional requirements.
func (e *kubernetesEngine) inspect(t *testing.T, b *testSandbox) {
	t.Helper()
	pod, err := clustertest.Pods(e.config, e.namespace).Get(t.Context(), podOf(b.s.Info().EngineID), metav1.GetOptions{})
	must(t, err)
	s, p := pod.Spec, pod.Spec.SecurityContext
	for rule, ok := range map[string]bool{
		"no host namespaces":          !s.HostNetwork && !s.HostPID && !s.HostIPC && (s.ShareProcessNamespace == nil || !*s.ShareProcessNamespace) && len(s.HostAliases) == 0,
		"user":                        p.RunAsNonRoot != nil && *p.RunAsNonRoot && *p.RunAsUser == 1000 && *p.RunAsGroup == 1000 && *p.FSGroup == 1000 && len(p.SupplementalGroups) == 0,
		"seccomp":                     p.SeccompProfile != nil && p.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		"sysctls":                     len(p.Sysctls) == 0,
		"no account":                  s.AutomountServiceAccountToken != nil && !*s.AutomountServiceAccountToken && s.EnableServiceLinks != nil && !*s.EnableServiceLinks,
		"no restarts":                 s.RestartPolicy == corev1.RestartPolicyNever,
		"own host name":               s.Hostname == "workcell",
		"one container, one init":     len(s.Containers) == 1 && len(s.InitContainers) == 1 && len(s.EphemeralContainers) == 0,
		"volumes":                     volumesOf(s.Volumes) == "workspace claim, tmp memory, shm memory, accounts annotations, guest disk",
		"label of instance":           pod.Labels[backend.LabelInstance] == w.instance,
		"label that closes a network": pod.Labels["dev.workcell.network"] == map[bool]string{true: "bridge", false: "none"}[b == w.bridgedUser],
	} {
		if !ok {
			t.Errorf("%s: not so", rule)
		}
	}
	for _, c := range append(s.InitContainers, s.Containers...) {
		x := c.SecurityContext
		for rule, ok := range map[string]bool{
			"privileges":     x.Privileged != nil && !*x.Privileged && x.AllowPrivilegeEscalation != nil && !*x.AllowPrivilegeEscalation,
			"capabilities":   x.Capabilities != nil && len(x.Capabilities.Add) == 0 && fmt.Sprint(x.Capabilities.Drop) == "[ALL]",
			"root":           x.ReadOnlyRootFilesystem != nil && *x.ReadOnlyRootFilesystem == (c.Name == "guest" || b.s.Info().Root == backend.RootReadonly),
			"nothing looser": x.RunAsUser == nil && x.RunAsNonRoot == nil && x.SeccompProfile == nil && x.ProcMount == nil,
			"memory, CPU":    !c.Resources.Limits.Memory().IsZero() && !c.Resources.Limits.Cpu().IsZero() && c.Resources.Requests.Memory().Cmp(*c.Resources.Limits.Memory()) <= 0,
			"no ports":       len(c.Ports) == 0,
			"no terminal":    !c.TTY && !c.Stdin && c.Lifecycle == nil && c.LivenessProbe == nil,
			"environment":    len(c.EnvFrom) == 0 && !strings.Contains(fmt.Sprint(c.Env), hostCanary),
			"the guest":      c.Command[0] == "/.workcell/workcell-guest",
		} {
			if !ok {
				t.Errorf("container %s, %s: not so", c.Name, rule)
			}
		}
	}
}

// volumesOf returns the names and types of volumes.
func volumesOf(list []corev1.Volume) string {
	var all []string
	for _, v := range list {
		kind := "other"
		switch {
		case v.PersistentVolumeClaim != nil:
			kind = "claim"
		case v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory && v.EmptyDir.SizeLimit != nil:
			kind = "memory"
		case v.EmptyDir != nil:
			kind = "disk"
		case v.DownwardAPI != nil:
			kind = "annotations"
		}
		all = append(all, v.Name+" "+kind)
	}
	return strings.Join(all, ", ")
}
