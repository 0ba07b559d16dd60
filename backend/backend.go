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

	// Dial opens a new stream to the guest. It disturbs no other stream, of this process or another one. ErrNotFound when
	// the sandbox is gone, ErrLost when it is not running.
	Dial(ctx context.Context, id string) (io.ReadWriteCloser, error)

	// Capabilities returns what this engine can enforce. It must not block on the engine for longer than ctx of New did.
	Capabilities() Capabilities

	// Close releases the driver's own resources. Sandboxes keep running. Idempotent.
	Close() error
}

// WorkspaceKeeper is implemented by drivers whose workspace is a thing apart, which the engine may still have when the
// sandbox is gone: a process that died between the two, or RemoveOptions without Volumes.
//
// HasWorkspace must report whether there is a workspace that a new sandbox of the session would get. RemoveWorkspace must
// delete the workspace of a session that has no sandbox; one that is unknown, of another instance or in use stays, the
// first of which is no error, the others are ErrExists.
type WorkspaceKeeper interface {
	HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error)
	RemoveWorkspace(ctx context.Context, instance, sessionID string) error
}

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
	// Forgeable: users without access to the program's state can create what looks like its sandbox, with any labels.
	Forgeable bool
}

// ImageChecker is implemented by drivers whose engine can be asked which image a reference names. ImageID must return what
// Info.ImageID of a sandbox is that is created from it now, empty when the engine does not have it, and must fetch nothing; a
// malformed reference is ErrInvalid; ErrUnsupported, where nobody can tell.
type ImageChecker interface {
	ImageID(ctx context.Context, ref string) (id string, err error)
}

// Guest is the program that runs as the main process of every sandbox.
type Guest struct {
	// Version names the program's content: two programs must never share a version.
	Version string
	// Binary returns the static Linux executable for "amd64" or "arm64".
	Binary func(arch string) ([]byte, error)
	// Readable: its file may be read in sandboxes, not only executed, as kernels need that load programs with the rights of
	// their user. Such a guest is a Version of its own.
	Readable bool
}
