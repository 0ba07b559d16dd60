package backend

import "time"

// Workdir is the mount point of the workspace in every sandbox. It is also the root directory of the file tools.
const Workdir = "/workspace"

// DefaultUser is the user of commands if Spec.User is empty.
const DefaultUser = "1000:1000"

// RootMode defines whether the root file system of a sandbox is writable. The zero value is RootReadonly.
type RootMode int

// Root modes.
const (
	RootReadonly RootMode = iota // only the workspace and /tmp are writable
	RootWritable                 // changes go to the sandbox's own layer
)

// NetworkMode defines the network access of a sandbox. The zero value means NetworkNone.
type NetworkMode string

// Network modes.
const (
	NetworkNone   NetworkMode = "none"   // loopback only
	NetworkBridge NetworkMode = "bridge" // outbound through the engine's bridge
)

// PullPolicy defines when an image is pulled. The zero value means PullMissing.
type PullPolicy string

// Pull policies.
const (
	PullMissing PullPolicy = "missing" // use the engine's image, or pull the image if it is missing
	PullAlways  PullPolicy = "always"  // pull before every Create
	PullNever   PullPolicy = "never"   // fail with ErrImage if the engine does not have the image
)

// Enforcement is the mechanism used to enforce Limits.WorkspaceBytes. When a driver creates a sandbox, it uses the
// host's strongest mechanism. If empty, no limit applies.
type Enforcement string

// Enforcements, strongest first.
const (
	// WorkspaceSized is a separate file system of this size, with a matching number of inodes. The space is reserved, so
	// other writes to the disk cannot use it.
	WorkspaceSized Enforcement = "filesystem"
	// WorkspaceMemory is a tmpfs. Its files count against the memory limit and are lost when the sandbox stops. Only the
	// local driver uses it, for a writable root.
	WorkspaceMemory Enforcement = "memory"
	// WorkspaceWatched means that the guest agent sums the file sizes and kills the commands if the sum exceeds the limit.
	// No single file can exceed the limit. Together, the files can exceed it by the data written between two checks.
	WorkspaceWatched Enforcement = "watched"
)

// Spec describes a sandbox to create. Drivers must not modify it or keep references to it after the call.
type Spec struct {
	ID       string // session ID, unguessable; also the name of the container
	Instance string // Workcell installation owning the sandbox
	Key      string // text form of the session key
	Run      string // run owning the sandbox; empty for named sandboxes
	Hash     string // hash of the user's request, to detect a changed request

	Image      string      // image reference
	Pull       PullPolicy  // when to pull the image
	Platform   string      // for example "linux/amd64"; empty means the engine's platform
	User       string      // numeric "uid:gid"; empty means DefaultUser
	Root       RootMode    //
	Env        []string    // "NAME=value", the base environment of every command
	Limits     Limits      //
	Network    NetworkMode //
	OCIRuntime string      // OCI runtime; empty is the engine's default
	Mounts     []Mount     // directories on the engine's host to mount in the sandbox
	// Isolation is the minimum isolation. If the sandbox would have less, Create must return an IsolationError. Empty
	// means any isolation.
	Isolation Isolation

	// Environment identifies the sandbox's installed packages, as 32 to 64 hexadecimal digits. If the driver has no
	// committed environment for this value and the image, Create must fail with ErrEnvironment (see CommitEnvironment). If
	// the driver does not support environments, Create must fail with ErrUnsupported.
	Environment string
	// Building creates a sandbox to install Environment in. EnvironmentDir belongs to the sandbox's user.
	Building bool

	// Fork is the snapshot to copy into the new workspace. If nil, the workspace is empty. If the snapshot does not exist,
	// Create returns ErrNotFound. If the snapshot's workspace enforces the limit with a different mechanism, Create
	// returns ErrInvalid.
	Fork *ForkOf

	// OrphanTimeout is the time after which an unused guest agent exits, which stops the sandbox. The time starts when no
	// host is connected and no command is running. The timeout stops sandboxes that no longer have a host to stop them,
	// for example after the host process was killed or the host lost power. If zero, the guest agent keeps running.
	OrphanTimeout time.Duration
	// Ephemeral means that only the creator uses the sandbox. Once the sandbox is stopped, any process may remove it
	// together with the workspace.
	Ephemeral bool

	Labels  map[string]string  // the user's labels; ErrInvalid if a name starts with LabelPrefix
	OnPull  func(PullProgress) // called during a pull, never concurrently; may be nil
	Created time.Time          // creation time to record; zero means now
}

// Mount is a host directory mounted in a sandbox, without the mounts below it. Drivers must return ErrInvalid or
// ErrPermission if a mount would hide a part of the sandbox or expose system directories of the host.
type Mount struct {
	Source   string `json:"source"`             // absolute path of a directory on the engine's host
	Target   string `json:"target"`             // absolute path in the sandbox
	Writable bool   `json:"writable,omitempty"` // the default is read-only
}

// PullProgress describes the progress of an image pull.
type PullProgress struct {
	Image   string // image reference
	Layer   string // layer ID; empty for messages about the whole image
	Status  string // status text of the engine, for example "Downloading" or "Extracting"
	Current int64  // bytes done; zero if unknown
	Total   int64  // total bytes; zero if unknown
}

// State is the state of a sandbox.
type State string

// Sandbox states.
const (
	StateCreated State = "created"
	StateRunning State = "running"
	StatePaused  State = "paused"
	StateStopped State = "stopped"
	StateGone    State = "removed"
)

// Info describes an existing sandbox.
type Info struct {
	ID              string // ID on the engine, used by the other methods
	SessionID       string
	Instance        string
	Key             string
	Run             string
	Hash            string
	Image           string
	ImageID         string
	ImageEnv        []string // "NAME=value" from the image; set by Create and Get, nil in List
	User            string
	Network         NetworkMode
	Mounts          []Mount
	Root            RootMode
	Isolation       Isolation
	Limits          Limits
	Workspace       Enforcement // how Limits.WorkspaceBytes is enforced
	RootBytes       int64       // limit for writes to a writable root, excluding the workspace; zero means unknown
	RootEnforcement Enforcement // how RootBytes is enforced: WorkspaceWatched or WorkspaceMemory
	Ephemeral       bool        // Spec.Ephemeral
	State           State
	OOMKilled       bool // the kernel killed the main process because memory ran out
	Created         time.Time
	Labels          map[string]string // the user's labels
}

// Filter selects sandboxes. An empty field matches every sandbox.
type Filter struct {
	Instance  string
	SessionID string
	Key       string
	Run       string
}
