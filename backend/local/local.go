// Package local runs sandboxes on this Linux host without an engine. It needs no daemon, no images, and no privileges
// except the privileges of the calling user.
//
// A sandbox is a process in new user, PID, mount, network, IPC, UTS, and cgroup namespaces. PID 1 of the sandbox is the
// Workcell guest agent. The sandbox sees the host's /usr, /bin, /sbin, and /lib* read-only, a generated /etc and /dev,
// and a private /workspace. It sees no other files of the host. Commands have no capabilities and cannot gain any
// (no_new_privs, locked secure bits). The same system call filter as in containers applies to them, as well as Landlock
// if the kernel supports it, and cgroups if they are writable. docs/operations/local.md has the complete list and a
// comparison with containers.
//
//	b, err := local.New(ctx, nil)         // err names the missing isolation
//	m, err := session.NewManager(b, nil)
//
// The driver never falls back to weaker isolation. If a part of the isolation is not available, New or Create returns
// an error wrapping backend.ErrUnsupported. The text names the missing part and how to enable it.
//
// # Images
//
// The driver has no images. References to common images mean programs of the host: "host" and "debian…" the shell,
// "python…" python3, and "node…" node. If the program is missing, Create returns backend.ErrImage. For any other
// reference, it returns backend.ErrUnsupported.
//
// # Life
//
// A sandbox keeps running after the creator process exits. The sandboxes' state is in Options.StateDir. All processes
// of the same user with the same directory see the same sandboxes. While the starting process runs, the sandbox is a
// child process of it, and a goroutine waits for the sandbox's exit, even after Close.
//
// # Spans
//
// local.Create, local.Start, local.Stop, local.Dial, local.Remove, local.Snapshot, local.Rollback.
package local

import (
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
)

// Options configure New. A nil *Options and the zero value select the defaults.
type Options struct {
	// StateDir is the directory for all files of the backend: sandboxes, workspaces, and the guest agent's binary. Only
	// the calling user has access (mode 0700). The directory's file system must allow execution. If empty, it defaults
	// to /var/lib/workcell/local for root, and to .local/state/workcell/local in the home directory for other users.
	StateDir string
	// Images is the policy for image references. If nil, all references are allowed.
	Images *backend.ImagePolicy
	// Limits override the defaults if they are not zero. The defaults are 1 core, 2 GiB of memory, 256 processes, 256
	// MiB of /tmp but at most half of the memory, and 16384 open files. The driver omits default limits not enforceable
	// on this host, see Capabilities.
	Limits backend.Limits
	// Guest replaces the embedded guest agent.
	Guest *backend.Guest
	// TracerProvider creates the spans. If nil, the driver uses the provider of the span in the caller's context.
	TracerProvider trace.TracerProvider
	// Logger receives information only for operators, not for callers. If nil, log messages are discarded.
	Logger *slog.Logger
}

// name is the driver's name in errors and spans.
const name = "local"
