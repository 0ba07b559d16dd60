//go:build linux

package containerd

// Internals that tests look at.
var (
	SessionName = sessionName
	IsContainer = containerIDs.MatchString
)

// ContainerOf returns the id of a sandbox's container; "" for what is no sandbox's id.
func ContainerOf(id string) string {
	_, container, _ := namesOf(id)
	return container
}
