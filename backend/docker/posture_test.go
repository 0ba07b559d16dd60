package docker_test

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

//go:embed testdata/posture.py
var postureScript string

// posture is what the script found out.
type posture struct {
	Status  map[string]string `json:"status"`
	UID     []int             `json:"uid"`
	Groups  []int             `json:"groups"`
	FDs     []int             `json:"fds"`
	PIDs    int               `json:"pids"`
	Devices []string          `json:"devices"`
	Setuid  []string          `json:"setuid"`
	Mounts  []struct {
		Root, At, Type, Source string
		Opts                   []string
		Shared                 bool
	} `json:"mounts"`
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

func lookAround(t *testing.T, conn *client.Conn) posture {
	t.Helper()
	var p posture
	if err := json.Unmarshal([]byte(output(t, conn, "python3", "-c", postureScript)), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPosture checks the hardened form from inside, by its golden values.
func TestPosture(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Image = pythonImage
	info := create(t, b, spec)
	conn := dial(t, b, info.ID)
	p := lookAround(t, conn)

	t.Run("capabilities", func(t *testing.T) {
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			if strings.Trim(p.Status[set], "0") != "" {
				t.Errorf("%s is %s", set, p.Status[set])
			}
		}
	})
	t.Run("privileges and filter", func(t *testing.T) {
		if p.Status["NoNewPrivs"] != "1" || p.Status["Seccomp"] != "2" || p.Status["Seccomp_filters"] == "0" {
			t.Errorf("NoNewPrivs %s, Seccomp %s, filters %s", p.Status["NoNewPrivs"], p.Status["Seccomp"], p.Status["Seccomp_filters"])
		}
	})
	t.Run("user", func(t *testing.T) {
		if diff := cmp.Diff([]int{1000, 1000, 1000, 1000}, p.UID); diff != "" {
			t.Errorf("ids (-want +got)\n%s", diff)
		}
		if slices.Contains(p.Groups, 0) || len(p.Groups) > 1 {
			t.Errorf("groups %v", p.Groups)
		}
		if len(p.Setuid) == 0 {
			t.Error("the image has no setuid program to try")
		}
		if res := run(t, conn, "su", "-c", "id -u"); res.ExitCode == 0 {
			t.Errorf("su gave %s", res.Stdout.Head)
		}
	})
	t.Run("namespaces", func(t *testing.T) {
		for name, ns := range p.Namespaces {
			if name == "user" { // shared by every container of an engine without remapping
				continue
			}
			if host, err := os.Readlink("/proc/self/ns/" + name); err != nil || host == ns {
				t.Errorf("%s namespace %s is the host's (%v)", name, ns, err)
			}
		}
		if p.PIDs > 2 { // the guest and the script
			t.Errorf("%d processes are visible", p.PIDs)
		}
	})
	t.Run("devices", func(t *testing.T) {
		want := []string{"fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}
		if diff := cmp.Diff(want, p.Devices); diff != "" {
			t.Errorf("devices (-want +got)\n%s", diff)
		}
	})
	t.Run("engine out of sight", func(t *testing.T) {
		if len(p.Sockets) != 0 {
			t.Errorf("visible: %v", p.Sockets)
		}
	})
	t.Run("mounts", func(t *testing.T) { checkMounts(t, p) })
	t.Run("masked", func(t *testing.T) {
		for path, v := range p.Masked {
			if v != "absent" && v != float64(0) && v != "EACCES" {
				t.Errorf("%s shows %v", path, v)
			}
		}
	})
	t.Run("guest", func(t *testing.T) {
		for what, v := range p.Guest {
			if v != "EACCES" && v != "EPERM" && v != "EROFS" {
				t.Errorf("the guest's %s: %v", what, v)
			}
		}
	})
	t.Run("writes", func(t *testing.T) {
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
	})
	t.Run("calls", func(t *testing.T) {
		for name, v := range p.Calls {
			if (v == "ok") != (name == "kill all") { // the guest shrugs signals off
				t.Errorf("%s: %s", name, v)
			}
		}
		if got := sh(t, conn, "echo alive"); got != "alive\n" {
			t.Errorf("after that: %q", got)
		}
	})
	t.Run("limits", func(t *testing.T) {
		want := map[string][]int64{"core": {0, 0}, "nofile": {16384, 16384}, "fsize": {16 << 30, 16 << 30}}
		if diff := cmp.Diff(want, p.Limits); diff != "" {
			t.Errorf("limits (-want +got)\n%s", diff)
		}
	})
	t.Run("descriptors", func(t *testing.T) {
		if diff := cmp.Diff([]int{0, 1, 2}, p.FDs); diff != "" {
			t.Errorf("open at the start (-want +got)\n%s", diff)
		}
	})
	t.Run("sockets", func(t *testing.T) {
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
	})
}

// checkMounts allows what the runtime makes, the two volumes, the engine's three files for name resolution, and tmpfs.
func checkMounts(t *testing.T, p posture) {
	for _, m := range p.Mounts {
		if m.Shared {
			t.Errorf("%s: its mounts propagate", m.At)
		}
		ro := slices.Contains(m.Opts, "ro")
		safe := slices.Contains(m.Opts, "nosuid") && slices.Contains(m.Opts, "nodev")
		switch {
		case m.At == "/":
			if !ro {
				t.Error("the root can be written")
			}
		case m.At == "/.workcell":
			if !ro {
				t.Error("the guest's volume can be written")
			}
		case m.At == backend.Workdir, m.At == "/etc/resolv.conf", m.At == "/etc/hostname", m.At == "/etc/hosts":
			if m.Type == "tmpfs" {
				t.Errorf("%s is a tmpfs", m.At)
			}
		case m.At == "/tmp", m.At == "/dev/shm":
			if m.Type != "tmpfs" || !safe {
				t.Errorf("%s: %s %v", m.At, m.Type, m.Opts)
			}
		case strings.HasPrefix(m.At, "/sys/fs/cgroup"), m.At == "/sys", m.At == "/proc", strings.HasPrefix(m.At, "/proc/"), strings.HasPrefix(m.At, "/sys/"):
			if m.Type == "cgroup" && !ro {
				t.Errorf("%s can be written", m.At)
			}
		case m.At == "/dev", strings.HasPrefix(m.At, "/dev/"):
		default:
			t.Errorf("unexpected mount of %s %s at %s", m.Type, m.Root, m.At)
		}
	}
}

// TestPostureOfRoot checks that being root in the sandbox, where a policy lets it, gives nothing of the host.
func TestPostureOfRoot(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Image, spec.User, spec.Root = pythonImage, "0:0", backend.RootWritable
	info := create(t, b, spec)
	conn := dial(t, b, info.ID)
	p := lookAround(t, conn)
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if strings.Trim(p.Status[set], "0") != "" {
			t.Errorf("%s is %s", set, p.Status[set])
		}
	}
	if p.Status["NoNewPrivs"] != "1" || p.Status["Seccomp"] != "2" || p.UID[0] != 0 {
		t.Errorf("NoNewPrivs %s, Seccomp %s, uid %d", p.Status["NoNewPrivs"], p.Status["Seccomp"], p.UID[0])
	}
	for path, v := range p.Write {
		if v == "ok" && path != "/etc/passwd" { // which is the sandbox's own
			t.Errorf("%s can be written", path)
		}
	}
	for path, v := range p.Create {
		if v == "ok" && (strings.HasPrefix(path, "/sys") || strings.HasPrefix(path, "/proc") || strings.HasPrefix(path, "/.workcell")) {
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
	if got := sh(t, conn, "touch /root/x /usr/x && echo ok"); got != "ok\n" {
		t.Errorf("a writable root: %q", got)
	}
}
