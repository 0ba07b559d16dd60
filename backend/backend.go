// Package backend defines the interface between Workcell and a container engine.
//
// A driver, for example backend/docker, implements [SandboxBackend]. It manages the lifecycle of sandboxes and opens
// byte streams to them. Package session uses these streams to talk to the guest agent, which is PID 1 of every sandbox.
// Package session implements commands, file operations, output limits, path rules, spans, and error wrapping once for
// all drivers.
//
// Most programs use package session or package tools, and only construct a driver.
package backend

import (
	"context"
	"fmt"
	"io"
)

// SandboxBackend runs sandboxes on one engine.
//
// A sandbox is running when Create returns. It can be stopped, started again, and removed. The engine chooses the
// sandbox ID, which is opaque to callers. The main process of a sandbox is the Workcell guest agent. Call
// [SandboxBackend.Dial] to connect to it.
//
//	info, err := b.Create(ctx, spec)             // image present or pulled, hardened, started
//	stream, err := b.Dial(ctx, info.ID)          // bytes to and from the guest
//	err = b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true})
//
// A wrapper embeds the wrapped SandboxBackend. Drivers that do not support all features embed [Unsupported].
//
// All methods are safe for concurrent use. Every call must return when its context ends, with an error that matches the
// context's error in errors.Is. Other errors must wrap one of this package's sentinel errors if one fits, so that
// callers do not have to compare error texts.
type SandboxBackend interface {
	// Name returns the driver's name, for example "docker". Errors and spans contain this name.
	Name() string

	// Ping returns information about the engine. If the engine does not respond, Ping returns an error wrapping
	// ErrUnavailable.
	Ping(ctx context.Context) (EngineInfo, error)

	// Create creates a sandbox from spec and starts it. It uses the engine's copy of the image or pulls the image,
	// depending on spec.Pull. If Create fails or ctx is canceled, it must remove all created objects. If the engine cannot
	// enforce a requested limit or mode, Create must fail with ErrUnsupported.
	Create(ctx context.Context, spec Spec) (Info, error)

	// Get describes a sandbox. If this driver does not know the ID, or the ID is not a Workcell sandbox, Get returns
	// ErrNotFound.
	Get(ctx context.Context, id string) (Info, error)

	// List describes the sandboxes matching filter, sorted by creation time. It includes stopped sandboxes. It must never
	// return a container not created by Workcell.
	List(ctx context.Context, filter Filter) ([]Info, error)

	// Start starts a stopped sandbox. It does nothing if the sandbox is already running.
	Start(ctx context.Context, id string) error

	// Stop kills the processes of a sandbox and keeps the files. It does nothing if the sandbox is already stopped.
	Stop(ctx context.Context, id string) error

	// Remove stops a sandbox and deletes it. It does nothing if the ID is unknown.
	Remove(ctx context.Context, id string, opts RemoveOptions) error

	// Dial opens a new stream to the guest agent. Open streams of this or other processes are not affected. If the sandbox
	// no longer exists, Dial returns ErrNotFound. If the sandbox is not running, Dial returns ErrLost.
	Dial(ctx context.Context, id string) (io.ReadWriteCloser, error)

	// Capabilities returns the features that this engine can enforce. It must not wait for the engine longer than the
	// context passed to New allowed.
	Capabilities() Capabilities

	// ImageID returns the Info.ImageID that a sandbox created from ref now would have. It never pulls the image: if the
	// engine does not have it, ImageID returns an empty string. If the reference is malformed, it returns ErrInvalid.
	ImageID(ctx context.Context, ref string) (id string, err error)

	// HasWorkspace reports whether a new sandbox for the session would get an existing workspace. A workspace exists
	// without a sandbox if the sandbox was removed without its volumes, or if a process crashed during removal.
	HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error)

	// RemoveWorkspace deletes the workspace of a session without a sandbox. It does nothing if the workspace is unknown.
	// If the workspace belongs to another instance or to an existing sandbox, RemoveWorkspace keeps it and returns
	// ErrExists.
	RemoveWorkspace(ctx context.Context, instance, sessionID string) error

	// CommitEnvironment stops a sandbox created with Spec.Building. It then keeps EnvironmentDir for later sandboxes with
	// the same image and the same Spec.Environment. A driver may keep other files of the root file system, but not the
	// workspace or /tmp. CommitEnvironment must be crash-safe: an environment exists completely or not at all. If the
	// environment already exists, CommitEnvironment keeps it and returns nil.
	//
	//	_, err := b.Create(ctx, spec)                // spec.Environment is set: ErrEnvironment
	//	spec.Building = true
	//	info, err := b.Create(ctx, spec)             // a sandbox to install in
	//	err = b.CommitEnvironment(ctx, info.ID)
	//	err = b.Remove(ctx, info.ID, RemoveOptions{Volumes: true})
	CommitEnvironment(ctx context.Context, id string) error

	// Environments returns the environments of an instance.
	Environments(ctx context.Context, instance string) ([]Environment, error)

	// RemoveEnvironment removes an environment of the instance by name. If a sandbox uses the environment,
	// RemoveEnvironment keeps it and returns ErrExists. It does nothing if the environment is unknown.
	RemoveEnvironment(ctx context.Context, instance, name string) error

	// Snapshot copies the workspace files of a running sandbox. The name must pass CheckSnapshotName. Snapshots belong to
	// their workspace and are removed together with it. If the name is taken, Snapshot returns ErrExists. If the workspace
	// already has MaxSnapshots snapshots, it returns ErrCapacity. If the disk is full, it returns ErrNoRoom.
	//
	// Snapshot and Rollback must freeze the commands of the sandbox, or fail with ErrUnsupported. Both must be crash-safe.
	// A snapshot exists completely or not at all. If a rollback is interrupted, either the workspace stays unchanged, or
	// the driver completes the rollback before the next access to the sandbox.
	Snapshot(ctx context.Context, id, name string) (Snapshot, error)

	// Snapshots returns the snapshots of a sandbox, oldest first, and the mechanism for the next snapshot. If the commands
	// cannot be frozen, the mechanism is empty.
	Snapshots(ctx context.Context, id string) ([]Snapshot, SnapshotMechanism, error)

	// CopySnapshot copies a snapshot from another sandbox of the instance and keeps the snapshot's name. The sandbox can
	// then be rolled back to it. CopySnapshot returns the same errors as Snapshot and as Create with Spec.Fork.
	CopySnapshot(ctx context.Context, id string, from ForkOf) error

	// RemoveSnapshot deletes a snapshot. It does nothing if the snapshot is unknown.
	RemoveSnapshot(ctx context.Context, id, name string) error

	// Rollback kills all processes of the sandbox except the guest agent, and restores the workspace from the snapshot. It
	// keeps the snapshot.
	Rollback(ctx context.Context, id, name string) error

	// Close releases the driver's resources. Sandboxes keep running. Calling Close again has no effect.
	Close() error
}

// Unsupported implements the image, workspace, environment, and snapshot methods for drivers that do not support them.
// Embed it in a driver and define the methods that the driver supports. The driver's Create must return ErrUnsupported
// if Spec.Environment or Spec.Fork is set.
type Unsupported struct{}

// ErrNoSnapshots is returned by the snapshot methods of Unsupported. It wraps ErrUnsupported.
var ErrNoSnapshots = fmt.Errorf("snapshots are not supported on this engine or host: %w", ErrUnsupported)

// ImageID returns ErrUnsupported.
func (Unsupported) ImageID(context.Context, string) (string, error) { return "", ErrUnsupported }

// HasWorkspace returns ErrUnsupported.
func (Unsupported) HasWorkspace(context.Context, string, string) (bool, error) {
	return false, ErrUnsupported
}

// RemoveWorkspace returns ErrUnsupported.
func (Unsupported) RemoveWorkspace(context.Context, string, string) error { return ErrUnsupported }

// CommitEnvironment returns ErrUnsupported.
func (Unsupported) CommitEnvironment(context.Context, string) error { return ErrUnsupported }

// Environments returns no environments.
func (Unsupported) Environments(context.Context, string) ([]Environment, error) { return nil, nil }

// RemoveEnvironment does nothing.
func (Unsupported) RemoveEnvironment(context.Context, string, string) error { return nil }

// Snapshot returns ErrNoSnapshots.
func (Unsupported) Snapshot(context.Context, string, string) (Snapshot, error) {
	return Snapshot{}, ErrNoSnapshots
}

// Snapshots returns ErrNoSnapshots.
func (Unsupported) Snapshots(context.Context, string) ([]Snapshot, SnapshotMechanism, error) {
	return nil, "", ErrNoSnapshots
}

// CopySnapshot returns ErrNoSnapshots.
func (Unsupported) CopySnapshot(context.Context, string, ForkOf) error { return ErrNoSnapshots }

// RemoveSnapshot returns ErrNoSnapshots.
func (Unsupported) RemoveSnapshot(context.Context, string, string) error { return ErrNoSnapshots }

// Rollback returns ErrNoSnapshots.
func (Unsupported) Rollback(context.Context, string, string) error { return ErrNoSnapshots }

// EngineInfo describes the engine of a driver, for display.
type EngineInfo struct {
	Name        string            `json:"name"`                   // "docker", "containerd", …
	Version     string            `json:"version"`                // engine version
	API         string            `json:"api,omitempty"`          // negotiated API version
	Kernel      string            `json:"kernel,omitempty"`       // kernel release of the engine's host
	OS          string            `json:"os,omitempty"`           // operating system of the engine's host
	Arch        string            `json:"arch,omitempty"`         // architecture of the engine's host
	Cgroup      string            `json:"cgroup,omitempty"`       // "1" or "2"
	OCIRuntimes []string          `json:"oci_runtimes,omitempty"` // OCI runtimes, for example runc and crun
	Details     map[string]string `json:"details,omitempty"`      // other details to display
}

// RemoveOptions are the options of Remove.
type RemoveOptions struct {
	// Volumes also deletes the sandbox's workspace. By default, Remove keeps the workspace.
	Volumes bool
}

// Capabilities lists the features that an engine can enforce.
type Capabilities struct {
	Memory          bool          `json:"memory"`           // Limits.MemoryBytes, including swap
	CPU             bool          `json:"cpu"`              // Limits.CPUMillis
	PIDs            bool          `json:"pids"`             // Limits.PIDs
	Workspace       Enforcement   `json:"workspace"`        // how the default OCI runtime enforces Limits.WorkspaceBytes
	Networks        []NetworkMode `json:"networks"`         // supported network modes
	OCIRuntimes     []string      `json:"oci_runtimes"`     // available OCI runtimes
	WritableRoot    bool          `json:"writable_root"`    // RootWritable
	RootEnforcement Enforcement   `json:"root_enforcement"` // how Info.RootBytes is enforced
	Persistent      bool          `json:"persistent"`       // files survive Stop
	// Isolation maps each OCI runtime to the isolation of its sandboxes. The empty name is the default runtime.
	Isolation map[string]Isolation `json:"isolation"`
	// Forgeable means that labels can be forged: a user without access to the program's state can create an object with
	// the form and the labels of a sandbox.
	Forgeable bool `json:"forgeable"`
}

// Guest is the guest agent, the program that runs as the main process of every sandbox.
type Guest struct {
	// Version identifies the content of the program. Two different programs must never have the same version.
	Version string
	// Binary returns the static Linux executable for "amd64" or "arm64".
	Binary func(arch string) ([]byte, error)
	// Readable makes the program file readable in sandboxes, not only executable. Kernels that load programs with the
	// user's permissions require this. A readable guest agent needs a separate Version.
	Readable bool
}
