package backend

import "time"

// EnvironmentDir is where environments are installed. In a sandbox with Spec.Building, it belongs to the sandbox's
// user. NodeModulesLink is a symbolic link into EnvironmentDir, unless the image already has a file at this path. The
// link is necessary because Node.js finds modules only in node_modules directories above the importing file.
const (
	EnvironmentDir  = "/opt/workcell"
	NodeModulesLink = "/node_modules"
)

// Environment describes the packages installed once for all sandboxes of an image.
type Environment struct {
	Name    string // name on the engine
	Recipe  string // Spec.Environment
	Image   string // image on which the packages were installed
	Bytes   int64  // disk space in addition to the image; zero means unknown
	Created time.Time
}
