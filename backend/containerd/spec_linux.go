package containerd

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

const (
	guestDir = embed.Dir // mount point of the guest agent's directory
	// specVersion is the oldest version with all of these settings. Old runtimes reject newer versions.
	specVersion = "1.0.2"
)

// ociSpec describes the container for the OCI runtime. Of the image's configuration, it only uses the mount points of
// volumes.
func (b *driver) ociSpec(p *plan, r *record, volumes []string) *specs.Spec {
	args := r.config.GuestArgs(r.config.RootBytes)
	return &specs.Spec{
		Version:  specVersion,
		Hostname: kit.Hostname,
		Root:     &specs.Root{Path: "rootfs", Readonly: p.Spec.Root != backend.RootWritable},
		Process:  guestProcess(p.User, r, append([]string{embed.Path}, args...)...),
		Mounts:   b.mounts(p, r, volumes),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace}, {Type: specs.NetworkNamespace, Path: r.netns()},
			},
			CgroupsPath:   r.config.Cgroup,
			Resources:     b.engine.resources(p.Spec.Limits),
			Seccomp:       b.engine.seccomp,
			MaskedPaths:   kit.MaskedPaths(b.engine.cpus),
			ReadonlyPaths: kit.ReadonlyPaths("/sys/fs/cgroup"),
			Sysctl: map[string]string{ // as in Docker; a network namespace makes these privileges harmless
				"net.ipv4.ip_unprivileged_port_start": "0",
				"net.ipv4.ping_group_range":           "0 2147483647",
			},
			RootfsPropagation: "private",
		},
	}
}

// guestProcess describes a Workcell program in the sandbox: the guest agent or a bridge.
func guestProcess(o kit.User, r *record, args ...string) *specs.Process {
	return &specs.Process{
		User:            specs.User{UID: o.UID, GID: o.GID},
		Args:            args,
		Env:             kit.GuestEnv(),
		Cwd:             "/",
		Capabilities:    &specs.LinuxCapabilities{},
		NoNewPrivileges: true,
		Rlimits:         rlimits(r),
		OOMScoreAdj:     new(0), // not containerd's own value, which may protect it
	}
}

// mounts returns the mounts of a sandbox: the kernel's file systems, files in /etc, the guest agent, the workspace, the
// mounts of the request, and a tmpfs for /tmp and for each volume of the image. The files in /etc are mounted before
// the workspace and the volumes, because /etc of an image can contain links into them.
func (b *driver) mounts(p *plan, r *record, volumes []string) []specs.Mount {
	dir := r.state()
	ms := kernelMounts(p.Spec.Limits)
	files := []string{"hosts", "hostname", "resolv.conf"} // see makeFiles
	if kit.NamesUser(p.User, p.Spec.Root) {
		files = append(files, kit.AccountFiles()...)
	}
	for _, f := range files {
		ms = append(ms, bind(dir.file(r.id, f), "/etc/"+f, "ro", "noexec"))
	}
	ms = append(ms,
		tmpfs("/tmp", p.Spec.Limits.TmpBytes, p.User),
		bind(dir.guest(b.guestFor(r.config.Runtime).Version), guestDir, "ro"),
		workspaceMount(r))
	for _, v := range volumes {
		if slices.ContainsFunc(p.Spec.Mounts, func(m backend.Mount) bool { return m.Target == v }) {
			continue // gVisor would show the volume instead of the mount
		}
		ms = append(ms, tmpfs(v, kit.ImageVolumeBytes, kit.User{}))
	}
	for _, m := range p.Spec.Mounts {
		mode := "ro"
		if m.Writable {
			mode = "rw"
		}
		ms = append(ms, bind(m.Source, m.Target, mode))
	}
	return ms
}

func kernelMounts(l backend.Limits) []specs.Mount {
	mount := func(kind, at string, options ...string) specs.Mount {
		return specs.Mount{Type: kind, Source: kind, Destination: at, Options: options}
	}
	return []specs.Mount{
		mount("proc", "/proc", "nosuid", "noexec", "nodev"),
		mount("tmpfs", "/dev", "nosuid", "strictatime", "mode=755", "size=65536k"),
		mount("devpts", "/dev/pts", strings.Split("nosuid,noexec,"+kit.TerminalOptions, ",")...),
		mount("sysfs", "/sys", "nosuid", "noexec", "nodev", "ro"),
		mount("cgroup", "/sys/fs/cgroup", "nosuid", "noexec", "nodev", "relatime", "ro"),
		mount("mqueue", "/dev/mqueue", "nosuid", "noexec", "nodev"),
		mount("tmpfs", "/dev/shm", "nosuid", "noexec", "nodev", "mode=1777", fmt.Sprintf("size=%d", l.ShmBytes)),
	}
}

// tmpfs returns a tmpfs mount without noexec, because installers and compilers execute files in /tmp.
func tmpfs(at string, size int64, o kit.User) specs.Mount {
	options := strings.Split("rw,nosuid,nodev,exec,"+kit.TmpfsOptions(size, o), ",")
	return specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: at, Options: options}
}

func bind(from, at string, more ...string) specs.Mount {
	options := append([]string{"bind", "nosuid", "nodev", "private"}, more...)
	return specs.Mount{Type: "bind", Source: from, Destination: at, Options: options}
}

// workspaceMount returns the mount of the workspace's directory or file system.
func workspaceMount(r *record) specs.Mount {
	if r.config.Sized() > 0 {
		device, options := r.state().file(r.id, deviceLink), strings.Split("rw,nosuid,nodev,"+sizedfs.Options, ",")
		return specs.Mount{Type: "ext4", Source: device, Destination: backend.Workdir, Options: options}
	}
	return bind(r.state().workspace(r.session), backend.Workdir, "rw")
}
