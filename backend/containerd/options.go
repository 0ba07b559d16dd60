// Package containerd runs sandboxes on containerd itself, without Docker: on Linux, on the machine that containerd runs
// on, and with the rights to use its socket, to make directories and to enter network namespaces (root).
//
// A sandbox is one container record, one snapshot and one task in a containerd namespace of Workcell's own, whose main
// process is the Workcell guest. The guest listens on a socket in the sandbox's network namespace, which outlives the
// host process and containerd. Beside containerd, everything of a sandbox lies in one directory below Options.StateDir.
//
// What every container gets, whatever its image says, is as in backend/docker: a numeric non-root user, no
// capabilities, no-new-privileges, the project's seccomp filter (containerd alone sets none), a read-only root (unless
// the Spec asks for a writable one), private namespaces, limits on memory (swap included), CPU, processes, files and
// core dumps, a sized /tmp and /dev/shm. docs/containerd.md has the whole list.
//
// # Networks
//
// The default is no network at all. A bridged sandbox gets an address through CNI plugins and reaches public addresses
// only: rules in its network namespace, set before its first process runs and out of its reach, reject what is private,
// link-local (cloud metadata), on the sandbox network itself or an address of this machine, except the machine's
// resolvers on port 53 and what Options.AllowNets lists.
//
// # Spans
//
// containerd.Create, containerd.Pull, containerd.Start, containerd.Stop, containerd.Dial,
// containerd.Remove.
package containerd

import (
	"log/slog"
	"net/netip"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
)

// Defaults of Options.
const (
	DefaultAddress    = "/run/containerd/containerd.sock"
	DefaultNamespace  = "workcell"
	DefaultOCIRuntime = "runc"
	DefaultStateDir   = "/var/lib/workcell/containerd"
	DefaultSubnet     = "10.89.64.0/20"
)

// Options refine New. The zero value, and nil, mean the defaults named at each field.
type Options struct {
	// Address is containerd's socket; empty means DefaultAddress. The environment is not looked at: a command that
	// honours CONTAINERD_ADDRESS reads it and sets this.
	Address string
	// Namespace is containerd's namespace for sandboxes and their images; empty means DefaultNamespace. Other
	// namespaces, Docker's among them, are never touched.
	Namespace string
	// Snapshotter is containerd's snapshotter; empty means overlayfs or, where containerd has none, native.
	Snapshotter string
	// OCIRuntime is the OCI runtime of sandboxes that ask for none; empty means DefaultOCIRuntime.
	OCIRuntime string
	// OCIRuntimes are OCI runtimes by name, as absolute paths of their programs; a name that begins with runsc or kata is
	// of one whose containers have a kernel of their own. "runc", "crun" and "runsc" need no entry when they are in PATH.
	OCIRuntimes map[string]string
	// StateDir holds workspaces and other files of sandboxes, for root alone; empty means DefaultStateDir.
	StateDir string
	// CgroupParent is the control group that holds those of all sandboxes, "/name"; empty means "/" and the namespace. It
	// is made with the first sandbox and removed with the last.
	CgroupParent string
	// CNI refines bridged networks.
	CNI CNIOptions
	// ConfigDir is the directory of Docker's config.json, which holds registry credentials or names their helpers.
	// Empty asks registries anonymously. Registries on a loopback address are spoken to in plain HTTP.
	ConfigDir string
	// Images are those that may be used; nil allows all.
	Images *backend.ImagePolicy
	// Limits replace the defaults (1 core, 2 GiB, 256 processes, 256 MiB of /tmp but at most half of the
	// memory, 16384 open files) where not zero.
	Limits backend.Limits
	// AllowNets are addresses that bridged sandboxes may reach although they are private or this machine's own.
	AllowNets []netip.Prefix
	// CallTimeout bounds one call of containerd's API, pulls excluded; 0 means 2 minutes.
	CallTimeout time.Duration
	// Patience is how long containerd may answer nothing, not even a question for its version, before a call fails
	// with ErrUnavailable; 0 means 5 s.
	Patience time.Duration
	// PullTimeout bounds one pull; 0 means 30 minutes.
	PullTimeout time.Duration
	// Guest replaces the guest that the library carries.
	Guest *backend.Guest
	// TracerProvider makes the spans; nil means that of the span in the caller's context.
	TracerProvider trace.TracerProvider
	// Logger gets what operators may need and callers may not see, such as containerd's own error texts; nil drops it.
	Logger *slog.Logger
}

// CNIOptions refine bridged networks.
type CNIOptions struct {
	// BinDirs hold the plugins bridge, host-local and firewall; empty means /opt/cni/bin and /usr/lib/cni. Without the
	// plugins there is no bridged network.
	BinDirs []string
	// Subnet is the IPv4 network of bridged sandboxes; the zero value means DefaultSubnet.
	Subnet netip.Prefix
	// Bridge is the name of the bridge; empty means "workcell0".
	Bridge string
}
