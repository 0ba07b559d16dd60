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

// hostFiles returns the existing files of the host's /etc visible in a sandbox. The linker, TLS libraries, and the
// alternatives system need these files. They contain no secrets. A sandbox sees no other files of /etc.
func hostFiles() []string {
	// Debian's Java reads settings from this directory. Only the management subdirectory contains passwords.
	java, _ := filepath.Glob("/etc/java-*-openjdk/[^m]*")
	return append(java,
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/mime.types",
		"/etc/protocols", "/etc/services", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates",
		"/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/crypto-policies",
	)
}

func devices() []string { return []string{"full", "null", "random", "tty", "urandom", "zero"} }

// view returns the configuration of a sandbox's file systems and processes.
func (b *driver) view(r *record, g group) *launch.Config {
	c := &launch.Config{
		Hostname: kit.Hostname, Stage: "/usr", RootReadonly: r.Root != backend.RootWritable,
		RootData: rootOptions(r),
		Owner:    r.IDs.owner(), User: r.IDs.User, DropGroups: r.IDs.Base != 0,
		Masked: append(kit.MaskedPaths(0), shownSockets()...), Readonly: kit.ReadonlyPaths("/sys"),
		// Privileges in new namespaces have repeatedly allowed attacks on the kernel. Inotify instances also count against
		// the user who runs this process, whose limit is 128 by default.
		Settings: []launch.File{{Path: "/proc/sys/user/max_user_namespaces", Data: []byte("0")},
			{Path: "/proc/sys/user/max_inotify_instances", Data: []byte("32")}},
		Seccomp: b.machine.filter,
		Rlimits: b.rlimits(r),
		Argv: append([]string{embed.Path, fmt.Sprintf("--listen-fd=%d", launch.ListenFD)},
			r.GuestArgs(0)...), // the size of the writable root is limited
		Env: []string{"PATH=" + searchPath},
	}
	if v := b.machine.landlock; v >= launch.MinLandlock {
		write := []string{backend.Workdir, "/tmp", "/dev/shm"}
		for _, m := range r.Mounts {
			if m.Writable {
				write = append(write, m.Target)
			}
		}
		if r.Root == backend.RootWritable {
			write = []string{"/"}
		}
		c.Landlock = &launch.Landlock{Version: v, Write: write, Devices: []string{"/dev", "/proc"}}
	}
	b.showHost(c)
	showDevices(c, r)
	b.showOwn(c, r, g)
	b.showEnvironment(c, r)
	makeEtc(c, r)
	return c
}

// rootOptions returns the mount options of the root's tmpfs. A read-only root has space for the files of makeEtc. A
// writable root has as much space as /tmp.
func rootOptions(r *record) string {
	size := max(4<<20, rootBytes(r))
	return fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", size, max(4096, kit.Inodes(size)))
}

// rootBytes returns the size of a writable root, or 0 for a read-only root.
func rootBytes(r *record) int64 {
	if r.Root != backend.RootWritable {
		return 0
	}
	return max(4<<20, r.Limits.TmpBytes)
}

// writableDirs returns the directories of a writable layer in which the sandbox's root user may create files. It only
// includes directories in which programs are usually installed.
func writableDirs(dir string) []string {
	var out []string
	var add func(rel string)
	add = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(dir, rel))
		if err != nil {
			return // then no files can be created there
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

// showHost adds the files of the host.
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

// shownSockets returns the host's Unix sockets in directories visible in sandboxes. Neither a read-only mount nor a
// network namespace prevents connections to these sockets, because their names are files.
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
			continue // unnamed or abstract
		}
		p := strings.TrimSuffix(line[at+1:], "\n")
		if slices.ContainsFunc(shown, func(dir string) bool { return strings.HasPrefix(p, dir) }) {
			out = append(out, p)
		}
	}
	return out
}

// shownDirs returns the path prefixes of all host files visible in sandboxes, both with the original path and with
// resolved links.
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
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
		"ptmx": "pts/ptmx",
	} {
		c.Links = append(c.Links, launch.Link{Path: "/dev/" + p, Target: target})
	}
	shm := kit.TmpfsOptions(r.Limits.ShmBytes, kit.User(r.IDs.User))
	c.Mounts = append(c.Mounts,
		launch.Mount{Type: "devpts", Target: "/dev/pts", Data: strings.Replace(kit.TerminalOptions, "gid=5,", "", 1)},
		launch.Mount{Type: "tmpfs", Target: "/dev/shm", Data: shm},
		launch.Mount{Type: "proc", Target: "/proc"})
}

// showOwn adds the files of the sandbox.
func (b *driver) showOwn(c *launch.Config, r *record, g group) {
	c.Trees = append(c.Trees, launch.Tree{Source: b.guest, Target: embed.Dir, Alone: true})
	// Programs may run from /tmp, because installers and compilers execute files there.
	tmp := kit.TmpfsOptions(r.Limits.TmpBytes, kit.User(r.IDs.User))
	c.Mounts = append(c.Mounts, launch.Mount{Type: "tmpfs", Target: "/tmp", Exec: true, Data: tmp})
	files := b.dirs.files(r.session())
	c.Trees = append(c.Trees, launch.Tree{Source: files, Target: backend.Workdir, Writable: true, Alone: true})
	for _, m := range r.Mounts {
		c.Trees = append(c.Trees, launch.Tree{Source: m.Source, Target: m.Target, Writable: m.Writable, Alone: true})
	}
	// A guest agent reads limits from these files.
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

// makeEtc adds /etc with the sandbox's users, and the usual directories.
func makeEtc(c *launch.Config, r *record) {
	files := kit.NetworkFiles("")
	files["nsswitch.conf"] = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n" +
		"protocols: files\nservices: files\n"
	for file, text := range kit.NoAccounts().With(kit.User(r.IDs.User)) {
		files[file] = string(text)
	}
	for file, text := range files {
		c.Files = append(c.Files, launch.File{Path: filepath.Join("/etc", file), Mode: 0o644, Data: []byte(text)})
	}
	for _, d := range []string{"/home", "/mnt", "/opt", "/run", "/srv", "/sys", "/var", "/var/tmp"} {
		c.Dirs = append(c.Dirs, launch.Dir{Path: d, Mode: 0o755})
	}
	c.Dirs = append(c.Dirs, launch.Dir{Path: "/root", Mode: 0o700})
}

// maxSignals is the maximum number of queued signals and timers in a sandbox.
const maxSignals = 4096

// rlimits returns the resource limits of every process.
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
		// This limit counts processes in the sandbox's user namespace. The control group, which counts refusals, has a lower
		// limit.
		{Resource: unix.RLIMIT_NPROC, Value: uint64(l.PIDs + processes)},
		// This limit also counts in the sandbox's user namespace, and additionally for the user who runs this process.
		{Resource: unix.RLIMIT_SIGPENDING, Value: maxSignals},
	}
	if l.MemoryBytes == 0 || !b.machine.cgroups.memory() { // a weaker replacement: a limit for each process
		memory := b.opts.Limits.Merge(backend.DefaultLimits()).MemoryBytes
		out = append(out, launch.Rlimit{Resource: unix.RLIMIT_DATA, Value: uint64(memory)})
	}
	return out
}
