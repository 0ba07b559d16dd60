//go:build linux

package containerd

import "regexp"

// Internals that tests look at.
var (
	SessionName = sessionName
	IsContainer = regexp.MustCompile(`^[0-9a-f]{32}\.[A-Z2-7]{26}$`).MatchString
)

// ContainerOf returns the id of a sandbox's container; "" for what is no sandbox's id.
func ContainerOf(id string) string {
	_, container, _ := namesOf(id)
	return container
}
