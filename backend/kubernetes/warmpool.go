package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	agentapi "sigs.k8s.io/agent-sandbox/api/v1beta1"
	claimapi "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// blueprint returns what a sandbox of a pool must be made of to be claimed as a planned one.
func (d *driver) blueprint(p *plan) (*agentapi.SandboxBlueprint, error) {
	of := *p.Plan
	of.Spec.OrphanTimeout = 0 // a claim sets it: in the pool it would end there
	pod, err := d.manifest(&plan{Plan: &of, name: p.name, nonce: p.nonce, guest: p.guest, network: p.network})
	if err != nil {
		return nil, err
	}
	markNetwork(&pod.Spec, p.network)
	return &agentapi.SandboxBlueprint{PodTemplate: agentapi.PodTemplate{Spec: pod.Spec, ObjectMeta: agentapi.PodMetadata{
		Labels:      map[string]string{labelName: pod.Labels[labelName], labelManagedBy: pod.Labels[labelManagedBy], labelNetwork: p.network},
		Annotations: map[string]string{annotationContainer: containerName},
	}}}, nil
}

// markNetwork writes the network that a pod's NetworkPolicy gives it into the name of a volume. Labels that are added to a template
// later are on the pods of the pool only once they are claimed, too late for a policy to bind from the beginning; a pod's volumes
// are what they were when it was made.
func markNetwork(s *corev1.PodSpec, network string) {
	name := volumeTmp + "-" + network
	for i := range s.Volumes {
		if s.Volumes[i].Name == volumeTmp {
			s.Volumes[i].Name = name
		}
	}
	for i := range s.Containers[0].VolumeMounts {
		if m := &s.Containers[0].VolumeMounts[i]; m.Name == volumeTmp {
			m.Name = name
		}
	}
}

// differs names something of a blueprint that is not as it is wanted, empty when all is.
func differs(want, got *agentapi.SandboxBlueprint) string {
	for k, v := range want.PodTemplate.ObjectMeta.Labels {
		if got.PodTemplate.ObjectMeta.Labels[k] != v {
			return "label " + k
		}
	}
	w, g := &want.PodTemplate.Spec, &got.PodTemplate.Spec
	switch {
	case len(got.VolumeClaimTemplates) > 0:
		return "volumeClaimTemplates"
	case len(g.Containers) == 1 && field(w.Containers[0], g.Containers[0]) != "":
		return "container." + field(w.Containers[0], g.Containers[0])
	}
	return field(*w, *g)
}

// field names the first field in which two values differ, where what is unset is empty, and amounts are numbers.
func field[T any](want, got T) string {
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		if !apiequality.Semantic.DeepEqual(w.Field(i).Interface(), g.Field(i).Interface()) {
			return w.Type().Field(i).Name
		}
	}
	return ""
}

// WarmPool returns, as YAML, the SandboxTemplate and the SandboxWarmPool of a name from which sandboxes like those of a Spec can be
// claimed, see Options.Claims. Of the Spec counts what a sandbox is made of; whose it is does not.
func (b *Backend) WarmPool(ctx context.Context, name string, spec backend.Spec, replicas int32) ([]byte, error) {
	d := b.d
	return kit.Admit(ctx, d.calls, "", func(context.Context) ([]byte, error) {
		if d.opts.StorageClass != "" {
			return nil, errVolume
		}
		checked, err := kit.NewPlan(b.Name(), spec, d.opts.Images, d.opts.Limits)
		if err != nil {
			return nil, err
		}
		p, err := d.newPlan(checked)
		if err != nil {
			return nil, err
		}
		blueprint, err := d.blueprint(p)
		if err != nil {
			return nil, err
		}
		template := claimapi.SandboxTemplateSpec{SandboxBlueprint: *blueprint, NetworkPolicyManagement: claimapi.NetworkPolicyManagementUnmanaged}
		pool := claimapi.SandboxWarmPoolSpec{
			Replicas: &replicas, TemplateRef: claimapi.SandboxTemplateRef{Name: name},
			UpdateStrategy: &claimapi.SandboxWarmPoolUpdateStrategy{Type: claimapi.RecreateSandboxWarmPoolUpdateStrategyType},
		}
		return documents(d.object("SandboxTemplate", name, template), d.object("SandboxWarmPool", name, pool))
	})
}

// object is what is written of an object: one of the server's has fields that are not for those who make it.
type object struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        map[string]string `json:"metadata"`
	Spec            any               `json:"spec"`
}

func (d *driver) object(kind, name string, spec any) object {
	return object{metav1.TypeMeta{APIVersion: claimapi.GroupVersion.String(), Kind: kind}, map[string]string{"name": name, "namespace": d.opts.Namespace}, spec}
}

func documents(objects ...object) ([]byte, error) {
	var all [][]byte
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("kubernetes: %s: %w", o.Kind, err)
		}
		all = append(all, text)
	}
	return bytes.Join(all, []byte("---\n")), nil
}

// objectPatch returns a patch that adds labels and annotations to the object of a UID.
func objectPatch(uid types.UID, labels, annotations map[string]string) []byte {
	text, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "labels": labels, "annotations": annotations}}) // strings cannot fail
	return text
}
