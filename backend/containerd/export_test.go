//go:build linux

package containerd

import "regexp"

// Internal identifiers for tests.
var (
	SessionName = sessionName
	IsContainer = regexp.MustCompile(`^[0-9a-f]{32}\.[A-Z2-7]{26}$`).MatchString
)

// ContainerOf returns the ID of a sandbox's container. It returns "" if id is not the ID of a sandbox.
func ContainerOf(id string) string {
	_, container, _ := namesOf(id)
	return container
}
