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

// Defaults and bounds.
const (
	DefaultIdleTimeout = 15 * time.Minute
	DefaultReapEvery   = custody.TouchEvery
	// DefaultPoolIdle is how long sandboxes in a pool wait for a caller to open one.
	DefaultPoolIdle = time.Hour
	// MaxForks is how many sandboxes one call of Fork makes.
	MaxForks = 64
	// CacheDir is where sandboxes find caches, each by its name.
	CacheDir = "/var/cache/workcell"
)

// ImagePolicy decides which images may be used.
type ImagePolicy interface {
	// Check must return nil for an allowed reference, else an error with the reason.
	Check(ref string) error
}

// Options configure a Manager. Zero fields are defaults.
type Options struct {
	// Instance names this installation on the engine; other installations' sandboxes are never touched. Empty is
	// random: then nothing of an earlier process is ever found again.
	Instance string
	// Store keeps what labels cannot hold. Nil is a memory store. The caller closes its own store, after the manager.
	//
	// With a store and an Instance the manager also looks after what other processes of the instance left when they
	// died: at its start and with every round of the reaper it removes what nobody has any more and what has expired.
	// So all managers of an instance must have one store in common, or none.
	Store record.Store
	// Engine distinguishes the engines whose sandboxes are in one Store. Empty is the driver's name.
	Engine string
	// Images decides which images may be used. Nil allows every image.
	Images ImagePolicy
	// Pool keeps sandboxes ready, of which Open takes one instead of making one. It is for processes that live long:
	// filling it takes as long as making what is in it, and the end of the manager removes what nobody took.
	Pool []PoolSpec
	// Defaults are for sandboxes whose Request says nothing.
	Defaults Defaults
	// AllowRoot permits Request.User to be root.
	AllowRoot bool
	// MaxSandboxes bounds the sandboxes of this manager, those under way and those in the pool included; one in the pool
	// makes room for one that is opened. Zero is no bound.
	MaxSandboxes int
	// IdleTimeout is how long a session may be idle before it is closed, unless its Request says otherwise. Zero is
	// DefaultIdleTimeout, negative never.
	IdleTimeout time.Duration
	// ReapEvery is how often idle sessions, and what other processes left, are looked for. Zero is DefaultReapEvery,
	// negative never.
	ReapEvery time.Duration
	// MaxFileBytes bounds one WriteFile, and one ReadFile without a limit of its own. Zero is DefaultMaxFileBytes.
	MaxFileBytes int64
	// TracerProvider makes spans. Nil is the global one.
	TracerProvider trace.TracerProvider
	// Egress connects sandboxes without a network to what Request.Egress allows. Nil: a request that has one is
	// backend.ErrUnsupported.
	Egress sandbox.EgressGateway
	// Environments installs what Request.Environment asks for, which needs an Instance and Egress. Nil: a request that has
	// one is backend.ErrUnsupported.
	Environments EnvironmentBuilder
	// Caches are what Request.Caches can name.
	Caches []Cache
	// Join has processes with the same Instance and Store, all of which set it, use each other's sandboxes: Open and
	// Lookup also return a session of one that another living process has. Who closes such a session, or its scope,
	// removes the sandbox, whichever process made it; the end of the manager leaves what is another's. Without it that is
	// backend.ErrExists, and Connect is for it.
	Join bool
	// Logger takes what operators should know: refused ids, lost sandboxes, failed clean-up. Nil discards.
	Logger *slog.Logger
	// Labels are set on every sandbox; names below backend.LabelPrefix are refused.
	Labels map[string]string
}

// Defaults are what an operator sets for all sandboxes of a manager. A Request goes before them, and they go before the
// defaults of driver and package; what bounds a Request (Request.Ceiling, Options.Images) bounds them, too.
type Defaults struct {
	Limits      backend.Limits    `json:"limits,omitzero"`       // for fields that Request.Limits leaves out
	ExecTimeout time.Duration     `json:"exec_timeout,omitzero"` // for Request.ExecTimeout
	OCIRuntime  string            `json:"oci_runtime,omitempty"` // for Request.OCIRuntime
	Images      map[string]string `json:"images,omitempty"`      // by Request.Language, for requests with DefaultImage
	IdlePolicy  record.IdlePolicy `json:"idle_policy,omitempty"` // for new named sandboxes whose files survive a stop
	Mounts      []backend.Mount   `json:"mounts,omitempty"`      // beside those of Request
	// Isolation is the least that every opened sandbox must have; Request.Isolation can only be stricter.
	Isolation backend.Isolation `json:"isolation,omitempty"`
}

// Request describes a sandbox. Only Image is required.
//
// A session is shared by all who open its key, so the fields that shape the sandbox (all but those that say otherwise)
// must be the same in every Open; a difference is a ConflictError.
type Request struct {
	Image      string              // image reference
	User       string              // "uid", "uid:gid" or "root"; empty is backend.DefaultUser
	Root       backend.RootMode    // zero is read-only
	Env        map[string]string   // environment of every command, over the image's
	Limits     backend.Limits      // zero fields are the driver's defaults
	Ceiling    backend.Limits      // Limits that are above these, or left out, become these; zero fields are no ceiling
	Network    backend.NetworkMode // empty is NetworkNone
	OCIRuntime string              // OCI runtime; empty is the engine's default
	Egress     sandbox.Egress      // with NetworkNone: the hosts that commands reach through this process
	// Isolation is the least that the sandbox must have, or Open returns a backend.IsolationError. It does not shape the
	// sandbox. Empty: any.
	Isolation backend.Isolation
	Mounts    []backend.Mount // directories of the engine's machine; see docs/mounts.md before one is writable

	// Environment is what commands find installed. Who opens the first sandbox that has it waits for its installation, in
	// a sandbox of its own that Options.MaxSandboxes does not count.
	Environment Environment

	// Caches are names of Options.Caches, which the sandbox reads.
	Caches []string

	// RootSet makes WithDefaults keep Root also when it is the zero value.
	RootSet bool
	// Language is the runtime of frontmatter that Image is for, empty when it is unknown. The sandbox does not depend on
	// it, only whether somebody with code in another language takes the image from a base.
	Language string
	// DefaultImage: nobody asked for Image, it is only what Language has. Defaults.Images goes before it.
	DefaultImage bool

	// asked is Limits without Defaults, in a prepared request.
	asked backend.Limits
	// fork is the snapshot that the workspace of a new sandbox begins as.
	fork *backend.ForkOf

	// IdleTimeout: zero is the manager's, negative never. Of several openers' the longest holds; the sandbox's own end,
	// when no process is left that could close it, goes by the first opener's, and two minutes more.
	IdleTimeout time.Duration
	// IdlePolicy is for named sandboxes (UserKey) of managers with an Instance and a Store. Empty is what the key's
	// sandbox has, and Defaults.IdlePolicy or IdleRemove for a new one. IdleStop needs files that survive a stop: with a
	// driver that cannot keep them, or not those of a workspace with a size, it is backend.ErrUnsupported. A session that
	// idleness stopped is closed for those who have it; its sandbox belongs to nobody until it is opened again, and the
	// end of the manager leaves it.
	IdlePolicy record.IdlePolicy
	// ExecTimeout is the timeout of commands that name none, MinExecTimeout to MaxExecTimeout. Zero is
	// DefaultExecTimeout. The first opener's holds.
	ExecTimeout time.Duration
	// Retention is how long the sandbox outlives the end of its run (CloseScope), for somebody to look at; it accepts
	// no calls then. The first opener's holds.
	Retention time.Duration
	// Pull is when the image is fetched; the first opener's holds.
	Pull backend.PullPolicy
	// OnPull is called while this Open waits for the image to be fetched, never concurrently. May be nil.
	OnPull func(backend.PullProgress)
	// Prepare is called once with a sandbox that was just made, before anybody gets it: to put files in place. When it
	// fails, so does Open, and the sandbox is removed. The first opener's is called; may be nil.
	Prepare func(ctx context.Context, s *Session) error
	// OnAdopt is called once with a sandbox that was adopted from a dead process, before anybody gets it.
	// When it fails, so does Open, and the sandbox stays. The first opener's is called; may be nil.
	OnAdopt func(ctx context.Context, s *Session) error
	// Mode is what Open does about a sandbox that the key has.
	Mode OpenMode
	// Match names the fields, as ConflictError.Fields does, in which OpenAsIs allows no difference all the same: "image",
	// "user", "root", "network", "oci_runtime", "environment", "mounts", "cache", and "limits", of which only those
	// count that are not zero.
	Match []string
}

// OpenMode is what Open does about a sandbox that its key has.
type OpenMode int

// Open modes.
const (
	// OpenShared: it must be what the request describes; a difference is a ConflictError.
	OpenShared OpenMode = iota
	// OpenAsIs takes it as it is, or creates it again as it was where the engine has only its workspace. The request or
	// Defaults must then have its mounts, OCI runtime and, if named, network, or it is a ConflictError. The sandbox of a
	// run gets the requested network. Hosts are served only if the request has the same Egress.
	OpenAsIs
	// OpenRebuild creates it again when it was made for another request, or from what its image was before: with the same
	// id and the files of its workspace, and without the rest of its files. It is for named sandboxes of managers with an
	// Instance and a Store. The old one goes when another one of its kind was seen to work; one in which commands run
	// stays, which is backend.ErrExists. Who owns the workspace's files, and its size, cannot change:
	// backend.ErrUnsupported. Whatever fails, the workspace is kept, and opening the key resumes with it. A session that
	// is open here with the same request is returned as it is.
	OpenRebuild
)

// CloseOptions refine CloseSession.
type CloseOptions struct {
	// KeepWorkspace removes the sandbox without its workspace. With an Instance and a Store, an Open of the key within 30
	// days has the same id and the files again, whatever else the request asks for; with CloseScope, or after that time,
	// they go. A workspace that ends with its sandbox is backend.ErrUnsupported, and nothing is closed. The zero value
	// deletes it.
	KeepWorkspace bool
}

// State is the state of a session or sandbox as callers see it.
type State string

// States of a session.
const (
	StateCreated State = "created" // being made; only seen in List
	StateReady   State = "ready"   // accepts calls
	StatePooled  State = "pooled"  // ready, and nobody's yet; only seen in List
	StateStopped State = "stopped" // its processes ended, its files may be there; only seen in List
	StateLost    State = "lost"    // the sandbox died or was removed behind our back
	StateKept    State = "kept"    // its run is over, and it stays for a while to be looked at; only seen in List
	StateClosed  State = "closed"  // closed by its owner, its run or the reaper
)

// Info describes a sandbox.
type Info struct {
	ID      string              `json:"id"`
	Key     Key                 `json:"key"`
	Run     string              `json:"run,omitempty"` // owning run, empty for named sandboxes
	State   State               `json:"state"`
	Reason  string              `json:"reason,omitempty"` // Record.Reason
	Image   string              `json:"image"`
	User    string              `json:"user"`
	Network backend.NetworkMode `json:"network"`
	Mounts  []backend.Mount     `json:"mounts,omitempty"`
	Egress  sandbox.Egress      `json:"egress,omitzero"` // only of a session that is open or recorded
	// Environment is what it found installed; only of a session that is open or recorded.
	Environment Environment       `json:"environment,omitzero"`
	Root        backend.RootMode  `json:"root"`
	Limits      backend.Limits    `json:"limits"`
	Isolation   backend.Isolation `json:"isolation,omitempty"`
	// OCIRuntime is the requested OCI runtime; only of a session that is open or recorded.
	OCIRuntime string `json:"oci_runtime,omitempty"`
	// Workspace is what holds Limits.WorkspaceBytes.
	Workspace backend.Enforcement `json:"workspace,omitempty"`
	// RootBytes is how much may be written outside of the workspace where the root can be written to, RootEnforcement what
	// holds it.
	RootBytes       int64               `json:"root_bytes,omitempty"`
	RootEnforcement backend.Enforcement `json:"root_enforcement,omitempty"`
	Created         time.Time           `json:"created"`
	Workdir         string              `json:"workdir"`
	Programs        []string            `json:"programs,omitempty"` // interpreters found; only of an open session
	Backend         string              `json:"backend"`
	EngineID        string              `json:"engine_id"` // for operators; never show it to an agent
	Labels          map[string]string   `json:"labels,omitempty"`
	// LastUsed is when the session's last call began or ended; zero when another process knows.
	LastUsed time.Time `json:"last_used,omitzero"`
	// IdleTimeout and IdlePolicy are zero if only another process knows them. ExecTimeout holds for an open session.
	// Negative is never.
	IdleTimeout time.Duration     `json:"idle_timeout,omitempty"`
	IdlePolicy  record.IdlePolicy `json:"idle_policy,omitempty"`
	ExecTimeout time.Duration     `json:"exec_timeout,omitempty"`
}
