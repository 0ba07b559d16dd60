package kubernetes_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
)

// TestRuntimeClass: a sandbox runs with the RuntimeClass that it asks for, if the operator lists it.
func TestRuntimeClass(t *testing.T) {
	t.Parallel()
	name := "workcell-" + strings.ToLower(rand.Text())
	classes := runtimeClasses(admin(t), "")
	_, err := classes.Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "runc"}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, classes.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	spec := newSpec()
	spec.OCIRuntime = name
	if _, err := newBackend(t, nil).Create(t.Context(), spec); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("a class that is not listed: %v, want ErrUnsupported", err)
	}
	b := newBackend(t, func(o *kubernetes.Options) { o.RuntimeClasses = []string{name} })
	info := backendtest.Create(t, b, spec)
	if class := podOf(t, info.ID).Spec.RuntimeClassName; class == nil || *class != name {
		t.Errorf("the pod has the runtime class %v", class)
	}
}
