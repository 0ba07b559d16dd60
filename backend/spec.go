package backend

import "time"

// Workdir is where the workspace is mounted in every sandbox, and the root of the file tools.
const Workdir = "/workspace"

// DefaultUser is the user that commands run as when a Spec names none.
const DefaultUser = "1000:1000"

// RootMode is whether the image's file system can be written to. The zero value is RootReadonly.
type RootMode int

// Root modes.
const (
	RootReadonly RootMode = iota // only the workspace and /tmp can be written
	RootWritable                 // changes live in the sandbox's own layer
)

// NetworkMode is what a sandbox can reach. The zero value is NetworkNone.
type NetworkMode string

// Network modes.
const (
	NetworkNone   NetworkMode = "none"   // loopback only
	NetworkBridge NetworkMode = "bridge" // outbound through the engine's bridge
)

// PullPolicy is when an image is fetched. The zero value is PullMissing.
type PullPolicy string

// Pull policies.
const (
	PullMissing PullPolicy = "missing" // use the engine's image, pull when there is none
	PullAlways  PullPolicy = "always"  // pull before every Create
	PullNever   PullPolicy = "never"   // ErrImage when the engine has no such image
)

// Enforcement is how a workspace is held to Limits.WorkspaceBytes. Drivers choose the strongest that the machine has,
// when the sandbox is created. Empty is no limit.
type Enforcement string

// Enforcements, the strongest first.
const (
	// WorkspaceSized: a separate file system of that size, with a matching number of files. Its space is reserved, so that
	// other writes to the disk do not use it.
	WorkspaceSized Enforcement = "filesystem"
	// WorkspaceMemory: a tmpfs, whose files count against the memory limit and are lost when the sandbox stops. Of this
	// module's drivers only local has it, for a root that can be written to.
	WorkspaceMemory Enforcement = "memory"
	// WorkspaceWatched: the guest adds up the files and ends the commands when they are too large. No file gets larger
	// than the limit, but together they can pass it by what is written between two looks.
	WorkspaceWatched Enforcement = "watched"
)

// Spec describes a sandbox to create. Drivers must not change it and must not keep references into it.
type Spec struct {
	ID       string // session id, unguessable; also names the container
	Instance string // which Workcell installation owns the sandbox
	Key      string // text form of the session key
	Run      string // run that owns the sandbox; empty for named sessions
	Hash     string // hash of what the user asked for, to notice a changed request

	Image      string      // image reference
	Pull       PullPolicy  // when to fetch it
	Platform   string      // "linux/amd64"; empty is the engine's own
	User       string      // "uid:gid" in numbers; empty is DefaultUser
	Root       RootMode    //
	Env        []string    // "NAME=value", the base environment of every command
	Limits     Limits      //
	Network    NetworkMode //
	OCIRuntime string      // OCI runtime; empty is the engine's default
	Mounts     []Mount     // directories of the engine's machine, which programs of the sandbox see
	// Isolation is the least that the sandbox must have, or Create must return an IsolationError. Empty: any.
	Isolation Isolation

	// Environment identifies what the sandbox finds installed, in 32 to 64 hexadecimal digits: Create must fail with
	// ErrEnvironment when the driver keeps none of that for the image (CommitEnvironment), and with ErrUnsupported when it
	// keeps none at all.
	Environment string
	// Building makes the sandbox in which Environment is to be installed: EnvironmentDir belongs to its user.
	Building bool

	// Fork is the snapshot that a workspace begins as which is made for the sandbox; nil is none. ErrNotFound when it is
	// not there, ErrInvalid when its workspace has a limit that is enforced in another way.
	Fork *ForkOf

	// OrphanTimeout is how long the guest keeps running when no host is connected to it and no command runs; then it ends
	// itself, and the sandbox is stopped. It is for a sandbox that no host can stop: the program was killed, or its
	// machine lost its power. Zero is for ever.
	OrphanTimeout time.Duration
	// Ephemeral is true when only the creator will ever look for the sandbox: once it is stopped, any process may remove
	// it with its workspace.
	Ephemeral bool

	Labels  map[string]string  // the user's own; names below LabelPrefix are refused with ErrInvalid
	OnPull  func(PullProgress) // called while an image is fetched, never concurrently; may be nil
	Created time.Time          // creation time to record; zero is now
}

// Mount is a directory of the engine's machine in a sandbox, without what is mounted below it. Drivers must refuse,
// with ErrInvalid or ErrPermission, one that would hide what a sandbox consists of or show it what the engine's machine
// is run with.
type Mount struct {
	Source   string `json:"source"`             // absolute path of a directory on the engine's machine
	Target   string `json:"target"`             // absolute path in the sandbox
	Writable bool   `json:"writable,omitempty"` // else it is read-only
}

// PullProgress is how far the fetch of an image is.
type PullProgress struct {
	Image   string // reference that is fetched
	Layer   string // layer id, empty for messages about the whole image
	Status  string // the engine's word, "Downloading", "Extracting", …
	Current int64  // bytes done, zero when unknown
	Total   int64  // bytes to do, zero when unknown
}

// State is the state of a sandbox.
type State string

// States.
const (
	StateCreated State = "created"
	StateRunning State = "running"
	StatePaused  State = "paused"
	StateStopped State = "stopped"
	StateGone    State = "removed"
)

// Info describes an existing sandbox.
type Info struct {
	ID              string // the engine's id, what the other methods take
	SessionID       string
	Instance        string
	Key             string
	Run             string
	Hash            string
	Image           string
	ImageID         string
	ImageEnv        []string // "NAME=value" as the image declares it, of Create and Get; List leaves it nil
	User            string
	Network         NetworkMode
	Mounts          []Mount
	Root            RootMode
	Isolation       Isolation
	Limits          Limits
	Workspace       Enforcement // what holds Limits.WorkspaceBytes
	RootBytes       int64       // how much may be written to a writable root, outside of the workspace; zero is unknown
	RootEnforcement Enforcement // what holds RootBytes: WorkspaceWatched or WorkspaceMemory
	Ephemeral       bool        // Spec.Ephemeral
	State           State
	OOMKilled       bool // the main process was killed for lack of memory
	Created         time.Time
	Labels          map[string]string // the user's own
}

// Filter selects sandboxes; an empty field matches everything.
type Filter struct {
	Instance  string
	SessionID string
	Key       string
	Run       string
}
