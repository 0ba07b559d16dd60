// Package launch builds the isolation of a sandbox that no engine makes, around its own process, and becomes the guest.
//
// A host starts "workcell-guest launch" in fresh user, pid, mount, network, IPC and UTS namespaces, with all
// capabilities over them, and hands it a [Config] on [ConfigFD]. The launcher builds the file system, gives up every
// privilege in that order that makes it final, reports on [StatusFD] and executes the guest. What it cannot build it
// reports, by the name of the part that failed, and ends: it never settles for less.
//
// The configuration is complete: the launcher has no opinion of its own about what a sandbox should look like, so
// that this program, which travels in binary form, need not change with it.
package launch

// Command is the role's name, the first argument of the guest's binary.
const Command = "launch"

// Descriptors that the launcher inherits.
const (
	ConfigFD   = 3 // gives the configuration as JSON, and then, when the launcher is in its cgroups, one byte
	StatusFD   = 4 // takes a Report as JSON, two if the guest cannot be executed; its end is the end of launching
	ListenerFD = 5 // a listening Unix socket, which the guest serves hosts on
)

// ListenFD is the descriptor on which the guest finds the listening socket.
const ListenFD = 3

// Config is what a launcher is to build. Paths in the sandbox are absolute and without links.
type Config struct {
	Hostname string `json:"hostname"`
	// Owner is the user, as the sandbox counts users, whose files the launcher makes: its own tmpfs and what is in it.
	Owner ID `json:"owner"`
	// User is the user of the guest and of all commands.
	User ID `json:"user"`
	// DropGroups gives up the supplementary groups. An ordinary user's process may not.
	DropGroups bool `json:"drop_groups"`
	// Stage is a directory of the host that every user may enter; the sandbox's root is built over it, unseen by the
	// host.
	Stage    string `json:"stage"`
	RootData string `json:"root_data"` // options of the tmpfs that is the sandbox's root
	// RootReadonly makes the root read-only when all is built.
	RootReadonly bool `json:"root_readonly"`

	Trees  []Tree  `json:"trees,omitempty"`  // parts of the host that show in the sandbox
	Layers []Layer `json:"layers,omitempty"` // such that can be written to, in a layer of the sandbox's own
	Dirs   []Dir   `json:"dirs,omitempty"`   // after the trees
	Links  []Link  `json:"links,omitempty"`
	Files  []File  `json:"files,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"` // file systems of the sandbox's own
	// Masked are files and directories that show empty, Readonly such that cannot be written. Where there is none of a
	// name, there is nothing to do.
	Masked   []string `json:"masked,omitempty"`
	Readonly []string `json:"readonly,omitempty"`
	// Settings are values for files below /proc/sys, written before they become read-only. One that is not there is
	// passed over.
	Settings []File `json:"settings,omitempty"`

	Rlimits  []Rlimit  `json:"rlimits,omitempty"`
	Seccomp  []byte    `json:"seccomp"`            // the filter program, struct sock_filter after struct sock_filter
	Landlock *Landlock `json:"landlock,omitempty"` // nil: the kernel has none

	Argv []string `json:"argv"` // the guest, as the sandbox sees it, and its arguments; empty: report and end
	Env  []string `json:"env"`
}

// ID is a user and a group.
type ID struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Tree is a directory or file of the host at a place in the sandbox.
type Tree struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	Writable bool   `json:"writable,omitempty"`
	Device   bool   `json:"device,omitempty"`   // a device node, which is useless on a nodev mount
	Alone    bool   `json:"alone,omitempty"`    // without what is mounted below it
	Optional bool   `json:"optional,omitempty"` // may be missing
}

// Layer is a directory of the host with a writable tmpfs on top, of which nothing is left when the sandbox ends.
type Layer struct {
	Source string   `json:"source"`
	Target string   `json:"target"`
	Data   string   `json:"data"` // options of the tmpfs
	Dirs   []string `json:"dirs"` // relative: directories in which the owner may make files, parents first
}

// Dir is a directory to make.
type Dir struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
}

// Link is a symbolic link to make.
type Link struct {
	Path   string `json:"path"`
	Target string `json:"target"`
}

// File is a file to make.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode,omitempty"`
	Data []byte `json:"data"`
}

// Mount is a file system to mount: proc, tmpfs, devpts.
type Mount struct {
	Type   string `json:"type"`
	Target string `json:"target"`
	Exec   bool   `json:"exec,omitempty"` // programs may run from it
	Data   string `json:"data,omitempty"`
}

// Rlimit is a resource limit, soft and hard alike. A limit that is lower already stays.
type Rlimit struct {
	Resource int    `json:"resource"`
	Value    uint64 `json:"value"`
}

// Landlock is what the kernel's Landlock is to allow. Everything may be read and executed; only what is named may be
// changed.
type Landlock struct {
	Version int      `json:"version"` // the kernel's
	Write   []string `json:"write"`   // below here everything may be changed
	Devices []string `json:"devices"` // below here what exists may be written to and controlled
}

// Parts of the isolation, as Report names them.
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

// Report is the launcher's result. Without an Isolation everything was built.
type Report struct {
	Isolation string `json:"isolation,omitempty"` // the one that could not be built
	What      string `json:"what,omitempty"`      // what failed
	Errno     int    `json:"errno,omitempty"`
}
