package kubernetes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/workcell-dev/workcell/backend"
)

// TestPullReasons verifies that the error for an unpullable image contains the kubelet's reason.
func TestPullReasons(t *testing.T) {
	t.Parallel()
	const unpacked = `rpc error: code = Unknown desc = failed to pull and unpack image "r.test/a:1": `
	const resolved = `failed to resolve reference "r.test/a:1": `
	for _, c := range []struct{ reason, message, want string }{
		{"ErrImagePull", unpacked + resolved + `unexpected status from HEAD request to https://r.test/v2/a/manifests/1: 401 Unauthorized`,
			"unexpected status from HEAD request to https://r.test/v2/a/manifests/1: 401 Unauthorized"},
		{"ErrImagePull", unpacked + resolved + `failed to do request: Head "https://r.test/v2/": dial tcp: lookup r.test: no such host`,
			"dial tcp: lookup r.test: no such host"},
		{"ImagePullBackOff", `Back-off pulling image "r.test/a:1": ErrImagePull: ` + unpacked + resolved + `r.test/a:1: not found`,
			"r.test/a:1: not found"},
		{"ErrImageNeverPull", `Container image "r.test/a:1" is not present with pull policy of Never`,
			`Container image "r.test/a:1" is not present with pull policy of Never`},
		{"InvalidImageName", "", "InvalidImageName"},
	} {
		err := trouble(time.Now(), podWaiting(c.reason, c.message), "a:1")
		want := "kubernetes: the node cannot pull image a:1: " + c.want + ": " + backend.ErrImage.Error()
		if !errors.Is(err, backend.ErrImage) || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", c.reason, err, want)
		}
	}
}

// TestRejections verifies which rejections are final: missing permissions and objects that break a rule of the
// namespace.
func TestRejections(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	for text, want := range map[string]error{
		`User "u" cannot create resource "pods" in API group "" in the namespace "n"`: backend.ErrPermission,
		"exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1":         backend.ErrCapacity,
		"status unknown for quota: q, resources: pods":                                backend.ErrCapacity,
		"error looking up service account n/default: serviceaccount not found":        backend.ErrUnavailable,
		"not yet ready to handle request":                                             backend.ErrUnavailable,
		`violates PodSecurity "restricted:latest": runAsNonRoot != true`:              backend.ErrPermission,
		"unable to validate against any security context constraint: []":              backend.ErrPermission,
		"unable to create new content in namespace n because it is being terminated":  backend.ErrUnavailable,
		"maximum memory usage per Container is 1Gi, but limit is 2Gi":                 backend.ErrInvalid,
	} {
		if err := apierrors.NewForbidden(pods, "a", errors.New(text)); !errors.Is(classify(err), want) {
			t.Errorf("%v: %v, want %v", err, classify(err), want)
		}
	}
	if err := classify(apierrors.NewUnauthorized("Unauthorized")); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("rejected credentials: %v, want ErrUnavailable", err)
	}
}

// TestBusyRegistry verifies that pulls limited by the node or the registry are retried, and that a registry busy for
// longer is an outage.
func TestBusyRegistry(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]error{
		"pull QPS exceeded": backend.ErrUnavailable,
		"unexpected status from HEAD request to https://r.test/v2/a/manifests/1: 429 Too Many Requests": backend.ErrUnavailable,
		"toomanyrequests: You have reached your pull rate limit":                                        backend.ErrUnavailable,
		"unexpected status: 503 Service Unavailable":                                                    backend.ErrUnavailable,
		`Get "https://r.test/v2/": net/http: TLS handshake timeout`:                                     backend.ErrImage,
		"dial tcp 192.0.2.1:443: i/o timeout":                                                           backend.ErrImage,
		`Back-off pulling image "r.test:5000/a:1"`:                                                      backend.ErrImage,
	} {
		pod := podWaiting("ImagePullBackOff", message)
		now, late := trouble(time.Now(), pod, "a:1"), trouble(time.Now().Add(-2*pullRetries), pod, "a:1")
		if now != nil || !errors.Is(late, want) || !strings.Contains(fmt.Sprint(late), message) {
			t.Errorf("%v, later %v, want %v", now, late, want)
		}
	}
}

// podWaiting returns a pod whose container waits.
func podWaiting(reason, message string) *corev1.Pod {
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	return &corev1.Pod{Status: corev1.PodStatus{
		ContainerStatuses: []corev1.ContainerStatus{{Name: containerName, State: state}},
	}}
}

// TestStartReasons verifies that the error for a container that the node cannot start has no paths of the node. It is
// reported at once, unless the node is only busy.
func TestStartReasons(t *testing.T) {
	t.Parallel()
	const reason, start = "CreateContainerError", "kubernetes: the node cannot start the sandbox: CreateContainerError: "
	late := time.Now().Add(-2 * crowded)
	for _, c := range []struct {
		begin         time.Time
		message, want string
	}{
		{time.Now(), "mount callback failed on /var/lib/containerd/tmpmounts/1: invalid argument",
			start + "mount callback failed on <path>: invalid argument: invalid argument"},
		{time.Now(), "context deadline exceeded", "<nil>"},
		{time.Now(), `failed to reserve container name "sandbox_0": name "sandbox_0" is reserved for "1"`, "<nil>"},
		{late, "context deadline exceeded", "<nil>"}, // the image was pulled for long, and the runtime's time limit is long
		{time.Now().Add(-2 * startRetries), "context deadline exceeded", start + "context deadline exceeded: engine unavailable"},
	} {
		if err := trouble(c.begin, podWaiting(reason, c.message), "a:1"); fmt.Sprint(err) != c.want {
			t.Errorf("\n got %v\nwant %s", err, c.want)
		}
	}
	for text, want := range map[string]error{
		"0/1 nodes are available: 1 Insufficient memory.":                           backend.ErrCapacity,
		"0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims": backend.ErrUnavailable,
		`persistentvolumeclaim "workcell-a" not found`:                              backend.ErrUnavailable,
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: text,
		}}}}
		now, then := unplaced(time.Now(), crowded, pod), unplaced(late, crowded, pod)
		if now != nil || !errors.Is(then, want) {
			t.Errorf("without a node: %v, later %v, want %v", now, then, want)
		}
	}
}

// TestRejectedByNode verifies the errors for pods that the kubelet rejects.
func TestRejectedByNode(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]error{
		"OutOfcpu": backend.ErrCapacity, "OutOfephemeral-storage": backend.ErrCapacity, "Evicted": backend.ErrLost,
		"NodeShutdown": backend.ErrUnavailable, "NodeAffinity": backend.ErrUnavailable,
		"UnexpectedAdmissionError": backend.ErrUnavailable,
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason}}
		if err := trouble(time.Now(), pod, ""); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", reason, err, want)
		}
	}
}

// TestInjectedContainers verifies that only the sandbox's own container counts as the sandbox, and that the error for a
// failed init container contains the message of the container only if it is the guest agent's.
func TestInjectedContainers(t *testing.T) {
	t.Parallel()
	end := corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, Message: "no space"}
	exited := corev1.ContainerState{Terminated: &end}
	mesh := corev1.ContainerStatus{Name: "mesh", ImageID: "mesh@1", State: exited}
	guest := corev1.ContainerStatus{Name: volumeGuest, State: exited}
	own := corev1.ContainerStatus{Name: containerName, ImageID: "own@1"}
	for _, all := range [][]corev1.ContainerStatus{{mesh, own}, {own, mesh}} {
		pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: all}}
		if err := trouble(time.Now(), pod, ""); err != nil || imageOf(pod) != "own@1" || ended(pod) {
			t.Errorf("%v, image %s, ended %v", err, imageOf(pod), ended(pod))
		}
	}
	for want, pod := range map[string]corev1.PodStatus{
		"init container guest failed: Error, exit code 1: no space": {InitContainerStatuses: []corev1.ContainerStatus{guest}},
		"init container mesh failed: Error, exit code 1":            {InitContainerStatuses: []corev1.ContainerStatus{mesh}},
		"the sandbox exited: Error, exit code 1": {
			ContainerStatuses: []corev1.ContainerStatus{mesh, {Name: containerName, State: exited}},
		},
	} {
		err := trouble(time.Now(), &corev1.Pod{Status: pod}, "")
		if want = "kubernetes: " + want + ": " + backend.ErrLost.Error(); fmt.Sprint(err) != want {
			t.Errorf("\n got %v\nwant %s", err, want)
		}
	}
}

// TestKeysOfPods verifies which labels and annotations of pods New rejects, and that one error lists all of them.
func TestKeysOfPods(t *testing.T) {
	t.Parallel()
	if err := errors.Join(checkKeys("label", map[string]string{"example.com/team": "ml", "cost": ""}),
		checkKeys("annotation", map[string]string{"example.com/note": "any text: even this"})); err != nil {
		t.Error(err)
	}
	for what, all := range map[string]map[string]string{
		"label":      {"a b": "c", "team": "not a value", "app.kubernetes.io/name": "x", backend.LabelInstance: "x"},
		"annotation": {"/": "", annotationContainer: "x", labelConfig: "{}"},
	} {
		err := checkKeys(what, all)
		if !errors.Is(err, backend.ErrInvalid) || strings.Count(err.Error(), "of pods in kubernetes."+what+"s: ") != len(all) {
			t.Errorf("%ss: %v", what, err)
		}
	}
}
