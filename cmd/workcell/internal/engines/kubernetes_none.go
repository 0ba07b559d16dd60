//go:build no_kubernetes

package engines

func (Set) kubernetes() Engine { return leftOut(Kubernetes) }

func (Set) kubernetesContext() (name, namespace string) { return "", "" }
