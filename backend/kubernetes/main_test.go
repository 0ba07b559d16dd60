package kubernetes_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/clustertest"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

const (
	pythonImage = "workcell/python:3.11"
	debianImage = "workcell/debian:12"
)

// instance labels all objects of this test run.
var instance = "test-" + strings.ToLower(rand.Text())

// namespace returns the namespace of this test run.
var namespace = sync.OnceValue(func() string { return os.Getenv(clustertest.NamespaceVariable) })

func TestMain(m *testing.M) {
	if code := clustertest.Main(tests{m}); code != 0 {
		os.Exit(code)
	}
	if err := leaktest.Find(clustertest.Leaks()...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tests runs the tests of this package and checks for leftovers.
type tests struct{ *testing.M }

func (t tests) Run() int {
	if code := t.M.Run(); code != 0 {
		return code
	}
	if left, err := leftovers(context.Background(), instance); len(left) != 0 || err != nil {
		fmt.Fprintln(os.Stderr, "left behind:", left, err)
		return 1
	}
	return 0
}

// leftovers lists the objects of an instance in the namespace.
func leftovers(ctx context.Context, instance string) ([]string, error) {
	api, err := clustertest.Config()
	if err != nil {
		return nil, err
	}
	ours := metav1.ListOptions{LabelSelector: backend.LabelInstance + "=" + instance}
	var left []string
	pods, err := clustertest.Pods(api, namespace()).List(ctx, ours)
	if err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		left = append(left, "pod "+p.Name)
	}
	claims, err := clustertest.PersistentVolumeClaims(api, namespace()).List(ctx, ours)
	if err != nil {
		return nil, err
	}
	for _, c := range claims.Items {
		left = append(left, "claim "+c.Name)
	}
	return left, nil
}

func newBackend(t testing.TB, adjust func(*kubernetes.Options)) *kubernetes.Backend {
	t.Helper()
	o := clustertest.Options(namespace())
	if adjust != nil {
		adjust(o)
	}
	b, err := kubernetes.New(t.Context(), o)
	return backendtest.Closing(t, b, err)
}

// admin returns the configuration of a client with administrator permissions.
func admin(t testing.TB) *rest.Config {
	t.Helper()
	config, err := clustertest.Config()
	must(t, err)
	return config
}

var (
	// Access reviews cannot be listed.
	accessReviews   = clustertest.Kind[authorizationv1.SubjectAccessReview, metav1.List](authorizationv1.SchemeGroupVersion, "subjectaccessreviews")
	networkPolicies = clustertest.Kind[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList](networkingv1.SchemeGroupVersion, "networkpolicies")
	quotas          = clustertest.Kind[corev1.ResourceQuota, corev1.ResourceQuotaList](corev1.SchemeGroupVersion, "resourcequotas")
	roleBindings    = clustertest.Kind[rbacv1.RoleBinding, rbacv1.RoleBindingList](rbacv1.SchemeGroupVersion, "rolebindings")
	roles           = clustertest.Kind[rbacv1.Role, rbacv1.RoleList](rbacv1.SchemeGroupVersion, "roles")
	runtimeClasses  = clustertest.Kind[nodev1.RuntimeClass, nodev1.RuntimeClassList](nodev1.SchemeGroupVersion, "runtimeclasses")
)

// podOf returns the pod of a sandbox.
func podOf(t testing.TB, id string) *corev1.Pod {
	t.Helper()
	name, _, _ := strings.Cut(id, ".")
	pod, err := clustertest.Pods(admin(t), namespace()).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return pod
}

// limitTo creates a quota in a namespace and waits until the server enforces it.
func limitTo(t testing.TB, ns string, what corev1.ResourceName, most string) {
	t.Helper()
	all := quotas(admin(t), ns)
	hard := corev1.ResourceList{what: resource.MustParse(most)}
	_, err := all.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "limit"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
	}, metav1.CreateOptions{})
	must(t, err)
	backendtest.Eventually(t, "the quota", func() bool {
		q, err := all.Get(t.Context(), "limit", metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) > 0
	})
}

func newSpec() backend.Spec { return backendtest.Spec(instance, debianImage) }

var must = checktest.Must

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }
