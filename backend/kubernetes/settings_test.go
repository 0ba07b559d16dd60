package kubernetes_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

var priorityClasses = clustertest.Kind[schedulingv1.PriorityClass, schedulingv1.PriorityClassList](
	schedulingv1.SchemeGroupVersion, "priorityclasses")

// TestPodSettings verifies that the operator's settings apply to pods, even after a stop.
func TestPodSettings(t *testing.T) {
	t.Parallel()
	name := "workcell-" + strings.ToLower(rand.Text())
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: -10}
	classes := priorityClasses(admin(t), "")
	_, err := classes.Create(t.Context(), class, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, classes.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	toleration := corev1.Toleration{
		Key: "sandboxes", Operator: corev1.TolerationOpEqual, Value: "only", Effect: corev1.TaintEffectNoSchedule,
	}
	note := map[string]string{"example.com/note": "kept for a day"}
	b := newBackend(t, func(o *kubernetes.Options) {
		o.PriorityClass, o.Tolerations = name, []corev1.Toleration{toleration}
		o.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"}
		o.Labels, o.Annotations = map[string]string{"example.com/team": "ml"}, note
	})
	info := backendtest.Create(t, b, newSpec())
	for _, when := range []string{"created", "started again"} {
		pod := podOf(t, info.ID)
		if s := pod.Spec; s.NodeSelector[corev1.LabelOSStable] != "linux" || s.PriorityClassName != name ||
			*s.Priority != class.Value || !slices.Contains(s.Tolerations, toleration) ||
			pod.Labels["example.com/team"] != "ml" || pod.Annotations["example.com/note"] != "kept for a day" {
			t.Errorf("%s: %+v, %+v", when, pod.ObjectMeta, pod.Spec)
		}
		must(t, errors.Join(b.Stop(t.Context(), info.ID), b.Start(t.Context(), info.ID)))
	}
	backendtest.Dial(t, b, info.ID)
	reserved := map[string]string{backend.LabelInstance: "x"}
	_, err = kubernetes.New(t.Context(), &kubernetes.Options{Config: admin(t), Labels: reserved})
	backendtest.Fails(t, "New with a label that the driver sets", err, backend.ErrInvalid)
}
