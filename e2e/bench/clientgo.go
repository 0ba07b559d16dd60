package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/workcell-dev/workcell/internal/clustertest"
)

// clientGo is a baseline. It does the same as `kubectl run`, `kubectl wait`, and `kubectl exec`, in a pod with the same
// limits.
type clientGo struct {
	config    *rest.Config
	namespace string
	remove    func() error
	image     string
}

func newClientGo(ctx context.Context, image string) (*clientGo, error) {
	config, err := clustertest.Config()
	if err != nil {
		return nil, err
	}
	namespace, remove, err := clustertest.Namespace(ctx)
	return &clientGo{config, namespace, remove, image}, err
}

func (e *clientGo) name() string { return "client_go" }
func (e *clientGo) close() error { return e.remove() }

// open creates a pod like ours with a sleeping main process, and waits until it runs.
func (e *clientGo) open(ctx context.Context) (*contender, error) {
	pods := clustertest.Pods(e.config, e.namespace)
	pod, err := pods.Create(ctx, e.pod(), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	remove := func() error {
		at := int64(0)
		return pods.Delete(context.WithoutCancel(ctx), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &at})
	}
	if err := e.runs(ctx, pod); err != nil {
		return nil, errors.Join(err, remove())
	}
	return &contender{exec: func() error { return e.exec(ctx, pod.Name, "/bin/true") }, remove: remove}, nil
}

func (e *clientGo) pod() *corev1.Pod {
	no, yes, user := false, true, int64(1000)
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bench-" + strings.ToLower(rand.Text())},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Volumes: []corev1.Volume{{Name: "workspace", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers: []corev1.Container{{
				Name: "main", Image: e.image, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "100000"},
				VolumeMounts: []corev1.VolumeMount{{Name: "workspace", MountPath: "/workspace"}},
				Resources: corev1.ResourceRequirements{
					Limits: limits, Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// runs waits for the phase Running.
func (e *clientGo) runs(ctx context.Context, pod *corev1.Pod) error {
	watch, err := clustertest.Pods(e.config, e.namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + pod.Name, ResourceVersion: pod.ResourceVersion,
	})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if now, ok := event.Object.(*corev1.Pod); ok && now.Status.Phase == corev1.PodRunning {
			return nil
		}
	}
	return fmt.Errorf("the pod %s does not run", pod.Name)
}

// exec runs a program and waits for the exit code, like `kubectl exec`.
func (e *clientGo) exec(ctx context.Context, pod, program string) error {
	req := clustertest.Pods(e.config, e.namespace).GetClient().Post().Resource("pods").Namespace(e.namespace).Name(pod).SubResource("exec").
		Param("command", program).Param("stdout", "true").Param("stderr", "true")
	executor, err := remotecommand.NewWebSocketExecutor(e.config, http.MethodGet, req.URL().String())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
}
