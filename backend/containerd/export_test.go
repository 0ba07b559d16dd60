package containerd

import "github.com/workcell-dev/workcell/backend/internal/kit"

// Internals that tests look at.
var (
	SessionName  = sessionName
	IsContainer  = containerIDs.MatchString
	SweepShims   = (*Backend).sweepShims
	Scrub        = kit.Scrub
	RegistryAuth = registryAuth
	UsageOf      = usageOf
)

// ContainerOf returns the id of a sandbox's container; "" for what is no sandbox's id.
func ContainerOf(id string) string {
	_, container, _ := namesOf(id)
	return container
}
