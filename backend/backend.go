// Package backend is the contract between Workcell and a container engine.
//
// A driver (backend/docker, …) implements [SandboxBackend]: the life of a sandbox and one byte stream into it.
// Running commands, files, limits on output, path rules, spans and error wrapping are written once, above the
// contract, in package session, and speak to the guest (PID 1 of every sandbox) over that stream.
//
// Most users want package session, or package tools, and only construct a driver.
package backend

import (
	"context"
	"fmt"
	"io"
)

// SandboxBackend runs sandboxes on one engine.
//
// A sandbox is created running, may be stopped and started again, and ends when it is removed. Its id is chosen by the
// driver's engine and is opaque to callers. The main process of a sandbox is the Workcell guest; [SandboxBackend.Dial]
// reaches it.
//
//	info, err := b.Create(ctx, spec)             // image present or pulled, hardened, started
//	stream, err := b.Dial(ctx, info.ID)          // bytes to and from the guest
//	err = b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true})
//
// A wrapper embeds the SandboxBackend that it wraps. A driver without some of the features embeds [Unsupported].
//
// All methods may be called concurrently. Every call must end when its context ends; a context error must stay
// testable with errors.Is. Other errors must wrap one of the sentinels of this package where one fits, so that callers
// never look at text.
type SandboxBackend interface {
	// Name returns the driver's name, such as "docker". It shows in errors and spans.
	Name() string

	// Ping describes the engine. It returns an error that wraps ErrUnavailable if the engine does not answer.
	Ping(ctx context.Context) (EngineInfo, error)

	// Create makes a sandbox from spec and starts it. The image is used from the engine or pulled as spec.Pull says.
	// A failure, a cancelled context included, must leave nothing behind. A limit or mode that was asked for and that
	// the engine cannot enforce must fail with ErrUnsupported.
	Create(ctx context.Context, spec Spec) (Info, error)

	// Get describes a sandbox; ErrNotFound when this driver does not know it or it is not a Workcell sandbox.
	Get(ctx context.Context, id string) (Info, error)

	// List describes the sandboxes that match filter, running or not, sorted by creation time. It must never return a
	// container that Workcell did not make.
	List(ctx context.Context, filter Filter) ([]Info, error)

	// Start starts a stopped sandbox. Starting a running one is no error.
	Start(ctx context.Context, id string) error

	// Stop ends the processes of a sandbox and keeps its files. Stopping a stopped one is no error.
	Stop(ctx context.Context, id string) error

	// Remove ends a sandbox and deletes it. Removing an unknown one is no error.
	Remove(ctx context.Context, id string, opts RemoveOptions) error

	// Dial opens a new stream to the guest. Other streams, of this or another process, continue. ErrNotFound when
	// the sandbox is gone, ErrLost when it is not running.
	Dial(ctx context.Context, id string) (io.ReadWriteCloser, error)

	// Capabilities returns what this engine can enforce. It must not block on the engine for longer than ctx of New did.
	Capabilities() Capabilities

	// ImageID returns the value that Info.ImageID of a sandbox created from ref now would have. It is empty if the engine
	// does not have the image; nothing is pulled. A malformed reference returns ErrInvalid.
	ImageID(ctx context.Context, ref string) (id string, err error)

	// HasWorkspace reports whether a new sandbox of the session would get an existing workspace: the sandbox was removed
	// without its volumes, or a process died in between.
	HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error)

	// RemoveWorkspace deletes the workspace of a session that has no sandbox. An unknown workspace is not an error.
	// The workspace of another instance, or of a sandbox, returns ErrExists and stays.
	RemoveWorkspace(ctx context.Context, instance, sessionID string) error

	// CommitEnvironment stops a sandbox that was created with Spec.Building, and keeps EnvironmentDir for later
	// sandboxes of the image with the same Spec.Environment. A driver may keep other files of the root, but not the
	// workspace or /tmp. It must be crash-safe: an environment exists completely or not at all. An existing
	// environment stays; this is not an error.
	//
	//	_, err := b.Create(ctx, spec)                // spec.Environment is set: ErrEnvironment
	//	spec.Building = true
	//	info, err := b.Create(ctx, spec)             // a sandbox to install in
	//	err = b.CommitEnvironment(ctx, info.ID)
	//	err = b.Remove(ctx, info.ID, RemoveOptions{Volumes: true})
	CommitEnvironment(ctx context.Context, id string) error

	// Environments returns the environments of an instance.
	Environments(ctx context.Context, instance string) ([]Environment, error)

	// RemoveEnvironment removes an environment of the instance by its name. If a sandbox uses it, it stays and the call
	// returns ErrExists. An unknown environment is not an error.
	RemoveEnvironment(ctx context.Context, instance, name string) error

	// Snapshot copies the files of a running sandbox's workspace under a name that CheckSnapshotName accepts. Snapshots
	// belong to their workspace and are removed with it. An existing name returns ErrExists, a workspace with MaxSnapshots
	// returns ErrCapacity, and a full disk ErrNoRoom.
	//
	// Snapshot and Rollback must freeze the commands of the sandbox, or fail with ErrUnsupported. Both must be crash-safe:
	// a snapshot exists completely or not at all, and an interrupted rollback leaves the workspace unchanged or is
	// completed before the next access to the sandbox.
	Snapshot(ctx context.Context, id, name string) (Snapshot, error)

	// Snapshots returns the snapshots of a sandbox, oldest first, and the mechanism of the next snapshot. The mechanism is
	// empty if the commands cannot be frozen.
	Snapshots(ctx context.Context, id string) ([]Snapshot, SnapshotMechanism, error)

	// CopySnapshot copies a snapshot of another sandbox of the instance, under the same name, so that the sandbox can be
	// rolled back to it. The errors are those of Snapshot and of Spec.Fork.
	CopySnapshot(ctx context.Context, id string, from ForkOf) error

	// RemoveSnapshot deletes a snapshot. An unknown snapshot is not an error.
	RemoveSnapshot(ctx context.Context, id, name string) error

	// Rollback ends all processes of the sandbox except the guest, and restores the workspace. The snapshot stays.
	Rollback(ctx context.Context, id, name string) error

	// Close releases the driver's own resources. Sandboxes keep running. Idempotent.
	Close() error
}

// Unsupported has the methods for images, workspaces, environments, and snapshots of a driver that supports none of
// them. Embed it in a driver, and define the methods that the driver supports. Create of such a driver must return
// ErrUnsupported for a Spec with Environment or Fork.
type Unsupported struct{}

// ErrNoSnapshots is the error of Unsupported for snapshots.
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

// EngineInfo describes the engine behind a driver, for people.
type EngineInfo struct {
	Name        string            `json:"name"`                   // "docker", "containerd", …
	Version     string            `json:"version"`                // engine version
	API         string            `json:"api,omitempty"`          // negotiated API version
	Kernel      string            `json:"kernel,omitempty"`       // kernel release of the engine's machine
	OS          string            `json:"os,omitempty"`           // operating system of the engine's machine
	Arch        string            `json:"arch,omitempty"`         // architecture of the engine's machine
	Cgroup      string            `json:"cgroup,omitempty"`       // "1" or "2"
	OCIRuntimes []string          `json:"oci_runtimes,omitempty"` // programs that make containers: runc, crun, …
	Details     map[string]string `json:"details,omitempty"`      // anything else worth showing
}

// RemoveOptions refine Remove.
type RemoveOptions struct {
	// Volumes also deletes the sandbox's workspace. The zero value keeps it.
	Volumes bool
}

// Capabilities are what an engine can enforce.
type Capabilities struct {
	Memory          bool          // Limits.MemoryBytes, swap included
	CPU             bool          // Limits.CPUMillis
	PIDs            bool          // Limits.PIDs
	Workspace       Enforcement   // what holds Limits.WorkspaceBytes, with the default OCI runtime; empty: nothing can
	Networks        []NetworkMode // network modes that can be asked for
	OCIRuntimes     []string      // OCI runtimes that can be asked for
	WritableRoot    bool          // RootWritable
	RootEnforcement Enforcement   // what holds Info.RootBytes
	Persistent      bool          // files survive Stop
	// Isolation is the isolation of sandboxes by OCI runtime; the empty name is the default runtime.
	Isolation map[string]Isolation
	// Forgeable: users without access to the program's state can create what looks like its sandbox, with any labels.
	Forgeable bool
}

// Guest is the program that runs as the main process of every sandbox.
type Guest struct {
	// Version names the program's content: two programs must never share a version.
	Version string
	// Binary returns the static Linux executable for "amd64" or "arm64".
	Binary func(arch string) ([]byte, error)
	// Readable: its file may be read in sandboxes, not only executed, as kernels need that load programs with the rights
	// of their user. Such a guest is a Version of its own.
	Readable bool
}
