//go:build !no_kubernetes

package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/bound"
)

func (s Set) kubernetes() Engine {
	return Engine{
		Name: Kubernetes,
		open: func(ctx context.Context) (backend.SandboxBackend, error) {
			// Discard the client's own log, because it repeats the errors on standard error.
			klog.SetLogger(logr.Discard())
			klog.SetOutput(io.Discard)
			open := func() (*kubernetes.Backend, error) { return kubernetes.New(ctx, s.kubernetesOptions()) }
			const text = "kubernetes: waiting for the API server"
			return asBackend(bound.Await(ctx, serverWait, s.Logger, text, s.awaitsServer, open))
		},
		id: s.kubernetesID,
		TryNetwork: func(ctx context.Context, image string, images map[string]string) ([]string, error) {
			b, err := kubernetes.New(ctx, s.kubernetesOptions())
			if err != nil {
				return nil, err
			}
			defer b.Close() // the trial leaves nothing behind
			return b.TryNetwork(ctx, mappedImage(images, image))
		},
		absent: func(context.Context) string { return "" },
		Fix: func(error) string {
			return "set KUBECONFIG, and in the configuration file kubernetes.context and kubernetes.namespace; in this " +
				"namespace, you need the Role from docs/operations/kubernetes.md"
		},
		at: func() string {
			server, namespace, err := kubernetes.Locate(s.kubernetesOptions())
			if err != nil {
				return "the cluster in KUBECONFIG or ~/.kube/config"
			}
			return fmt.Sprintf("%s, namespace %s", server, namespace)
		},
	}
}

// serverWait is how long a server in a pod waits for the API server. The network of a new node may start later.
const serverWait = time.Minute

// awaitsServer reports whether the API server may be reachable later. Users get the error at once.
func (s Set) awaitsServer(err error) bool {
	return s.Waits && s.Env.Get("KUBERNETES_SERVICE_HOST") != "" && errors.Is(err, backend.ErrUnavailable)
}

// kubernetesID returns the identity of the namespace from the cluster.
func (s Set) kubernetesID(ctx context.Context) (id string, err error) {
	e := s.kubernetes()
	e.open = func(ctx context.Context) (backend.SandboxBackend, error) {
		b, err := kubernetes.New(ctx, s.kubernetesOptions())
		if err == nil {
			id, err = b.Identity(ctx)
			err = errors.Join(err, b.Close())
		}
		return nil, err
	}
	_, err = e.Open(ctx)
	return id, err
}

// kubernetesContext returns the context and the namespace of the driver. They are empty without a kubeconfig.
func (s Set) kubernetesContext() (name, namespace string) {
	opts, rules := s.kubernetesOptions(), clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = opts.Kubeconfig
	if c, err := rules.Load(); err == nil {
		opts.Context = cmp.Or(opts.Context, c.CurrentContext)
	}
	_, namespace, _ = kubernetes.Locate(opts)
	return opts.Context, cmp.Or(namespace, opts.Namespace)
}

func (s Set) kubernetesOptions() *kubernetes.Options {
	k := s.Cluster
	opts := &kubernetes.Options{
		Context: k.Context, Namespace: k.Namespace, GuestImage: k.GuestImage, StorageClass: k.StorageClass,
		RuntimeClasses: k.RuntimeClasses, NetworkPolicyEnforced: k.NetworkPolicy == "enforced",
		NodeSelector: mapping(k.NodeSelector), PriorityClass: k.PriorityClass, ImagePullSecrets: k.ImagePullSecrets,
		Labels: mapping(k.Labels), Annotations: mapping(k.Annotations), Logger: s.Logger, Patience: patience,
		AllowNets: nets(k.AllowNets), DenyNets: nets(k.DenyNets),
		DNSNamespace: k.DNSNamespace, DNSLabels: mapping(k.DNSLabels), DNSPort: k.DNSPort, NodeTimeout: k.NodeTimeout,
	}
	for _, t := range k.Tolerations {
		toleration := corev1.Toleration{
			Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect),
		}
		if t.Seconds != 0 {
			toleration.TolerationSeconds = &t.Seconds
		}
		opts.Tolerations = append(opts.Tolerations, toleration)
	}
	// The client itself handles a list of files.
	if files := filepath.SplitList(s.Env.Get("KUBECONFIG")); len(files) == 1 {
		opts.Kubeconfig = files[0]
	}
	return opts
}

// nets converts the networks of a configuration, which are valid.
func nets(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// mapping converts KEY=VALUE pairs to a map.
func mapping(pairs []string) map[string]string {
	all := map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		all[key] = value
	}
	return all
}
