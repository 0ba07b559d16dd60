package promises

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/machinetest"
)

const mib = 1 << 20

// inspect compares the spec that containerd has stored of a sandbox with what it must be, field by field. The system call
// filter has a list of its own, in backend/internal/seccomp.
func (e *containerdEngine) inspect(t *testing.T, b *sandbox) {
	t.Helper()
	ctx := e.in(t.Context())
	c, err := e.api.LoadContainer(ctx, machinetest.ContainerID(b.s.Info().EngineID))
	must(t, err)
	labels, err := c.Labels(ctx)
	must(t, err)
	for label, want := range map[string]string{
		backend.LabelInstance: w.instance, backend.LabelRole: backend.RoleSandbox, backend.LabelID: b.s.ID(), backend.LabelRun: b.run.ID,
	} {
		if labels[label] != want {
			t.Errorf("label %s is %q, want %q", label, labels[label], want)
		}
	}
	got, err := c.Spec(ctx)
	must(t, err)
	if f := got.Linux.Seccomp; f == nil || f.DefaultAction != specs.ActErrno || len(f.Flags) != 0 || len(f.Architectures) == 0 || len(f.Syscalls) == 0 {
		t.Errorf("the filter: %+v", f)
	}
	got.Linux.Seccomp = nil
	// The names of the directories and of the network's namespace end in what is chosen when they are made.
	own := e.state + "/sandboxes/" + c.ID() + "/"
	for i, m := range got.Mounts {
		for _, dir := range []string{own, e.state + "/guest/", e.state + "/workspaces/"} {
			if m.Type == "bind" && strings.HasPrefix(m.Source, dir) {
				got.Mounts[i].Source = dir
			}
		}
	}
	for i, ns := range got.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace && strings.HasPrefix(ns.Path, own) {
			got.Linux.Namespaces[i].Path = ""
		}
	}
	if got.Hooks != nil && cmp.Diff(&specs.Hooks{}, got.Hooks) == "" {
		got.Hooks = nil
	}
	if diff := cmp.Diff(goldenSpec(b, e.state, own), got, cmpopts.SortSlices(func(a, b specs.POSIXRlimit) bool { return a.Type < b.Type }),
		cmpopts.SortSlices(func(a, b specs.Mount) bool { return a.Destination < b.Destination }),
		cmpopts.SortSlices(func(a, b specs.LinuxNamespace) bool { return a.Type < b.Type })); diff != "" {
		t.Errorf("the spec (-want +got):\n%s", diff)
	}
}

// goldenSpec returns what is promised, written out, so that a change of the driver shows as one of the promise. own is the
// sandbox's own directory.
func goldenSpec(b *sandbox, state, own string) *specs.Spec {
	info := b.s.Info()
	uid := uint32(1000)
	if b == w.root || b == w.bridgedRoot {
		uid = 0
	}
	score := 0
	memory, pids, quota, period := int64(2048+10)*mib, int64(256+20), int64(100_000), uint64(100_000)
	swap := memory
	bind := func(from, at string, more ...string) specs.Mount {
		return specs.Mount{Type: "bind", Source: from, Destination: at, Options: append([]string{"bind", "nosuid", "nodev", "private"}, more...)}
	}
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: "workcell",
		Root:     &specs.Root{Path: "rootfs", Readonly: info.Root == backend.RootReadonly},
		Process: &specs.Process{
			User:            specs.User{UID: uid, GID: uid},
			Args:            append([]string{"/.workcell/workcell-guest"}, guestArguments(b)...),
			Env:             []string{"GODEBUG=", "GOGC=", "GOMAXPROCS=", "GOMEMLIMIT=", "GOTRACEBACK="},
			Cwd:             "/",
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			OOMScoreAdj:     &score,
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_FSIZE", Hard: uint64(fileLimit(b) * mib), Soft: uint64(fileLimit(b) * mib)}, {Type: "RLIMIT_NOFILE", Hard: 16384, Soft: 16384},
			},
		},
		Mounts: []specs.Mount{
			{Type: "proc", Source: "proc", Destination: "/proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/dev", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Type: "devpts", Source: "devpts", Destination: "/dev/pts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Type: "sysfs", Source: "sysfs", Destination: "/sys", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
			{Type: "mqueue", Source: "mqueue", Destination: "/dev/mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/dev/shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=67108864"}},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/tmp", Options: []string{
				"rw", "nosuid", "nodev", "exec", "size=268435456", "nr_inodes=65536", "mode=1777", fmt.Sprintf("uid=%d", uid), fmt.Sprintf("gid=%d", uid),
			}},
			bind(own, "/etc/hosts", "ro", "noexec"), bind(own, "/etc/hostname", "ro", "noexec"), bind(own, "/etc/resolv.conf", "ro", "noexec"),
			bind(state+"/guest/", "/.workcell", "ro"), bind(state+"/workspaces/", "/workspace", "rw"),
		},
		Linux: &specs.Linux{
			RootfsPropagation: "private",
			CgroupsPath:       "/workcell/" + machinetest.ContainerID(info.EngineID),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace}, {Type: specs.NetworkNamespace},
			},
			Resources: &specs.LinuxResources{
				Memory:  &specs.LinuxMemory{Limit: &memory, Swap: &swap},
				CPU:     &specs.LinuxCPU{Quota: &quota, Period: &period},
				Pids:    &specs.LinuxPids{Limit: &pids},
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}, // the runtime adds null, zero and their like
			},
			Sysctl: map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"},
			MaskedPaths: append([]string{
				"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
			}, throttles()...),
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/sys/fs/cgroup"},
		},
	}
}

// throttles returns the directory of each processor that counts how often it was too hot, in the order of their numbers.
func throttles() (paths []string) {
	for cpu := range runtime.NumCPU() {
		paths = append(paths, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", cpu))
	}
	return paths
}
