package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// classify returns the sentinel for errors specific to the API server. The error for a missing permission contains the
// verb and the resource.
func classify(err error) error {
	text := err.Error()
	switch {
	case apierrors.IsUnexpectedServerError(err) && !apierrors.IsRequestEntityTooLargeError(err):
		return errForeign
	case apierrors.IsUnauthorized(err): // the server may not be able to check credentials now
		return errUnauthorized
	case apierrors.IsForbidden(err) && (strings.Contains(text, "exceeded quota") ||
		strings.Contains(text, "status unknown for quota")), // the quota is new
		// The server stopped counting because many pods were created at once.
		apierrors.IsConflict(err) && strings.Contains(text, "resourcequotas"):
		return backend.ErrCapacity
	case apierrors.IsForbidden(err):
		return forbidden(text)
	case apierrors.IsNotFound(err), apierrors.IsGone(err):
		return backend.ErrNotFound
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
		return backend.ErrExists
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return backend.ErrInvalid
	case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return backend.ErrUnavailable
	}
	return nil
}

// forbidden returns the sentinel for the text of a rejection. An admission plugin rejects an object, or every object
// while the server or the namespace is new or the namespace is being deleted.
func forbidden(text string) error {
	switch {
	case !strings.Contains(text, " is forbidden: "), strings.Contains(text, `" cannot `), // a webhook or a missing verb
		strings.Contains(text, "violates PodSecurity"), strings.Contains(text, "security context constraint"): // of OpenShift
		return backend.ErrPermission
	case strings.Contains(text, "error looking up service account"), strings.Contains(text, "at this time"),
		strings.Contains(text, "not yet ready to handle request"), strings.Contains(text, "it is being terminated"):
		return backend.ErrUnavailable
	}
	return backend.ErrInvalid
}

var errUnauthorized = fmt.Errorf("%w: the API server rejects the credentials", backend.ErrUnavailable)

// errForeign is returned for a response without a Status, for example a page of a proxy while the API server restarts.
// Such a response does not show whether an object exists.
var errForeign = fmt.Errorf("%w: the response is not from the API server", backend.ErrUnavailable)

var errRemoved = fmt.Errorf("kubernetes: the sandbox was removed while it was being created: %w", backend.ErrLost)

// unplaced returns the reason why a pod created at begin has no node after limit, or nil.
func unplaced(begin time.Time, limit time.Duration, pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		waits := c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
		if waits && c.Reason == corev1.PodReasonUnschedulable && time.Since(begin) > limit {
			if strings.Contains(strings.ToLower(c.Message), "persistentvolumeclaim") {
				return fmt.Errorf("kubernetes: the workspace's volume is missing; check kubernetes.storage_class: %.200s: %w",
					c.Message, backend.ErrUnavailable)
			}
			return fmt.Errorf("kubernetes: no node can run the sandbox: %.200s: %w", c.Message, backend.ErrCapacity)
		}
	}
	return nil
}

// trouble returns the reason why a pod created at begin can never run, or nil if it may still run. It ignores timeouts
// of a node for a while, because the kubelet retries.
func trouble(begin time.Time, pod *corev1.Pod, image string) error {
	if pod.DeletionTimestamp != nil {
		return errRemoved
	}
	// The sandbox does not need a container that another program added, but it starts after all init containers.
	own := statusOf(pod)
	for _, s := range append(slices.Clone(pod.Status.InitContainerStatuses), own) {
		if w := s.State.Waiting; w != nil {
			switch w.Reason {
			case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
				"RegistryUnavailable":
				busy := registryBusy(w.Message)
				unclear := strings.Contains(w.Message, "timeout") || // kubelets before 1.32 omit the reason of a pause:
					w.Reason == "ImagePullBackOff" && !strings.Contains(w.Message, ": ")
				switch {
				case (busy || unclear) && time.Since(begin) < pullRetries:
					continue
				case busy:
					return fmt.Errorf("kubernetes: the node cannot pull image %s yet: %s: %w",
						named(&s, image), unpulled(w), backend.ErrUnavailable)
				}
				return fmt.Errorf("kubernetes: the node cannot pull image %s: %s: %w",
					named(&s, image), unpulled(w), backend.ErrImage)
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				if timedOut(w.Message) && time.Since(begin) < startRetries {
					continue
				}
				kind := backend.ErrInvalid
				if timedOut(w.Message) {
					kind = backend.ErrUnavailable
				}
				return fmt.Errorf("kubernetes: the node cannot start the sandbox: %s: %s: %w", w.Reason, kit.Scrub(w.Message), kind)
			}
		}
		if t := s.State.Terminated; t != nil && (s.Name == containerName || t.ExitCode != 0) {
			return endOf(pod, s.Name, t)
		}
	}
	if ended(pod) {
		return endOf(pod, "", nil)
	}
	return nil
}

// startRetries is how long timeouts of a node are ignored. A kubelet waits two minutes for the container runtime. An
// image can make each attempt time out.
const startRetries = 6 * time.Minute

// pullRetries is how long a busy registry is ignored, because the kubelet retries with growing pauses.
const pullRetries = 2 * time.Minute

// registryBusy reports whether a later pull may succeed: the node or the registry limits the rate, or the registry is
// overloaded. It does not match refused connections, because the address may be wrong.
func registryBusy(message string) bool {
	return slices.ContainsFunc([]string{
		"QPS exceeded", "429 Too Many", "toomanyrequests", "502 Bad Gateway", "503 Service", "504 Gateway",
	}, func(text string) bool { return strings.Contains(message, text) })
}

// unpulled returns the kubelet's reason without prefixes repeating the image.
func unpulled(w *corev1.ContainerStateWaiting) string {
	text := w.Message
	if at := strings.LastIndex(text, " desc = "); at >= 0 {
		text = text[at+len(" desc = "):]
	}
	for strings.HasPrefix(text, "failed to ") {
		_, reason, ok := strings.Cut(text, `": `)
		if !ok {
			break
		}
		text = reason
	}
	return kit.Scrub(cmp.Or(text, w.Reason))
}

// timedOut reports whether a container runtime took too long. After a timeout, it also refuses the kubelet's next
// requests until the first one has ended.
func timedOut(message string) bool {
	return strings.Contains(message, "context deadline exceeded") || strings.Contains(message, "is reserved for")
}

// endOf returns the reason why a pod ended. t is how the named container ended, if known. Only the message of the
// guest agent's init container is used: the message of the sandbox's container is from its processes, and the messages
// of other programs' containers may contain secrets.
func endOf(pod *corev1.Pod, container string, t *corev1.ContainerStateTerminated) error {
	switch {
	case pod.Status.Reason == "Evicted":
		return fmt.Errorf("kubernetes: the node evicted the sandbox: %.200s: %w", pod.Status.Message, backend.ErrLost)
	case strings.HasPrefix(pod.Status.Reason, "OutOf"): // and a resource
		return fmt.Errorf("kubernetes: the node has too few resources: %s: %w", pod.Status.Reason, backend.ErrCapacity)
	case slices.Contains([]string{"NodeShutdown", "NodeAffinity", "UnexpectedAdmissionError"}, pod.Status.Reason):
		return fmt.Errorf("kubernetes: the node rejected the sandbox: %s: %w", pod.Status.Reason, backend.ErrUnavailable)
	case t != nil && t.Reason == "StartError":
		return fmt.Errorf("kubernetes: no guest agent for this node in the image; set kubernetes.guest_image "+
			"(Options.GuestImage): %w", backend.ErrInvalid)
	case t != nil && container == volumeGuest:
		return fmt.Errorf("kubernetes: init container %s failed: %s, exit code %d: %s: %w",
			container, t.Reason, t.ExitCode, kit.Scrub(cmp.Or(t.Message, "it has no log")), backend.ErrLost)
	case t != nil && container != containerName:
		return fmt.Errorf("kubernetes: init container %s failed: %s, exit code %d: %w",
			container, t.Reason, t.ExitCode, backend.ErrLost)
	case t != nil:
		return fmt.Errorf("kubernetes: the sandbox exited: %s, exit code %d: %w", t.Reason, t.ExitCode, backend.ErrLost)
	}
	return fmt.Errorf("kubernetes: the sandbox exited: %w", backend.ErrLost)
}

// lost returns the reason why the guest agent of an ended pod cannot be reached.
func lost(pod *corev1.Pod) error {
	if pod.Status.Reason == "Evicted" {
		return endOf(pod, "", nil)
	}
	return fmt.Errorf("kubernetes: the sandbox is %s: %w", backend.StateStopped, backend.ErrLost)
}

// named returns a container's image as the user specified it.
func named(s *corev1.ContainerStatus, image string) string {
	if s.Name == containerName {
		return image
	}
	return s.Image
}
