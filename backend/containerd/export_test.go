package containerd

import "github.com/workcell-dev/workcell/backend/internal/kit"

// Internals that tests look at.
var (
	SessionName  = sessionName
	IsContainer  = isContainer
	SweepShims   = (*Backend).sweepShims
	Scrub        = kit.Scrub
	RegistryAuth = registryAuth
	RemoveAll    = removeAll
	UsageOf      = usageOf
)

// ContainerOf gives the id of a sandbox's container; "" for what is no sandbox's id.
func ContainerOf(id string) string {
	_, containers := namesOf(id)
	return append(containers, "")[0]
}
