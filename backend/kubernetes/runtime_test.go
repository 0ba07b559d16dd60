package kubernetes_test

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"strings"
	"testing"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
)

// TestRuntimeClass verifies that a sandbox runs with the requested RuntimeClass. The handler of a RuntimeClass determines
// the isolation. The default runtime counts as a container. A missing class does too, as soon as a sandbox needs it.
func TestRuntimeClass(t *testing.T) {
	t.Parallel()
	prefix, classes := "workcell-"+strings.ToLower(rand.Text())+"-", runtimeClasses(admin(t), "")
	want, names := map[string]backend.Isolation{"": backend.IsolationContainer}, []string{}
	for handler, isolation := range map[string]backend.Isolation{
		"runc": backend.IsolationContainer, "runsc": backend.IsolationKernel, "kata-qemu": backend.IsolationVM, "": backend.IsolationContainer,
	} {
		name := prefix + handler + "x"
		names = append(names, name)
		if handler == "" {
			continue
		}
		want[name] = isolation
		class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}
		_, err := classes.Create(t.Context(), class, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() { must(t, classes.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	}
	b := newBackend(t, func(o *kubernetes.Options) { o.RuntimeClasses = names })
	if got := b.Capabilities().Isolation; !maps.Equal(got, want) {
		t.Errorf("isolation %v, want %v", got, want)
	}
	spec := newSpec()
	spec.OCIRuntime = prefix + "runcx"
	info := backendtest.Create(t, b, spec)
	if class := podOf(t, info.ID).Spec.RuntimeClassName; class == nil || *class != spec.OCIRuntime {
		t.Errorf("the pod has the runtime class %v", class)
	}
	spec = newSpec()
	spec.OCIRuntime, spec.Isolation = prefix+"runscx", backend.IsolationVM
	if _, err := b.Create(t.Context(), spec); !errors.As(err, new(*backend.IsolationError)) {
		t.Errorf("a virtual machine of gVisor: %v", err)
	}
	spec.OCIRuntime, spec.Isolation = prefix+"x", backend.IsolationKernel
	if _, err := b.Create(t.Context(), spec); !errors.As(err, new(*backend.IsolationError)) {
		t.Errorf("a missing class: %v", err)
	}
}
