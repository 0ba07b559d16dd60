package backend

import "time"

// EnvironmentDir is the directory that belongs to the user of a sandbox with Spec.Building: what is installed for other
// sandboxes goes there. NodeModulesLink leads into it, unless the image has something at that place: a module finds
// others only in directories of that name above its own.
const (
	EnvironmentDir  = "/opt/workcell"
	NodeModulesLink = "/node_modules"
)

// Environment is what was installed for sandboxes of an image.
type Environment struct {
	Name    string // on the engine
	Recipe  string // Spec.Environment
	Image   string // that it was installed over
	Bytes   int64  // that it takes on the disk, beside the image; zero is unknown
	Created time.Time
}
