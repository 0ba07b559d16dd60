//go:build no_containerd

package engines

func (Set) containerd() Engine { return leftOut(Containerd) }
