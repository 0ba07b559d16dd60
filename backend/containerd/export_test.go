package containerd

// Internals that tests look at.
var (
	ContainerID  = containerID
	ImageVolumes = imageVolumes
	ParseUser    = func(s string) (string, error) { o, err := parseUser(s); return o.String(), err }
	CheckLimits  = checkLimits
	Scrub        = scrub
	RegistryAuth = registryAuth
	RemoveAll    = removeAll
	UsageOf      = usageOf
)
