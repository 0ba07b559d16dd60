package backend

import (
	"context"
	"time"
)

// EnvironmentDir is the directory that belongs to the user of a sandbox with Spec.Building: what is installed for other sandboxes
// goes there. NodeModulesLink leads into it, unless the image has something at that place: a module finds others only in
// directories of that name above its own.
const (
	EnvironmentDir  = "/opt/workcell"
	NodeModulesLink = "/node_modules"
)

// EnvironmentKeeper is implemented by drivers that can keep what was installed in a sandbox, for later ones to begin with. It
// belongs to an image, as that was when it was made, and to Spec.Environment.
//
//	_, err := b.Create(ctx, spec)                // spec.Environment is set: ErrEnvironment, there is none
//	spec.Building = true
//	info, err := b.Create(ctx, spec)             // a sandbox to install in
//	err = b.CommitEnvironment(ctx, info.ID)      // it is there, whole, or it is not
//	err = b.Remove(ctx, info.ID, RemoveOptions{Volumes: true})
type EnvironmentKeeper interface {
	// CommitEnvironment must stop a sandbox that was made with Spec.Building, and keep what lies in EnvironmentDir. A driver may
	// keep the rest of its root, too; never its workspace and what lies in /tmp. In whatever moment the process or the engine
	// ends, an environment must be whole or not there at all. When there is one already, that one stays, which is no error.
	CommitEnvironment(ctx context.Context, id string) error
	// Environments returns those of an instance.
	Environments(ctx context.Context, instance string) ([]Environment, error)
	// RemoveEnvironment must remove one of the instance by its name. One that a sandbox has is ErrExists and stays; one that is
	// unknown is no error.
	RemoveEnvironment(ctx context.Context, instance, name string) error
}

// Environment is what was installed for sandboxes of an image.
type Environment struct {
	Name    string // on the engine
	Recipe  string // Spec.Environment
	Image   string // that it was installed over
	Bytes   int64  // that it takes on the disk, beside the image; zero is unknown
	Created time.Time
}
