// Package containerd runs sandboxes directly on containerd, without Docker. It requires Linux and must run on
// containerd's host. It needs root privileges to use containerd's socket, create directories, and enter network
// namespaces.
//
// A sandbox consists of one container record, one snapshot, and one task in a separate containerd namespace. The main
// process is the Workcell guest agent. The guest agent listens on a socket in the sandbox's network namespace. This
// socket works without the host process and without containerd. All other files of a sandbox are in one directory below
// Options.StateDir.
//
// Every container has the same settings as in backend/docker, regardless of the image: a numeric non-root user, no
// capabilities, no-new-privileges, Workcell's seccomp filter (containerd itself sets none), a read-only root (unless
// the Spec requests a writable root), private namespaces, limits for memory (including swap), CPU, processes, files,
// and core dumps, and a sized /tmp and /dev/shm. docs/operations/containerd.md has the complete list.
//
// # Networks
//
// By default, a sandbox has no network. A bridged sandbox gets an address through CNI plugins and can only reach public
// addresses. Rules in the network namespace reject all other addresses: private addresses, link-local addresses (cloud
// metadata), addresses on the sandbox network, and addresses of this host. The rules are set before the first process
// runs, and the sandbox cannot change them. Exceptions are the host's resolvers on port 53 and the addresses in
// Options.AllowNets.
//
// # Spans
//
// containerd.Create, containerd.Pull, containerd.Start, containerd.Stop, containerd.Dial, containerd.Remove,
// containerd.Snapshot, containerd.Rollback.
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
	DefaultAddress   = "/run/containerd/containerd.sock"
	DefaultNamespace = "workcell"
	DefaultStateDir  = "/var/lib/workcell/containerd"
)

// Options configure New. A nil *Options and the zero value select the defaults.
type Options struct {
	// Address is containerd's socket. If empty, it defaults to DefaultAddress. New does not read the environment:
	// commands with support for CONTAINERD_ADDRESS must read the variable and set this field.
	Address string
	// Namespace is containerd's namespace for sandboxes and their images. If empty, it defaults to DefaultNamespace.
	// The driver never touches other namespaces, for example Docker's.
	Namespace string
	// Snapshotter is containerd's snapshotter. If empty, it defaults to overlayfs, or to native if overlayfs is not
	// available.
	Snapshotter string
	// OCIRuntime is the OCI runtime of sandboxes without a requested runtime. If empty, it defaults to
	// "runc".
	OCIRuntime string
	// OCIRuntimes maps names of OCI runtimes to absolute paths of their programs. A name with the prefix runsc or kata
	// means the runtime's containers have a separate kernel. "runc", "crun", and "runsc" need no entry if they are in
	// PATH.
	OCIRuntimes map[string]string
	// StateDir is the directory for workspaces and other files of sandboxes. Only root can access it. If empty, it
	// defaults to DefaultStateDir.
	StateDir string
	// CgroupParent is the parent of all sandboxes' control groups, for example "/name". If empty, it defaults to "/"
	// and the namespace. The driver creates it with the first sandbox and removes it with the last.
	CgroupParent string
	// CNI configures bridged networks.
	CNI CNIOptions
	// ConfigDir is the directory of Docker's config.json, which contains registry credentials or names credential
	// helpers. If empty, pulls are anonymous. Connections to registries on loopback addresses use plain HTTP.
	ConfigDir string
	// Images is the policy for images. If nil, all images are allowed.
	Images *backend.ImagePolicy
	// Limits override the defaults if they are not zero. The defaults are 1 core, 2 GiB of memory, 256 processes, 256
	// MiB of /tmp but at most half of the memory, and 16384 open files.
	Limits backend.Limits
	// AllowNets lists private addresses and addresses of this host to which bridged sandboxes may connect.
	AllowNets []netip.Prefix
	// CallTimeout bounds one call of containerd's API, except pulls. If zero, it defaults to 2 minutes.
	CallTimeout time.Duration
	// Patience is how long containerd may leave a call and all version requests unanswered before the call fails with
	// ErrUnavailable. If zero, it defaults to 5 seconds.
	Patience time.Duration
	// PullTimeout bounds one pull. If zero, it defaults to 30 minutes.
	PullTimeout time.Duration
	// Guest replaces the embedded guest agent.
	Guest *backend.Guest
	// TracerProvider creates the spans. If nil, the driver uses the provider of the span in the caller's context.
	TracerProvider trace.TracerProvider
	// Logger receives information only for operators, not for callers, for example containerd's original error texts.
	// If nil, log messages are discarded.
	Logger *slog.Logger
}

// CNIOptions configure bridged networks.
type CNIOptions struct {
	// BinDirs are the directories of the plugins bridge, host-local, and firewall. If empty, BinDirs defaults to
	// /opt/cni/bin and /usr/lib/cni. Without the plugins, bridged networks are not available.
	BinDirs []string
	// Subnet is the IPv4 network of bridged sandboxes. The zero value means 10.89.64.0/20.
	Subnet netip.Prefix
	// Bridge is the name of the bridge. If empty, it defaults to "workcell0".
	Bridge string
}
