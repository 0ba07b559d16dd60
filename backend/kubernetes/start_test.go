package kubernetes_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

// TestStartGivenUp verifies that Start returns when its context ends, and that the sandbox still exists. Without its
// claim, Start reports it lost.
func TestStartGivenUp(t *testing.T) {
	t.Parallel()
	var name string
	claims := clustertest.PersistentVolumeClaims(admin(t), namespace())
	b := newBackend(t, func(o *kubernetes.Options) {
		o.Config = through(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			pods := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods")
			if pods && name != "" && !r.URL.Query().Has("dryRun") { // without the claim, the pod cannot be scheduled
				_ = claims.Delete(r.Context(), name, metav1.DeleteOptions{}) // the last Start of the test checks this
			}
			return next.RoundTrip(r)
		})
	})
	info := backendtest.Create(t, b, newSpec())
	must(t, b.Stop(t.Context(), info.ID))
	name, _, _ = strings.Cut(info.ID, ".")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	backendtest.Fails(t, "Start", b.Start(ctx, info.ID), context.DeadlineExceeded)
	if now, err := b.Get(t.Context(), info.ID); err != nil || now.ID != info.ID {
		t.Errorf("Get: %+v, %v", now, err)
	}
	must(t, b.Stop(t.Context(), info.ID))
	if now, err := b.Get(t.Context(), info.ID); err != nil || now.State != backend.StateStopped {
		t.Errorf("Get: %+v, %v", now, err)
	}
	backendtest.Fails(t, "Start without the claim", b.Start(t.Context(), info.ID), backend.ErrLost)
}

// TestStartTwice verifies that a second Start does not replace the pod of the first.
func TestStartTwice(t *testing.T) {
	t.Parallel()
	first := newBackend(t, nil)
	info := backendtest.Create(t, first, newSpec())
	must(t, first.Stop(t.Context(), info.ID))
	var started types.UID
	second := newBackend(t, func(o *kubernetes.Options) {
		o.Config = through(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.URL.Query().Has("dryRun") && started == "" { // the second Start has seen the stopped sandbox
				backendtest.Fails(t, "the first Start", first.Start(r.Context(), info.ID), nil)
				started = podOf(t, info.ID).UID
			}
			return next.RoundTrip(r)
		})
	})
	must(t, second.Start(t.Context(), info.ID))
	if now := podOf(t, info.ID).UID; started == "" || now != started {
		t.Errorf("the pod of the first Start was %q, now there is %q", started, now)
	}
	backendtest.Dial(t, first, info.ID)
}

// TestStartRefused verifies that a sandbox is unchanged if Start is rejected, and that a later Start succeeds.
func TestStartRefused(t *testing.T) {
	t.Parallel()
	ns := ownNamespace(t)
	b := newBackend(t, func(o *kubernetes.Options) { o.Namespace = ns })
	info := backendtest.Create(t, b, newSpec())
	must(t, b.Stop(t.Context(), info.ID))
	limitTo(t, ns, corev1.ResourcePods, "0")
	backendtest.Fails(t, "Start", b.Start(t.Context(), info.ID), backend.ErrCapacity)
	if now, err := b.Get(t.Context(), info.ID); err != nil || now.State != backend.StateStopped {
		t.Fatalf("Get: %+v, %v", now, err)
	}
	must(t, quotas(admin(t), ns).Delete(t.Context(), "limit", metav1.DeleteOptions{}))
	backendtest.Eventually(t, "the start", func() bool { err := b.Start(t.Context(), info.ID); return err == nil })
	backendtest.Dial(t, b, info.ID)
}

// TestStartDebugged verifies that Start omits the ephemeral debug containers of the previous pod.
func TestStartDebugged(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	info := backendtest.Create(t, b, newSpec())
	pods := clustertest.Pods(admin(t), namespace())
	backendtest.Eventually(t, "the debugger", func() bool { // retried because the kubelet also updates the pod
		pod := podOf(t, info.ID)
		main := pod.Spec.Containers[0]
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debugger", Image: main.Image, ImagePullPolicy: corev1.PullNever, Command: []string{"true"}, SecurityContext: main.SecurityContext,
		}}}
		update := pods.GetClient().Put().Namespace(namespace()).Resource("pods").Name(pod.Name)
		return update.SubResource("ephemeralcontainers").Body(pod).Do(t.Context()).Error() == nil
	})
	must(t, errors.Join(b.Stop(t.Context(), info.ID), b.Start(t.Context(), info.ID)))
	backendtest.Dial(t, b, info.ID)
}
