package promises

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
)

const mib = 1 << 20

// spec is what containerd itself has stored of a sandbox, and gives to the runtime.
func (e *containerdEngine) spec(t *testing.T, b *box) *specs.Spec {
	t.Helper()
	ctx := e.in(t.Context())
	c, err := e.api.LoadContainer(ctx, containerOf(b.s.Info().EngineID))
	must(t, err)
	s, err := c.Spec(ctx)
	must(t, err)
	return s
}

// inspect finds nothing of the machine shared.
func (e *containerdEngine) inspect(t *testing.T, b *box) {
	t.Helper()
	ctx := e.in(t.Context())
	record, err := e.api.ContainerService().Get(ctx, containerOf(b.s.Info().EngineID))
	must(t, err)
	for label, want := range map[string]string{
		backend.LabelInstance: w.instance, backend.LabelRole: backend.RoleSandbox, backend.LabelID: b.s.ID(), backend.LabelRun: b.run.ID,
	} {
		if record.Labels[label] != want {
			t.Errorf("label %s is %q, want %q", label, record.Labels[label], want)
		}
	}
	s := e.spec(t, b)
	kinds := map[specs.LinuxNamespaceType]bool{}
	for _, ns := range s.Linux.Namespaces {
		kinds[ns.Type] = true
		if ns.Path != "" && !(ns.Type == specs.NetworkNamespace && strings.HasPrefix(ns.Path, e.state+"/sandboxes/"+record.ID+"/")) {
			t.Errorf("namespace %s is that of %s", ns.Type, ns.Path)
		}
	}
	for _, kind := range []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace, specs.NetworkNamespace,
	} {
		if !kinds[kind] {
			t.Errorf("the namespace %s is the machine's", kind)
		}
	}
	if s.Hooks != nil && gocmp.Diff(&specs.Hooks{}, s.Hooks) != "" {
		t.Errorf("hooks %+v", s.Hooks)
	}
	if len(s.Linux.Devices) != 0 || s.Process.Terminal {
		t.Errorf("devices %v, terminal %v", s.Linux.Devices, s.Process.Terminal)
	}
}

// inspectMounts finds directories of ours, and nothing of the machine.
func (e *containerdEngine) inspectMounts(t *testing.T, b *box) {
	t.Helper()
	own := e.state + "/sandboxes/" + containerOf(b.s.Info().EngineID) + "/"
	binds := map[string]string{
		"/etc/hosts": own, "/etc/hostname": own, "/etc/resolv.conf": own, "/.workcell": e.state + "/guest/", "/workspace": e.state + "/workspaces/",
	}
	for _, m := range e.spec(t, b).Mounts {
		if m.Type != "bind" {
			continue
		}
		from, ok := binds[m.Destination]
		delete(binds, m.Destination)
		if !ok || !strings.HasPrefix(m.Source, from) {
			t.Errorf("mount %+v", m)
		}
		for _, option := range []string{"nosuid", "nodev", "private"} {
			if !slices.Contains(m.Options, option) {
				t.Errorf("%s is not %s: %v", m.Destination, option, m.Options)
			}
		}
		if slices.Contains(m.Options, "ro") == (m.Destination == "/workspace") {
			t.Errorf("%s: %v", m.Destination, m.Options)
		}
	}
	if len(binds) != 0 {
		t.Errorf("not mounted: %v", binds)
	}
}

// benchmark compares the stored spec with what it must be, field by field. The system call filter has a list of its own.
func (e *containerdEngine) benchmark(t *testing.T, b *box) {
	t.Helper()
	got := e.spec(t, b)
	filter := got.Linux.Seccomp
	got.Linux.Seccomp = nil
	order := func(a, b specs.POSIXRlimit) int { return cmp.Compare(a.Type, b.Type) }
	slices.SortFunc(got.Process.Rlimits, order)
	want := goldenSpec(b)
	slices.SortFunc(want.Process.Rlimits, order)
	// Where these lie is looked at by inspectMounts and inspect.
	for _, s := range []*specs.Spec{got, want} {
		for i := range s.Mounts {
			if s.Mounts[i].Type == "bind" {
				s.Mounts[i].Source = ""
			}
		}
		slices.SortFunc(s.Mounts, func(a, b specs.Mount) int { return cmp.Compare(a.Destination, b.Destination) })
		slices.SortFunc(s.Linux.Namespaces, func(a, b specs.LinuxNamespace) int { return cmp.Compare(a.Type, b.Type) })
		for i := range s.Linux.Namespaces {
			s.Linux.Namespaces[i].Path = ""
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the spec (-want +got):\n%s", diff)
	}
	closedFilter(t, filter)
}

// closedFilter checks that a filter refuses what it does not name, and names nothing by which a sandbox could be left.
func closedFilter(t *testing.T, s *specs.LinuxSeccomp) {
	t.Helper()
	if s == nil || s.DefaultAction != specs.ActErrno || len(s.Flags) != 0 || len(s.Architectures) == 0 {
		t.Fatalf("the filter: %+v", s)
	}
	never := []string{
		"mount", "umount", "umount2", "pivot_root", "chroot", "setns", "unshare", "fsopen", "fsmount", "move_mount", "open_tree", "bpf", "keyctl",
		"add_key", "request_key", "perf_event_open", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
		"swapon", "swapoff", "open_by_handle_at", "userfaultfd", "acct", "iopl", "ioperm", "settimeofday", "clock_settime", "sethostname", "quotactl",
		"io_uring_setup", "fanotify_init", "lookup_dcookie", "move_pages", "nfsservctl", "syslog", "vm86", "uselib", "ustat", "sysfs", "personality",
	}
	allowed := map[string]bool{}
	for _, rule := range s.Syscalls {
		for _, name := range rule.Names {
			if rule.Action == specs.ActAllow {
				allowed[name] = true
			}
			if rule.Action == specs.ActAllow && len(rule.Args) == 0 && slices.Contains(never, name) {
				t.Errorf("the filter lets %s through", name)
			}
		}
	}
	if len(allowed) < 250 {
		t.Errorf("only %d calls are let through", len(allowed))
	}
}

// goldenSpec is what is promised. Written out, so that a change of the driver shows as one of the promise.
func goldenSpec(b *box) *specs.Spec {
	info := b.s.Info()
	uid := uint32(1000)
	if b == w.root || b == w.bridgedRoot {
		uid = 0
	}
	score := 0
	memory, pids, quota, period := int64(2048+10)*mib, int64(256+20), int64(100_000), uint64(100_000)
	swap := memory
	bind := func(at string, more ...string) specs.Mount {
		return specs.Mount{Type: "bind", Destination: at, Options: append([]string{"bind", "nosuid", "nodev", "private"}, more...)}
	}
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: "workcell",
		Root:     &specs.Root{Path: "rootfs", Readonly: info.Root == backend.RootReadonly},
		Process: &specs.Process{
			User:            specs.User{UID: uid, GID: uid},
			Args:            append([]string{"/.workcell/workcell-guest"}, diskLimits(b)...),
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
			bind("/etc/hosts", "ro", "noexec"), bind("/etc/hostname", "ro", "noexec"), bind("/etc/resolv.conf", "ro", "noexec"),
			bind("/.workcell", "ro"), bind("/workspace", "rw"),
		},
		Linux: &specs.Linux{
			RootfsPropagation: "private",
			CgroupsPath:       "/workcell/" + containerOf(info.EngineID),
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

// throttles returns the folder of each processor that tells how often it was too hot, in the order of their numbers.
func throttles() (paths []string) {
	for cpu := range runtime.NumCPU() {
		paths = append(paths, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", cpu))
	}
	return paths
}
