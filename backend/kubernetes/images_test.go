package kubernetes_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images/archive"
	cerrdefs "github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

// node returns a client of the node's containerd. Unlike the API server, containerd knows the images.
func node(t testing.TB) *ctrd.Client {
	t.Helper()
	api, err := ctrd.New(clustertest.Containerd, ctrd.WithDefaultNamespace("k8s.io"))
	must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	return api
}

// imageStore gives the conformance suite access to the node's images.
func imageStore(t testing.TB) *backendtest.Images {
	api := node(t)
	return &backendtest.Images{
		New: func(t testing.TB, o backendtest.ImageOptions) backend.SandboxBackend {
			return newBackend(t, func(k *kubernetes.Options) {
				k.Images, k.PullTimeout = o.Policy, o.PullTimeout
				if o.ConfigDir != "" {
					k.ImagePullSecrets = []string{pullSecret(t, o.ConfigDir)}
				}
			})
		},
		Save: func(ctx context.Context, ref string, w io.Writer) error {
			full, err := backend.NormalizeImage(ref)
			if err != nil {
				return err
			}
			return api.Export(ctx, w, archive.WithImage(api.ImageService(), full))
		},
		Load: func(ctx context.Context, r io.Reader) error {
			_, err := api.Import(ctx, r, ctrd.WithAllPlatforms(true))
			return err
		},
		Remove: func(ctx context.Context, repo string) error {
			list, err := api.ImageService().List(ctx)
			for _, i := range list {
				if strings.HasPrefix(i.Name, repo+":") || strings.HasPrefix(i.Name, repo+"@") {
					if gone := api.ImageService().Delete(ctx, i.Name); !cerrdefs.IsNotFound(gone) {
						err = errors.Join(err, gone)
					}
				}
			}
			return err
		},
	}
}

// pullSecret creates a secret with the credentials of a Docker configuration in the namespace.
func pullSecret(t testing.TB, dir string) (name string) {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	must(t, err)
	secrets := clustertest.Secrets(admin(t), namespace())
	name = "pull-" + strings.ToLower(rand.Text())
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: config}}
	must(t, second(secrets.Create(t.Context(), s, metav1.CreateOptions{})))
	t.Cleanup(func() { must(t, secrets.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	return name
}

// foreign creates a pod other than a sandbox, conforming to the restricted Pod Security Standard.
func foreign(t testing.TB, labels map[string]string) []string {
	t.Helper()
	no, yes, user, now := false, true, int64(1000), int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "workcell-foreign-" + strings.ToLower(rand.Text())[:10], Labels: map[string]string{}},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: []corev1.Container{{
			Name: "sandbox", Image: debianImage, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "1000"},
			SecurityContext: &corev1.SecurityContext{
				RunAsUser: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		}}},
	}
	for k, v := range labels {
		pod.Labels[k] = strings.NewReplacer(":", "-", "/", "-").Replace(v)
	}
	pods := clustertest.Pods(admin(t), namespace())
	pod, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, pods.Delete(context.Background(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	})
	return []string{pod.Name, pod.Name + "." + strings.ToLower(rand.Text()), string(pod.UID)}
}
