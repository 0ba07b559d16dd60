// Package launch builds the isolation of a sandbox without an engine. It isolates the current process and then executes
// the guest agent.
//
// A host starts "workcell-guest launch" in new user, PID, mount, network, IPC, and UTS namespaces, with all
// capabilities in them. It sends a [Config] on configFD. The launcher builds the file system, drops all privileges
// permanently, sends a report on statusFD, and executes the guest agent. If it cannot build a part, it reports the
// part's name and exits. It never falls back to weaker isolation.
//
// The configuration is complete: the launcher makes no decisions about the sandbox, to avoid changes of this program,
// which is distributed as a binary.
package launch

// Command is the first argument of the guest agent's binary for this role.
const Command = "launch"

// Inherited descriptors of the launcher.
const (
	configFD   = 3 // delivers the configuration as JSON, and one byte when the launcher is in the cgroups
	statusFD   = 4 // receives a Report as JSON, or two if exec fails; EOF ends the launch
	listenerFD = 5 // listening Unix socket for the guest agent
)

// ListenFD is the descriptor of the listening socket in the guest agent.
const ListenFD = 3

// Config describes the sandbox to build. Paths in the sandbox are absolute and contain no links.
type Config struct {
	Hostname string `json:"hostname"`
	// Owner is the owner of the launcher's files, as a user ID in the sandbox: the tmpfs and the files in it.
	Owner ID `json:"owner"`
	// User is the user of the guest agent and all commands.
	User ID `json:"user"`
	// DropGroups drops the supplementary groups. An unprivileged user's process cannot do this.
	DropGroups bool `json:"drop_groups"`
	// Stage is a host directory accessible to every user. The sandbox's root is mounted over it, invisible to the host.
	Stage    string `json:"stage"`
	RootData string `json:"root_data"` // mount options of the root's tmpfs, for example "size=64m"
	// RootReadonly makes the root read-only after it is complete.
	RootReadonly bool `json:"root_readonly"`

	Trees  []Tree  `json:"trees,omitempty"`  // host files in the sandbox
	Layers []Layer `json:"layers,omitempty"` // host directories with a writable layer
	Dirs   []Dir   `json:"dirs,omitempty"`   // created after the trees
	Links  []Link  `json:"links,omitempty"`
	Files  []File  `json:"files,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"` // additional file systems
	// Masked lists files and directories to make empty. Readonly lists files and directories to make read-only. Missing
	// paths are ignored.
	Masked   []string `json:"masked,omitempty"`
	Readonly []string `json:"readonly,omitempty"`
	// Settings are values for files in /proc/sys, written before the files become read-only. Missing files are ignored.
	Settings []File `json:"settings,omitempty"`

	Rlimits  []Rlimit  `json:"rlimits,omitempty"`
	Seccomp  []byte    `json:"seccomp"`            // filter program, an array of struct sock_filter
	Landlock *Landlock `json:"landlock,omitempty"` // nil if the kernel does not support Landlock

	Argv []string `json:"argv"` // guest agent, by path in the sandbox, with arguments; empty: report and exit
	Env  []string `json:"env"`
}

// ID is a user and a group.
type ID struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Tree is a host directory or file mounted in the sandbox.
type Tree struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	Writable bool   `json:"writable,omitempty"`
	Device   bool   `json:"device,omitempty"`   // device node, which would not work on a nodev mount
	Alone    bool   `json:"alone,omitempty"`    // without the mounts below it
	Optional bool   `json:"optional,omitempty"` // may be missing
}

// Layer is a host directory with a writable tmpfs on top. All changes are lost when the sandbox ends.
type Layer struct {
	Source string   `json:"source"`
	Target string   `json:"target"`
	Data   string   `json:"data"` // mount options of the tmpfs
	Dirs   []string `json:"dirs"` // relative paths in which the owner may create files, parents first
}

// Dir is a directory to create.
type Dir struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
}

// Link is a symbolic link to create.
type Link struct {
	Path   string `json:"path"`
	Target string `json:"target"`
}

// File is a file to create.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode,omitempty"`
	Data []byte `json:"data"`
}

// Mount is a file system to mount: proc, tmpfs, or devpts.
type Mount struct {
	Type   string `json:"type"`
	Target string `json:"target"`
	Exec   bool   `json:"exec,omitempty"` // programs may be executed from it
	Data   string `json:"data,omitempty"`
}

// Rlimit is a soft and hard resource limit. Lower existing limits are kept.
type Rlimit struct {
	Resource int    `json:"resource"`
	Value    uint64 `json:"value"`
}

// Landlock is the Landlock policy. Reading and executing is always allowed. Only the listed paths may be changed.
type Landlock struct {
	Version int      `json:"version"` // Landlock version of the kernel
	Write   []string `json:"write"`   // everything below these paths may be changed, for example /workspace
	Devices []string `json:"devices"` // existing files below these paths may be written to and controlled with ioctl, such as /dev/null
}

// Parts of the isolation, as named in a Report.
const (
	IsolationConfig       = "configuration"
	IsolationFiles        = "file system view"
	IsolationMounts       = "mount namespace"
	IsolationProc         = "proc file system"
	IsolationPivot        = "root file system"
	IsolationLayers       = "writable root"
	IsolationNetwork      = "network namespace"
	IsolationCgroup       = "cgroup namespace"
	IsolationLimits       = "resource limits"
	IsolationUser         = "user namespace"
	IsolationCapabilities = "capabilities"
	IsolationPrivileges   = "no_new_privs"
	IsolationLandlock     = "landlock"
	IsolationSeccomp      = "seccomp filter"
	IsolationGuest        = "guest"
)

// Report is the launcher's result. If Isolation is empty, everything was built.
type Report struct {
	Isolation string `json:"isolation,omitempty"` // failed part
	What      string `json:"what,omitempty"`      // failed operation
	Errno     int    `json:"errno,omitempty"`
}
