//go:build no_docker

package engines

func (Set) docker() Engine { return leftOut(Docker) }
