//go:build no_kubernetes

package engines

import "context"

func (Set) kubernetes() Engine { return leftOut(Kubernetes) }

func (Set) kubernetesContext() (name, namespace string) { return "", "" }

func (Set) kubernetesID(ctx context.Context) (string, error) {
	_, err := leftOut(Kubernetes).Open(ctx)
	return "", err
}
