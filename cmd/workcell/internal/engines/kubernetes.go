//go:build !no_kubernetes

package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/kubernetes"
)

func (s Set) kubernetes() Engine {
	return Engine{
		Name: Kubernetes,
		open: func(ctx context.Context) (backend.SandboxBackend, error) {
			// The client's own log says to standard error what its errors say too.
			klog.SetLogger(logr.Discard())
			klog.SetOutput(io.Discard)
			return asBackend(kubernetes.New(ctx, s.kubernetesOptions()))
		},
		TryNetwork: func(ctx context.Context, image string) ([]string, error) {
			b, err := kubernetes.New(ctx, s.kubernetesOptions())
			if err != nil {
				return nil, err
			}
			defer b.Close() // a trial leaves nothing
			return b.TryNetwork(ctx, image)
		},
		Absent: func(context.Context) string { return "" },
		Fix: func(error) string {
			return "set KUBECONFIG to a cluster's file, and kubernetes.context and kubernetes.namespace to a namespace where this user has the Role from docs/kubernetes.md"
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

// kubernetesID returns the identity of the namespace, which the cluster knows.
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

func (s Set) kubernetesOptions() *kubernetes.Options {
	k := s.Cluster
	opts := &kubernetes.Options{
		Context: k.Context, Namespace: k.Namespace, GuestImage: k.GuestImage, StorageClass: k.StorageClass,
		RuntimeClasses: k.RuntimeClasses, NetworkPolicyEnforced: k.NetworkPolicy == "enforced",
		Logger: s.Logger, Patience: patience,
	}
	// A list of files is what the client itself looks for.
	if files := filepath.SplitList(s.Env.Get("KUBECONFIG")); len(files) == 1 {
		opts.Kubeconfig = files[0]
	}
	return opts
}
