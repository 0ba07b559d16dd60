package local

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

// hostname is every sandbox's.
const hostname = "workcell"

// hostFiles are what of the host's /etc a sandbox sees, where there is such: how the linker and TLS find things, and
// which of several programs is meant. None of it is secret; whatever else lies beside it stays out.
func hostFiles() []string {
	// Debian's Java reads its settings there. Only management has passwords.
	java, _ := filepath.Glob("/etc/java-*-openjdk/[^m]*")
	return append(java,
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/mime.types",
		"/etc/protocols", "/etc/services", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates",
		"/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/crypto-policies",
	)
}

func devices() []string { return []string{"full", "null", "random", "tty", "urandom", "zero"} }

// readonlyPaths are those of containers, as the OCI runtimes' callers set them, and all of /sys.
func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/sys"}
}

// view composes what a sandbox is to look like.
func (b *driver) view(r *record, g group) *launch.Config {
	c := &launch.Config{
		Hostname: hostname, Stage: "/usr", RootReadonly: r.Root != backend.RootWritable,
		RootData: rootOptions(r),
		Owner:    r.IDs.owner(), User: r.IDs.User, DropGroups: r.IDs.Base != 0,
		Masked: append(kit.MaskedPaths(0), shownSockets()...), Readonly: readonlyPaths(),
		// What a new namespace can do has been the way into the kernel more than once. Instances of inotify also count for
		// the user who runs this process, who has 128 by default.
		Settings: []launch.File{{Path: "/proc/sys/user/max_user_namespaces", Data: []byte("0")},
			{Path: "/proc/sys/user/max_inotify_instances", Data: []byte("32")}},
		Seccomp: b.machine.filter,
		Rlimits: b.rlimits(r),
		Argv: append([]string{embed.Path, fmt.Sprintf("--listen-fd=%d", launch.ListenFD)},
			r.GuestArgs(0)...), // a root that can be written to has a size
		Env: []string{"PATH=" + searchPath},
	}
	if v := b.machine.landlock; v >= launch.MinLandlock {
		c.Landlock = &launch.Landlock{Version: v, Write: []string{backend.Workdir, "/tmp", "/dev/shm"}, Devices: []string{"/dev", "/proc"}}
		for _, m := range r.Mounts {
			if m.Writable {
				c.Landlock.Write = append(c.Landlock.Write, m.Target)
			}
		}
		if r.Root == backend.RootWritable {
			c.Landlock.Write = []string{"/"}
		}
	}
	b.showHost(c)
	showDevices(c, r)
	b.showOwn(c, r, g)
	b.showEnvironment(c, r)
	makeEtc(c, r)
	return c
}

// rootOptions are those of the root's tmpfs. A read-only one holds what makeEtc writes, a writable one as much as /tmp.
func rootOptions(r *record) string {
	size := max(4<<20, rootBytes(r))
	return fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", size, max(4096, kit.Inodes(size)))
}

// rootBytes is how much may be written to a root; nothing to a read-only one.
func rootBytes(r *record) int64 {
	if r.Root != backend.RootWritable {
		return 0
	}
	return max(4<<20, r.Limits.TmpBytes)
}

// writableDirs are the directories of a writable layer in which the sandbox's root may make files, as far as programs
// are usually installed.
func writableDirs(dir string) []string {
	var out []string
	var add func(rel string)
	add = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(dir, rel))
		if err != nil {
			return // then nothing can be made there
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			name := filepath.Join(rel, e.Name())
			out = append(out, name)
			if name == "local" || name == "local/lib" {
				add(name)
			}
		}
	}
	add("")
	return out
}

// showHost adds what is the host's.
func (b *driver) showHost(c *launch.Config) {
	for _, dir := range systemDirs() {
		target, err := os.Readlink(dir)
		switch {
		case err == nil: // merged into /usr
			c.Links = append(c.Links, launch.Link{Path: dir, Target: target})
		case isDir(dir) && !c.RootReadonly:
			c.Layers = append(c.Layers, launch.Layer{Source: dir, Target: dir, Data: c.RootData, Dirs: writableDirs(dir)})
		case isDir(dir):
			c.Trees = append(c.Trees, launch.Tree{Source: dir, Target: dir})
		}
	}
	for _, file := range hostFiles() {
		c.Trees = append(c.Trees, launch.Tree{Source: file, Target: file, Optional: true})
	}
}

// shownSockets lists the host's Unix sockets below what sandboxes see. A read-only mount keeps nobody from connecting,
// and neither does a network namespace: the names of these are files.
func shownSockets() []string {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil // a kernel without Unix sockets
	}
	shown := shownDirs()
	var out []string
	for line := range strings.Lines(string(table)) {
		at := strings.Index(line, " /")
		if at < 0 {
			continue // without a name, or an abstract one
		}
		p := strings.TrimSuffix(line[at+1:], "\n")
		if slices.ContainsFunc(shown, func(dir string) bool { return strings.HasPrefix(p, dir) }) {
			out = append(out, p)
		}
	}
	return out
}

// shownDirs are the beginnings of the names of all that sandboxes see of the host, by each directory's own name and by
// the one that its links lead to.
func shownDirs() []string {
	var dirs []string
	for _, dir := range append(systemDirs(), hostFiles()...) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dirs = append(dirs, dir+"/", real+"/")
		}
	}
	return dirs
}

func isDir(p string) bool {
	var st unix.Stat_t
	return unix.Lstat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

func showDevices(c *launch.Config, r *record) {
	for _, d := range devices() {
		c.Trees = append(c.Trees, launch.Tree{Source: "/dev/" + d, Target: "/dev/" + d, Device: true, Alone: true})
	}
	for p, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		c.Links = append(c.Links, launch.Link{Path: "/dev/" + p, Target: target})
	}
	c.Mounts = append(c.Mounts,
		launch.Mount{Type: "devpts", Target: "/dev/pts", Data: fmt.Sprintf("newinstance,ptmxmode=0666,mode=0620,max=%d", kit.MaxTerminals)},
		launch.Mount{Type: "tmpfs", Target: "/dev/shm", Data: tmpfsOptions(r.Limits.ShmBytes, r.IDs.User)},
		launch.Mount{Type: "proc", Target: "/proc"})
}

func tmpfsOptions(size int64, o launch.ID) string {
	return fmt.Sprintf("size=%d,nr_inodes=%d,mode=1777,uid=%d,gid=%d", size, kit.Inodes(size), o.UID, o.GID)
}

// showOwn adds what is the sandbox's own.
func (b *driver) showOwn(c *launch.Config, r *record, g group) {
	c.Trees = append(c.Trees, launch.Tree{Source: b.guest, Target: embed.Dir, Alone: true})
	// Programs may run from /tmp: installers and compilers run what they put there.
	c.Mounts = append(c.Mounts, launch.Mount{Type: "tmpfs", Target: "/tmp", Exec: true, Data: tmpfsOptions(r.Limits.TmpBytes, r.IDs.User)})
	c.Trees = append(c.Trees, launch.Tree{Source: b.dirs.files(r.session()), Target: backend.Workdir, Writable: true, Alone: true})
	for _, m := range r.Mounts {
		c.Trees = append(c.Trees, launch.Tree{Source: m.Source, Target: m.Target, Writable: m.Writable, Alone: true})
	}
	// Where a guest looks for the limits that hold it.
	if b.machine.cgroups.v2 {
		c.Trees = append(c.Trees, launch.Tree{Source: g.dir("memory"), Target: "/sys/fs/cgroup", Alone: true})
		return
	}
	for _, name := range []string{"memory", "pids", "cpuacct"} {
		if dir := g.dir(name); dir != "" {
			c.Trees = append(c.Trees, launch.Tree{Source: dir, Target: "/sys/fs/cgroup/" + name, Alone: true})
		}
	}
}

// nowhere is an address for documentation (RFC 5737). Without a name server, programs would ask their own loopback, and
// the guest could not tell lookups from other packets: it counts packets without a route.
const nowhere = "192.0.2.53"

// makeEtc adds an /etc that names the sandbox's users, and the directories that programs expect.
func makeEtc(c *launch.Config, r *record) {
	none := kit.NoAccounts()
	accounts := none.With(kit.User(r.IDs.User))
	for file, text := range map[string]string{
		"passwd": string(accounts.Passwd), "group": string(accounts.Group), "hostname": hostname + "\n",
		"resolv.conf":   "nameserver " + nowhere + "\n",
		"hosts":         "127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
	} {
		c.Files = append(c.Files, launch.File{Path: filepath.Join("/etc", file), Mode: 0o644, Data: []byte(text)})
	}
	for _, d := range []string{"/home", "/mnt", "/opt", "/run", "/srv", "/sys", "/var", "/var/tmp"} {
		c.Dirs = append(c.Dirs, launch.Dir{Path: d, Mode: 0o755})
	}
	c.Dirs = append(c.Dirs, launch.Dir{Path: "/root", Mode: 0o700})
}

// maxSignals is how many queued signals and timers a sandbox may have.
const maxSignals = 4096

// rlimits returns what every process is born with.
func (b *driver) rlimits(r *record) []launch.Rlimit {
	l := r.Limits
	size := kit.FileBytes(l, cmp.Or(r.Workspace, backend.WorkspaceWatched), 0)
	processes := int64(kit.GuestPIDs)
	if b.machine.cgroups.dirs["pids"] != "" {
		processes *= 2
	}
	out := []launch.Rlimit{
		{Resource: unix.RLIMIT_CORE},
		{Resource: unix.RLIMIT_NOFILE, Value: uint64(kit.OpenFiles(l))},
		{Resource: unix.RLIMIT_FSIZE, Value: uint64(size)},
		// Counted within the sandbox's own user namespace. The control group, which counts refusals, is reached first.
		{Resource: unix.RLIMIT_NPROC, Value: uint64(l.PIDs + processes)},
		// So are these, and a second time for the user who runs this process.
		{Resource: unix.RLIMIT_SIGPENDING, Value: maxSignals},
	}
	if !b.machine.cgroups.memory() { // better than nothing: each process by itself
		out = append(out, launch.Rlimit{Resource: unix.RLIMIT_DATA, Value: uint64(b.opts.Limits.Merge(backend.DefaultLimits()).MemoryBytes)})
	}
	return out
}
