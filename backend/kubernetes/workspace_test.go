package kubernetes_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

// roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// through returns a configuration whose requests go through wrap.
func through(t *testing.T, wrap func(*http.Request, http.RoundTripper) (*http.Response, error)) *rest.Config {
	t.Helper()
	config, err := clustertest.Config()
	must(t, err)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return wrap(r, next) })
	})
	return config
}

// claimOf returns the UID of a session's claim, or an empty string if the claim does not exist.
func claimOf(t *testing.T, ns string, spec backend.Spec) types.UID {
	t.Helper()
	list, err := clustertest.PersistentVolumeClaims(admin(t), ns).List(t.Context(), metav1.ListOptions{LabelSelector: backend.LabelID + "=" + spec.ID})
	if err != nil || len(list.Items) > 1 {
		t.Fatalf("%d claims, %v", len(list.Items), err)
	}
	for _, c := range list.Items {
		return c.UID
	}
	return ""
}

// TestClaimOfCreateThatFails verifies which claims remain after a Create fails because the caller gave up. Existing
// claims are kept. Claims created by this Create are removed, even if the response to the creation was lost.
func TestClaimOfCreateThatFails(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	kept := newSpec()
	must(t, b.Remove(t.Context(), backendtest.Create(t, b, kept).ID, backend.RemoveOptions{}))
	had := claimOf(t, namespace(), kept)
	t.Cleanup(func() { must(t, b.RemoveWorkspace(context.Background(), instance, kept.ID)) })
	if had == "" {
		t.Fatal("no claim is kept")
	}
	for name, c := range map[string]struct {
		spec    backend.Spec
		request string // request whose response is lost; empty means the first
		want    types.UID
	}{
		"kept": {kept, "", had}, "new": {newSpec(), http.MethodPost, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			var lost atomic.Bool
			config := through(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
				is := strings.Contains(r.URL.Path, "/persistentvolumeclaims") && (c.request == "" || r.Method == c.request)
				if !is || !lost.CompareAndSwap(false, true) {
					return next.RoundTrip(r)
				}
				giveUp()
				if c.request != "" {
					resp, err := next.RoundTrip(r)
					if err != nil {
						return resp, err
					}
					_ = resp.Body.Close() // the lost response
				}
				<-r.Context().Done()
				return nil, r.Context().Err()
			})
			silent := newBackend(t, func(o *kubernetes.Options) { o.Config, o.CallTimeout = config, 10*time.Second })
			if info, err := silent.Create(ctx, c.spec); err == nil {
				backendtest.Remove(t, silent, info.ID)
				t.Error("Create has succeeded")
			}
			must(t, silent.Close()) // waits for the background cleanup
			if got := claimOf(t, namespace(), c.spec); got != c.want || !lost.Load() {
				t.Errorf("claim %q, want %q; answer lost: %v", got, c.want, lost.Load())
			}
		})
	}
}

// TestQuotaOfClaims verifies that an existing workspace is used even if the quota allows no new claims.
func TestQuotaOfClaims(t *testing.T) {
	t.Parallel()
	api, ns := admin(t), ownNamespace(t)
	limitTo(t, ns, corev1.ResourcePersistentVolumeClaims, "1")
	used := func(n int64) bool {
		q, err := quotas(api, ns).Get(t.Context(), "limit", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		is, ok := q.Status.Used[corev1.ResourcePersistentVolumeClaims]
		return ok && is.Value() == n
	}
	backendtest.Eventually(t, "the quota", func() bool { return used(0) })
	b := newBackend(t, func(o *kubernetes.Options) { o.Namespace = ns })
	spec := newSpec()
	must(t, b.Remove(t.Context(), backendtest.Create(t, b, spec).ID, backend.RemoveOptions{}))
	backendtest.Eventually(t, "the quota to be used up", func() bool { return used(1) })
	backendtest.Fails(t, "another sandbox", second(b.Create(t.Context(), newSpec())), backend.ErrCapacity)
	backendtest.Create(t, b, spec)
}

// TestNoClassAnyMore verifies that a backend without a storage class removes claims from an earlier configuration, and
// that a user without permission to read claims has none.
func TestNoClassAnyMore(t *testing.T) {
	t.Parallel()
	had, plain := newBackend(t, nil), newBackend(t, func(o *kubernetes.Options) { o.StorageClass = "" })
	removed, kept := newSpec(), newSpec()
	must(t, plain.Remove(t.Context(), backendtest.Create(t, had, removed).ID, backend.RemoveOptions{Volumes: true}))
	must(t, had.Remove(t.Context(), backendtest.Create(t, had, kept).ID, backend.RemoveOptions{}))
	must(t, plain.RemoveWorkspace(t.Context(), instance, kept.ID))
	for _, spec := range []backend.Spec{removed, kept} {
		if left := claimOf(t, namespace(), spec); left != "" {
			t.Errorf("claim %s is left", left)
		}
	}
	rules := slices.DeleteFunc(role(t, "role.yaml"), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "persistentvolumeclaims") })
	blind := newBackend(t, func(o *kubernetes.Options) { o.Config, o.StorageClass = as(t, namespace(), rules), "" })
	must(t, everything(t, blind, namespace(), newSpec()))
}
