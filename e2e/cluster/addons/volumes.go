package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// provisioner marks the volumes created by this program.
const provisioner = "workcell.test/directories"

// provide creates a volume for each pending claim, and deletes the volumes of deleted claims.
func (a *addons) provide(ctx context.Context) error {
	claims, err := a.claims.List(labels.Everything())
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range claims {
		if c.Status.Phase != corev1.ClaimPending || c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != a.class || c.DeletionTimestamp != nil {
			continue
		}
		errs = append(errs, a.make(ctx, c))
	}
	volumes, err := a.pvs.List(labels.Everything())
	errs = append(errs, err)
	for _, v := range volumes {
		if v.Annotations["pv.kubernetes.io/provisioned-by"] == provisioner && v.Status.Phase == corev1.VolumeReleased && v.DeletionTimestamp == nil {
			errs = append(errs, os.RemoveAll(v.Spec.Local.Path), a.api.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{}))
		}
	}
	return errors.Join(errs...)
}

// make creates the volume of a claim.
func (a *addons) make(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	name := "pvc-" + string(c.UID)
	dir := filepath.Join(a.volumes, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_, err := a.api.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: c.Spec.Resources.Requests, AccessModes: c.Spec.AccessModes, StorageClassName: a.class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, // deleted here, with the directory
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{a.node}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
