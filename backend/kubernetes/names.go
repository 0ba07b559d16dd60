package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const (
	namePre = "workcell-" // prefix of all object names

	labelNonce   = backend.LabelPrefix + "nonce"   // distinguishes this Create call's sandbox
	labelNetwork = backend.LabelPrefix + "network" // selected by the NetworkPolicies
	labelConfig  = backend.LabelPrefix + "config"  // annotation with config as JSON

	labelName      = "app.kubernetes.io/name"
	labelManagedBy = "app.kubernetes.io/managed-by"
	labelComponent = "app.kubernetes.io/component"
	labelInstance  = "app.kubernetes.io/instance"
	labelVersion   = "app.kubernetes.io/version"

	annotationContainer = "kubectl.kubernetes.io/default-container"

	containerName = "sandbox"
)

// config is the data for Info not suitable for labels.
type config struct {
	kit.Record
	Values map[string]string `json:"values"`           // complete values of Workcell's labels
	Labels map[string]string `json:"labels,omitempty"` // labels of the user
}

func (c *config) belongs(instance, session string) bool {
	return c.Values[backend.LabelInstance] == instance && c.Values[backend.LabelID] == session
}

// objectName returns the name of a session's pod and claim.
func objectName(session string) string {
	if n := namePre + strings.ReplaceAll(session, "_", "-"); len(validation.IsDNS1123Label(n)) == 0 {
		return n
	}
	sum := sha256.Sum256([]byte(session))
	return namePre + "h" + hex.EncodeToString(sum[:16])
}

// labelValue returns v if it is a valid label value. Otherwise it returns a hash of v.
func labelValue(v string) string {
	if len(validation.IsValidLabelValue(v)) == 0 {
		return v
	}
	sum := sha256.Sum256([]byte(v))
	return "h-" + hex.EncodeToString(sum[:16])
}

// checkKeys validates the labels or annotations of Options.
func checkKeys(what string, all map[string]string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(all)) {
		problems := validation.IsQualifiedName(key)
		if what == "label" {
			problems = append(problems, validation.IsValidLabelValue(all[key])...)
		}
		if reserved(key) {
			problems = append(problems, "Workcell sets this key; choose a different key")
		}
		if problems != nil {
			errs = append(errs, fmt.Errorf("kubernetes: invalid %s %.80q of pods in kubernetes.%[1]ss: %[3]s: %[4]w",
				what, key, problems[0], backend.ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// reserved reports whether Workcell sets this label or annotation.
func reserved(key string) bool {
	return strings.HasPrefix(key, backend.LabelPrefix) || strings.HasPrefix(key, "app.kubernetes.io/") ||
		key == annotationContainer
}

// metaOf returns the name, labels, and annotations of an object of a planned sandbox.
func (p *plan) metaOf(role string) metav1.ObjectMeta {
	values := p.SandboxLabels(p.guest)
	values[backend.LabelRole] = role
	c := config{Record: p.Record(backend.WorkspaceWatched), Values: values, Labels: p.Spec.Labels}
	record, _ := json.Marshal(c) // cannot fail: texts and numbers
	m := metav1.ObjectMeta{
		Name: p.name,
		Labels: map[string]string{
			labelName: "workcell", labelManagedBy: "workcell", labelComponent: role, labelNonce: p.nonce,
			labelInstance: labelValue(p.Spec.ID), labelVersion: labelValue(p.guest), labelNetwork: p.network,
		},
		Annotations: map[string]string{
			labelConfig: string(record), backend.LabelKey: p.Spec.Key, annotationContainer: containerName,
		},
	}
	for k, v := range values {
		if k != backend.LabelCreated && v != "" { // the object has its own creation time
			m.Labels[k] = labelValue(v)
		}
	}
	return m
}

// configOf decodes the annotation created by metaOf. It returns false if the object does not belong to a sandbox.
func configOf(m *metav1.ObjectMeta, role string) (config, bool) {
	var c config
	if m.Labels[backend.LabelRole] != role || json.Unmarshal([]byte(m.Annotations[labelConfig]), &c) != nil {
		return c, false
	}
	id := c.Values[backend.LabelID]
	return c, id != "" && m.Name == objectName(id) && m.Labels[labelNonce] != ""
}

// selector returns the label selector of a filter. It may select additional pods whose label values have the same hash.
func selector(f backend.Filter) string {
	set := labels.Set{}
	for k, v := range kit.FilterLabels(f) {
		set[k] = labelValue(v)
	}
	return set.String()
}

// sandboxIDs matches sandbox IDs: the name of the session's pod and the sandbox's nonce. The pod's UID is not usable,
// because a restarted sandbox has a new pod.
var sandboxIDs = regexp.MustCompile(`^` + namePre + `[a-z0-9-]{1,54}\.[a-z0-9]{26}$`)

func splitID(id string) (name, nonce string, ok bool) {
	if !sandboxIDs.MatchString(id) {
		return "", "", false
	}
	return strings.Cut(id, ".")
}

func notFound(id string) error {
	return fmt.Errorf("kubernetes: sandbox %.90q: %w", id, backend.ErrNotFound)
}

// describe returns the info of a pod's sandbox. It returns false if the pod is not a sandbox.
func describe(pod *corev1.Pod) (backend.Info, bool) {
	c, ok := configOf(&pod.ObjectMeta, backend.RoleSandbox)
	if !ok {
		return backend.Info{}, false
	}
	info := c.Info(c.Values, maps.Clone(c.Labels))
	info.ID, info.State = objectName(c.Values[backend.LabelID])+"."+pod.Labels[labelNonce], backend.StateRunning
	if ended(pod) || pod.Spec.NodeName == "" && pod.Spec.ActiveDeadlineSeconds != nil { // stopped while pending
		info.State = backend.StateStopped
	}
	info.ImageID = imageOf(pod)
	t := terminated(pod)
	info.OOMKilled = t != nil && t.Reason == "OOMKilled"
	return info, true
}

// statusOf returns the status of a pod's own container. Other programs may add containers to the pod.
func statusOf(pod *corev1.Pod) (own corev1.ContainerStatus) {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == containerName {
			own = s
		}
	}
	return own
}

// imageOf returns the image ID of a started pod.
func imageOf(pod *corev1.Pod) string { return statusOf(pod).ImageID }

// ended reports whether a pod's main process has exited. The pod's phase may not show this yet.
func ended(pod *corev1.Pod) bool {
	return terminated(pod) != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// terminated returns how a pod's own container exited, or nil if it has not exited.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	return statusOf(pod).State.Terminated
}
