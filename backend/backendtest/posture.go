package backendtest

import (
	_ "embed"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
)

// postureScript looks around in a sandbox, tries what must be denied, and prints what came of it.
//
//go:embed testdata/posture.py
var postureScript string

// posture is what the script found out.
type posture struct {
	Status     map[string]string  `json:"status"`
	UID        []int              `json:"uid"`
	Groups     []int              `json:"groups"`
	FDs        []int              `json:"fds"`
	PIDs       int                `json:"pids"`
	Devices    []string           `json:"devices"`
	Setuid     []string           `json:"setuid"`
	Mounts     []mountPoint       `json:"mounts"`
	Namespaces map[string]string  `json:"namespaces"`
	Limits     map[string][]int64 `json:"limits"`
	Masked     map[string]any     `json:"masked"`
	Sockets    []string           `json:"sockets"`
	Guest      map[string]any     `json:"guest"`
	Write      map[string]string  `json:"write"`
	Create     map[string]string  `json:"create"`
	Calls      map[string]string  `json:"calls"`
	Net        struct {
		Raw, Packet, VSock, Alg string
		Interfaces, Abstract    []string
		Routes                  int
		Routes6                 []string
	} `json:"net"`
}

type mountPoint struct {
	Root, At, Type, Source string
	Opts                   []string
	Shared                 bool
}

func lookAround(t *testing.T, conn *client.Conn) posture {
	t.Helper()
	var p posture
	if err := json.Unmarshal([]byte(output(t, conn, "python3", "-c", postureScript)), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func postureChecks() []check {
	return []check{
		{"of the default user", (*suite).postureOfUser},
		{"of root", (*suite).postureOfRoot},
	}
}

// postureOfUser checks the hardened form from inside, by its golden values.
func (s *suite) postureOfUser(t *testing.T) {
	_, conn := s.inPython(t)
	p := lookAround(t, conn)
	for name, test := range map[string]func(*testing.T, posture){
		"privileges": privileges, "user": user, "namespaces": namespaces, "devices": devices, "mounts": s.mounts, "engine": engineHidden,
		"masked": masked, "writes": writes, "calls": calls, "limits": rlimits, "descriptors": descriptors, "sockets": sockets,
	} {
		t.Run(name, func(t *testing.T) { test(t, p) })
	}
	if res := run(t, conn, "su", "-c", "id -u"); res.ExitCode == 0 {
		t.Errorf("su gave %s", res.Stdout.Head)
	}
	if got := sh(t, conn, "echo alive"); got != "alive\n" {
		t.Errorf("after that: %q", got)
	}
}

func privileges(t *testing.T, p posture) {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if v, ok := p.Status[set]; !ok || strings.Trim(v, "0") != "" {
			t.Errorf("%s is %q", set, v)
		}
	}
	filters, told := p.Status["Seccomp_filters"] // kernels before 5.9 do not count them
	if p.Status["NoNewPrivs"] != "1" || p.Status["Seccomp"] != "2" || told && filters == "0" {
		t.Errorf("NoNewPrivs %s, Seccomp %s, filters %s", p.Status["NoNewPrivs"], p.Status["Seccomp"], filters)
	}
}

func user(t *testing.T, p posture) {
	if diff := cmp.Diff([]int{1000, 1000, 1000, 1000}, p.UID); diff != "" {
		t.Errorf("ids (-want +got)\n%s", diff)
	}
	if slices.Contains(p.Groups, 0) || len(p.Groups) > 1 {
		t.Errorf("groups %v", p.Groups)
	}
	if len(p.Setuid) == 0 {
		t.Error("there is no setuid program to try")
	}
}

func namespaces(t *testing.T, p posture) {
	for name, ns := range p.Namespaces {
		if name == "user" { // shared by every container of an engine without remapping
			continue
		}
		if host, err := os.Readlink("/proc/self/ns/" + name); err != nil || host == ns {
			t.Errorf("%s namespace %s is the host's (%v)", name, ns, err)
		}
	}
}

func devices(t *testing.T, p posture) {
	usual := []string{
		"core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero",
	}
	for _, d := range p.Devices {
		if !slices.Contains(usual, d) {
			t.Errorf("/dev/%s is there", d)
		}
	}
	for _, d := range []string{"fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"} {
		if !slices.Contains(p.Devices, d) {
			t.Errorf("/dev/%s is missing", d)
		}
	}
}

func engineHidden(t *testing.T, p posture) {
	if len(p.Sockets) != 0 {
		t.Errorf("visible: %v", p.Sockets)
	}
	for what, v := range p.Guest {
		if v != "EACCES" && v != "EPERM" && v != "EROFS" && v != "ETXTBSY" {
			t.Errorf("the guest's %s: %v", what, v)
		}
	}
}

func masked(t *testing.T, p posture) {
	for path, v := range p.Masked {
		if v != "absent" && v != float64(0) && v != "EACCES" {
			t.Errorf("%s shows %v", path, v)
		}
	}
}

func writes(t *testing.T, p posture) {
	for path, v := range p.Write {
		if v == "ok" {
			t.Errorf("%s can be written", path)
		}
	}
	for path, v := range p.Create {
		writable := path == "/workspace/x" || path == "/tmp/x" || path == "/dev/shm/x"
		if (v == "ok") != writable {
			t.Errorf("create %s: %s", path, v)
		}
	}
}

func calls(t *testing.T, p posture) {
	for name, v := range p.Calls {
		if (v == "ok") != (name == "kill all") { // the guest shrugs signals off
			t.Errorf("%s: %s", name, v)
		}
	}
	filtered(t, p)
}

// filtered makes sure that it is the filter that refuses what the kernel would refuse for another reason anyway, or not
// at all.
func filtered(t *testing.T, p posture) {
	for _, name := range []string{
		"unshare user", "keyctl", "add_key", "request_key", "bpf", "perf", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
		"mount", "fsopen", "open_tree", "move_mount", "kexec", "module",
	} {
		if v := p.Calls[name]; v != "EPERM" && v != "ENOSYS" {
			t.Errorf("%s: %s, want it filtered", name, v)
		}
	}
}

func rlimits(t *testing.T, p posture) {
	want := map[string][]int64{"core": {0, 0}, "nofile": {16384, 16384}, "fsize": {500 << 20, 500 << 20}} // that of the workspace by default
	if diff := cmp.Diff(want, p.Limits); diff != "" {
		t.Errorf("limits (-want +got)\n%s", diff)
	}
}

func descriptors(t *testing.T, p posture) {
	if diff := cmp.Diff([]int{0, 1, 2}, p.FDs); diff != "" {
		t.Errorf("open at the start (-want +got)\n%s", diff)
	}
}

func sockets(t *testing.T, p posture) {
	n := p.Net
	for what, v := range map[string]string{"raw": n.Raw, "packet": n.Packet, "vsock": n.VSock, "alg": n.Alg} {
		if v == "ok" {
			t.Errorf("a %s socket can be made", what)
		}
	}
	if diff := cmp.Diff([]string{"lo"}, n.Interfaces); diff != "" || n.Routes != 0 {
		t.Errorf("%d routes, interfaces (-want +got)\n%s", n.Routes, diff)
	}
	for _, dev := range n.Routes6 {
		if dev != "lo" {
			t.Errorf("an IPv6 route through %s", dev)
		}
	}
	for _, name := range n.Abstract {
		if name != "@workcell-guest" && strings.HasPrefix(name, "@") {
			t.Errorf("socket %s is visible", name)
		}
	}
}

// mounts allows what every sandbox has and what the driver documents.
func (s *suite) mounts(t *testing.T, p posture) {
	for _, m := range p.Mounts {
		if m.Shared {
			t.Errorf("%s: its mounts propagate", m.At)
		}
		ro := slices.Contains(m.Opts, "ro")
		safe := slices.Contains(m.Opts, "nosuid") && slices.Contains(m.Opts, "nodev")
		switch {
		case m.At == "/", m.At == "/.workcell":
			if !ro {
				t.Errorf("%s can be written", m.At)
			}
		case m.At == backend.Workdir:
			if !safe && !s.h.LooseWorkspace {
				t.Errorf("%s: %s %v", m.At, m.Type, m.Opts)
			}
		case m.At == "/tmp", m.At == "/dev/shm":
			if m.Type != "tmpfs" || !safe {
				t.Errorf("%s: %s %v", m.At, m.Type, m.Opts)
			}
		case below(m.At, "/sys"), below(m.At, "/proc"):
			if m.Type == "cgroup" && !ro || m.Type == "cgroup2" && !ro {
				t.Errorf("%s can be written", m.At)
			}
		case below(m.At, "/dev"):
		case slices.ContainsFunc(s.h.Mounts, func(d string) bool { return matches(d, m.At) }):
			if !ro && !safe && !s.h.LooseWorkspace {
				t.Errorf("%s: %s %v", m.At, m.Type, m.Opts)
			}
		default:
			t.Errorf("unexpected mount of %s %s at %s", m.Type, m.Root, m.At)
		}
	}
}

func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func matches(pattern, p string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	return p == pattern || open && strings.HasPrefix(p, prefix)
}

// postureOfRoot checks that being root in the sandbox, where a policy lets it, gives nothing of the host.
func (s *suite) postureOfRoot(t *testing.T) {
	spec := s.spec()
	spec.Image, spec.User = s.h.Python, "0:0"
	if s.caps.WritableRoot {
		spec.Root = backend.RootWritable
	}
	conn := s.dial(t, s.create(t, spec).ID)
	p := lookAround(t, conn)
	privileges(t, p)
	namespaces(t, p)
	masked(t, p)
	descriptors(t, p)
	sockets(t, p)
	if p.UID[0] != 0 {
		t.Errorf("uid %d", p.UID[0])
	}
	for path, v := range p.Write {
		if v == "ok" && (path != "/etc/passwd" || spec.Root != backend.RootWritable) { // which is the sandbox's own
			t.Errorf("%s can be written", path)
		}
	}
	for path, v := range p.Create {
		if v == "ok" && (below(path, "/sys") || below(path, "/proc") || below(path, "/.workcell") || spec.Root != backend.RootWritable && !below(path, "/dev/shm") && !below(path, "/tmp") && !below(path, backend.Workdir)) {
			t.Errorf("%s can be made", path)
		}
	}
	for name, v := range p.Calls {
		own := name == "kill all" || name == "setuid" || name == "setgid" || name == "chown" // to itself
		if v == "ok" && !own {
			t.Errorf("%s: %s", name, v)
		}
	}
	if p.Guest["binary"] == "ok" {
		t.Error("the guest can be overwritten")
	}
	if spec.Root == backend.RootWritable {
		if got := sh(t, conn, "touch /root/x /usr/x && echo ok"); got != "ok\n" {
			t.Errorf("a writable root: %q", got)
		}
	}
}
