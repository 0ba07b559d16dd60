package containerd

// Internals that tests look at.
var (
	ContainerID  = containerID
	ContainerOf  = func(id string) string { c, _ := containerOf(id); return c }
	ImageVolumes = imageVolumes
	ParseUser    = func(s string) (string, error) { o, err := parseUser(s); return o.String(), err }
	CheckLimits  = checkLimits
	Scrub        = scrub
	RegistryAuth = registryAuth
	RemoveAll    = removeAll
	UsageOf      = usageOf
)
