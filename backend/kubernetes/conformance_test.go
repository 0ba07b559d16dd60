package kubernetes_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, harness(t))
}

func harness(t testing.TB) backendtest.Harness {
	pods := clustertest.Pods(admin(t), namespace())
	return backendtest.Harness{
		Name: "kubernetes",
		New:  func(t testing.TB) backend.SandboxBackend { return newBackend(t, nil) },
		NewAllowing: func(t testing.TB, nets []netip.Prefix) backend.SandboxBackend {
			return newBackend(t, func(o *kubernetes.Options) { o.AllowNets = nets })
		},
		Debian: debianImage, Python: pythonImage, Images: imageStore(t),
		Cluster:   true,
		Leftovers: leftovers,
		Vanish: func(ctx context.Context, id string) error {
			now := int64(0)
			name, _, _ := strings.Cut(id, ".")
			return pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		},
		Describe: func(ctx context.Context, id string) (string, error) {
			name, _, _ := strings.Cut(id, ".")
			pod, err := pods.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			// The server changes these fields.
			pod.ManagedFields, pod.ResourceVersion, pod.Generation, pod.Status = nil, "", 0, corev1.PodStatus{}
			pod.Spec.NodeName = ""
			text, err := json.Marshal(pod)
			return string(text), err
		},
		Foreign: foreign,
	}
}
