package session

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/record"
)

// Defaults and limits.
const (
	DefaultIdleTimeout = 15 * time.Minute
	DefaultReapEvery   = custody.TouchEvery // one minute
	// DefaultPoolIdle is the idle timeout of pooled sandboxes.
	DefaultPoolIdle = time.Hour
	// MaxForks is the maximum number of sandboxes in one call of Fork.
	MaxForks = 64
)

// CacheDir is the parent directory of caches in a sandbox. Each cache is a subdirectory with the cache's name.
const CacheDir = "/var/cache/workcell"

// ImagePolicy decides which images are allowed.
type ImagePolicy interface {
	// Check must return nil if the reference is allowed. Otherwise it must return an error with the reason.
	Check(ref string) error
}

// Options configure a Manager. Zero fields have defaults.
type Options struct {
	// Instance is the name of this installation on the engine. From other instances, the manager removes only exited
	// sandboxes whose managers had no Instance. If empty, the name is random, so the sandboxes of an earlier process
	// are never found again.
	Instance string
	// Store holds state in addition to the labels. If nil, the manager uses a memory store. The caller must close a
	// store after the manager.
	//
	// With a store and an Instance, the manager also cleans up after dead processes of the instance. When it starts and
	// in each round of the reaper, it removes sandboxes without an owner and expired sandboxes. Therefore either all
	// managers of an instance must share one store, or none may have a store.
	Store record.Store
	// Engine distinguishes the engines of one Store. If empty, it is the driver's name.
	Engine string
	// Images decides which images are allowed. If nil, every image is allowed.
	Images ImagePolicy
	// Pool lists the sandboxes to create in advance. If a pooled sandbox matches a request, Open returns it instead of
	// creating a new one. Use it in long-running processes: filling the pool takes as long as creating the sandboxes,
	// and the manager removes unused ones when it is closed.
	Pool []PoolSpec
	// Defaults are settings for sandboxes whose Request does not specify them.
	Defaults Defaults
	// AllowRoot allows Request.User to be root.
	AllowRoot bool
	// MaxSandboxes is the maximum number of sandboxes of this manager, including pooled sandboxes and sandboxes that are
	// being created. To open a sandbox at the limit, the manager removes a pooled one. Zero means no limit.
	MaxSandboxes int
	// IdleTimeout is the idle time after which a session is closed. Request.IdleTimeout overrides it. If zero, it is
	// DefaultIdleTimeout. If negative, sessions do not time out.
	IdleTimeout time.Duration
	// ReapEvery is the interval between searches for idle sessions and for sandboxes of dead processes. If zero, it is
	// DefaultReapEvery. If negative, the manager never searches.
	ReapEvery time.Duration
	// MaxFileBytes is the maximum size of one WriteFile, and of one ReadFile without a limit. If zero, it is
	// sandbox.DefaultMaxFileBytes.
	MaxFileBytes int64
	// TracerProvider creates spans. If nil, the global provider is used.
	TracerProvider trace.TracerProvider
	// Egress gives sandboxes without a network access to the hosts in Request.Egress. If nil, Open returns an error
	// wrapping backend.ErrUnsupported for requests with Egress.
	//
	// The gateway may also have the method DropGrants(sandbox string), like egress.Gateway. The manager then calls it
	// when the owner of a sandbox changes.
	Egress sandbox.EgressGateway
	// Environments installs Request.Environment. It requires an Instance and Egress. If nil, Open returns an error
	// wrapping backend.ErrUnsupported for requests with Environment.
	Environments EnvironmentBuilder
	// Caches are the available caches for Request.Caches.
	Caches []Cache
	// Join lets processes with the same Instance and Store share their sandboxes. All of them must set it. Open and
	// Lookup then also return sessions for sandboxes of other living processes. Closing such a session or the scope
	// removes the sandbox, even if another process created it. Closing the manager keeps the sandboxes of other
	// processes. Without Join, opening such a sandbox fails with backend.ErrExists; use Connect.
	Join bool
	// Logger receives events for operators, for example refused IDs, lost sandboxes, and failed cleanup. If nil, events
	// are discarded.
	Logger *slog.Logger
	// Labels are set on every sandbox. Names with the prefix backend.LabelPrefix are refused.
	Labels map[string]string
}

// Defaults are an operator's settings for all sandboxes of a manager. A Request overrides them, and they override the
// defaults of the driver and the package. The limits on a Request (Request.Ceiling, Options.Images) also apply to them.
type Defaults struct {
	Limits      backend.Limits    `json:"limits,omitzero"`       // for zero fields of Request.Limits
	ExecTimeout time.Duration     `json:"exec_timeout,omitzero"` // for Request.ExecTimeout
	OCIRuntime  string            `json:"oci_runtime,omitempty"` // for Request.OCIRuntime
	Images      map[string]string `json:"images,omitempty"`      // by Request.Language, for requests with DefaultImage
	IdlePolicy  record.IdlePolicy `json:"idle_policy,omitempty"` // for new named sandboxes whose files survive a stop
	Mounts      []backend.Mount   `json:"mounts,omitempty"`      // in addition to Request.Mounts
	// Isolation is the minimum for every opened sandbox; Request.Isolation can only be stricter.
	Isolation backend.Isolation `json:"isolation,omitempty"`
}

// Request describes a sandbox. Only Image is required.
//
// All callers that open a key share one session. Therefore the fields that configure the sandbox must be the same in
// every Open, except for the fields noted below. If a field differs, Open returns a ConflictError.
type Request struct {
	Image string // image reference
	// Language is the frontmatter runtime of Image, or empty if unknown. It does not affect the sandbox. If this is a base
	// request (WithBase), an agent with code in another language uses the image of that language instead of Image.
	Language string
	// DefaultImage means that Image is only the default for Language and was not requested. Defaults.Images overrides
	// such an Image.
	DefaultImage bool
	// Pull controls when the image is pulled. The first opener's value applies.
	Pull backend.PullPolicy
	// OnPull is called with progress while Open waits for a pull. Calls are never concurrent. It may be nil.
	OnPull func(backend.PullProgress)

	User string            // "uid", "uid:gid" or "root"; empty is backend.DefaultUser
	Root backend.RootMode  // zero is read-only
	Env  map[string]string // environment of every command; overrides the image's
	// RootSet means that Root was requested. Without it, WithDefaults replaces a zero Root.
	RootSet bool

	Limits     backend.Limits // zero fields are the driver's defaults
	Ceiling    backend.Limits // maximum of each limit; also replaces unset limits; zero fields set no maximum
	OCIRuntime string         // OCI runtime; empty is the engine's default
	// Isolation is the minimum for the sandbox. If the sandbox has less, Open returns a backend.IsolationError.
	// Isolation does not change the sandbox. If empty, there is no minimum.
	Isolation backend.Isolation

	Network backend.NetworkMode // empty is NetworkNone
	Egress  sandbox.Egress      // with NetworkNone: hosts that commands can reach through this process

	// Mounts are directories on the engine's host. Read docs/operations/mounts.md before you make one writable.
	Mounts []backend.Mount
	// Environment is the set of packages to install. Opening the first sandbox with an environment waits for the
	// installation. The installation uses a separate sandbox, which does not count against Options.MaxSandboxes.
	Environment Environment
	// Caches are the names of the sandbox's caches, from Options.Caches.
	Caches []string

	// IdleTimeout overrides Options.IdleTimeout. If zero, the manager's timeout applies. If negative, the sandbox does
	// not time out. If several openers set it, the longest timeout applies. If no process is left to close the sandbox,
	// it exits after the longest of two minutes, the first opener's timeout, and Retention, plus two minutes.
	IdleTimeout time.Duration
	// IdlePolicy applies to named sandboxes (UserKey) of managers with an Instance and a Store. If empty, an existing
	// sandbox keeps the policy, and a new one has Defaults.IdlePolicy or IdleRemove. IdleStop requires files to survive
	// a stop. If the driver cannot keep them, for example in a workspace with a size limit, Open returns an error
	// wrapping backend.ErrUnsupported. When a sandbox is stopped because it is idle, the session is closed for all
	// holders. The sandbox then has no owner until it is opened again, and closing the manager does not remove it.
	IdlePolicy record.IdlePolicy
	// ExecTimeout is the default timeout for commands, from sandbox.MinExecTimeout to sandbox.MaxExecTimeout. If zero,
	// it is sandbox.DefaultExecTimeout. The first opener's value applies.
	ExecTimeout time.Duration
	// Retention is how long the sandbox is kept for inspection after the end of the run (CloseScope). A retained
	// sandbox accepts no calls. The first opener's value applies.
	Retention time.Duration

	// Prepare is called once with a new sandbox before a caller receives it, for example to write files. If it fails,
	// Open fails and the sandbox is removed. Only the first opener's function is called. It may be nil.
	Prepare func(ctx context.Context, s *Session) error
	// OnAdopt is called once with a sandbox adopted from a dead process, before a caller receives it. If it fails, Open
	// fails and the sandbox is kept. Only the first opener's function is called. It may be nil.
	OnAdopt func(ctx context.Context, s *Session) error

	// Mode controls how Open handles an existing sandbox of the key.
	Mode OpenMode
	// Match lists the fields in which OpenAsIs allows no difference, with the names of ConflictError.Fields: "image",
	// "user", "root", "network", "oci_runtime", "environment", "mounts", "cache", and "limits". Zero limits of the
	// request are not compared.
	Match []string

	asked backend.Limits  // in a prepared request, Limits without Defaults
	fork  *backend.ForkOf // snapshot from which the workspace of a new sandbox is copied
}

// OpenMode controls how Open handles an existing sandbox of the key.
type OpenMode int

// Open modes.
const (
	// OpenShared requires a sandbox with the same request. Otherwise Open returns a ConflictError.
	OpenShared OpenMode = iota
	// OpenAsIs uses an existing sandbox without changes. If the engine has only the workspace, OpenAsIs recreates the
	// sandbox with the recorded configuration. Recorded mounts, a recorded OCI runtime, and a recorded network must
	// then also be in the request or in Defaults; otherwise Open returns a ConflictError. A run's sandbox gets the
	// requested network. Commands reach allowed hosts only if the request has the same Egress.
	OpenAsIs
	// OpenRebuild recreates a sandbox whose request differs or whose image has changed. The new sandbox has the same ID
	// and the same workspace, but no other files of the old one. It requires a named sandbox and a manager with an
	// Instance and a Store. The old sandbox is removed only after a test sandbox with the new configuration has worked.
	// If commands run in the old sandbox, it is kept, and Open returns an error wrapping backend.ErrExists. The owner
	// of the workspace's files and the workspace's size cannot change; the error then wraps backend.ErrUnsupported.
	// After any failure, the workspace is kept, and opening the key resumes with it. If this manager has a session with
	// the same request, Open returns it unchanged.
	OpenRebuild
)

// CloseOptions are options for CloseSession.
type CloseOptions struct {
	// KeepWorkspace removes the sandbox but keeps the workspace. With an Instance and a Store, opening the key within
	// 30 days returns a sandbox with the same ID and files. For a named sandbox, the request may differ, except for User
	// and the workspace's size. CloseScope deletes the workspace, and it is also deleted after these 30 days. If the
	// workspace cannot outlive the sandbox, CloseSession returns an error wrapping backend.ErrUnsupported and closes
	// nothing. If false, the workspace is deleted.
	KeepWorkspace bool
}

// State is the state of a session or sandbox.
type State string

// States of a session.
const (
	StateCreated State = "created" // being created; only in List
	StateReady   State = "ready"   // accepts calls
	StatePooled  State = "pooled"  // ready in the pool, not in use yet; only in List
	StateStopped State = "stopped" // processes exited, files may still exist; only in List
	StateLost    State = "lost"    // the sandbox died or was removed by another program
	StateKept    State = "kept"    // retained for inspection after the end of the run; only in List
	StateClosed  State = "closed"  // closed by the owner, by the run, or by the reaper
)

// Info describes a sandbox.
type Info struct {
	ID      string              `json:"id"`
	Key     Key                 `json:"key"`
	Run     string              `json:"run,omitempty"` // owning run; empty for named sandboxes
	State   State               `json:"state"`
	Reason  string              `json:"reason,omitempty"` // why the sandbox has the state; see record.Record.Reason
	Image   string              `json:"image"`
	User    string              `json:"user"`
	Network backend.NetworkMode `json:"network"`
	Mounts  []backend.Mount     `json:"mounts,omitempty"`
	Egress  sandbox.Egress      `json:"egress,omitzero"` // only for an open or recorded session
	// Environment is the installed environment. It is set only for an open or recorded session.
	Environment Environment       `json:"environment,omitzero"`
	Root        backend.RootMode  `json:"root"`
	Limits      backend.Limits    `json:"limits"`
	Isolation   backend.Isolation `json:"isolation,omitempty"`
	// OCIRuntime is the requested OCI runtime. It is set only for an open or recorded session.
	OCIRuntime string `json:"oci_runtime,omitempty"`
	// Workspace is the mechanism that enforces Limits.WorkspaceBytes.
	Workspace backend.Enforcement `json:"workspace,omitempty"`
	// RootBytes is how much may be written outside the workspace if the root is writable. RootEnforcement is the
	// mechanism for this limit.
	RootBytes       int64               `json:"root_bytes,omitempty"`
	RootEnforcement backend.Enforcement `json:"root_enforcement,omitempty"`
	Created         time.Time           `json:"created"`
	Workdir         string              `json:"workdir"`
	Programs        []string            `json:"programs,omitempty"` // interpreters found; only for an open session
	Backend         string              `json:"backend"`
	EngineID        string              `json:"engine_id"` // for operators; never show it to an agent
	Labels          map[string]string   `json:"labels,omitempty"`
	// LastUsed is when the session's last call began or ended. It is zero if only another process knows the time.
	LastUsed time.Time `json:"last_used,omitzero"`
	// IdleTimeout and IdlePolicy are zero if only another process knows them. ExecTimeout is set only for an open session.
	// A negative value means no timeout.
	IdleTimeout time.Duration     `json:"idle_timeout,omitempty"`
	IdlePolicy  record.IdlePolicy `json:"idle_policy,omitempty"`
	ExecTimeout time.Duration     `json:"exec_timeout,omitempty"`
}
