// Package local runs sandboxes on this Linux machine without any engine: no daemon, no image, no privileges but those
// of the calling user.
//
// A sandbox is a process, the Workcell guest, as PID 1 of fresh user, pid, mount, network, IPC, UTS and cgroup
// namespaces. It sees the host's /usr, /bin, /sbin and /lib* read-only, an /etc and /dev made for it, and a /workspace
// of its own; nothing else of the host's files. Commands have no capabilities, cannot gain any (no_new_privs, locked
// secure bits), and are held by the same system call filter as in containers, by Landlock where the kernel has it, and
// by cgroups where they can be written. docs/local.md has the whole list and an honest comparison with containers.
//
//	b, err := local.New(ctx, nil)         // err names the isolation that cannot be had here
//	m, err := session.NewManager(b, nil)
//
// There is no silent step down: isolation that cannot be had makes New or Create fail with backend.ErrUnsupported and
// a text that says which part it is and how to mend it.
//
// # Images
//
// There are none. The references of the usual images stand for programs of the host: "host", "debian…" for its shell,
// "python…" for its python3, "node…" for its node. A reference whose program is missing is backend.ErrImage, any
// other one backend.ErrUnsupported.
//
// # Life
//
// A sandbox outlives the process that made it. Its state lies in Options.StateDir, and every process of the same user
// that names the same directory sees the same sandboxes. While the process that started a sandbox lives, the sandbox is
// its child, and a goroutine waits for its end, beyond Close if need be.
//
// # Spans
//
// local.Create, local.Start, local.Stop, local.Dial, local.Remove, local.Snapshot,
// local.Rollback.
package local

import (
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
)

// Options refine New. The zero value, and nil, mean the defaults named at each field.
type Options struct {
	// StateDir holds all that the backend keeps: sandboxes, workspaces, the guest's binary. It belongs to the calling
	// user alone (mode 0700) and must allow execution. Empty is /var/lib/workcell/local for root, and
	// .local/state/workcell/local in the home directory for everybody else.
	StateDir string
	// Images are the references that may be used; nil allows all.
	Images *backend.ImagePolicy
	// Limits replace the defaults (1 core, 2 GiB, 256 processes, 256 MiB of /tmp but at most half of the memory, 16384
	// open files) where not zero. A default that cannot be enforced here is left out, see Capabilities.
	Limits backend.Limits
	// Guest replaces the guest that the library carries.
	Guest *backend.Guest
	// TracerProvider makes the spans; nil means that of the span in the caller's context.
	TracerProvider trace.TracerProvider
	// Logger gets what operators may need and callers may not see; nil drops it.
	Logger *slog.Logger
}

// name is the driver's, in errors and spans.
const name = "local"
