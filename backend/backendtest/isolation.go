package backendtest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

func isolationChecks() []check {
	return []check{
		{"of the default user", (*suite).isolation},
		{"of root", (*suite).isolationOfRoot},
		{"names of users", (*suite).userNames},
		{"of the guest's files", (*suite).guestFiles},
	}
}

// isolation verifies the required isolation from inside a sandbox. The tests in e2e/promises cover the other system
// calls and mounts.
func (s *suite) isolation(t *testing.T) {
	_, conn := s.inDebian(t)
	s.privileges(t, conn)
	Prints(t, conn, "id -u; id -g; su -c true 2>/dev/null && echo root; true", "1000\n1000\n")
	for _, dir := range []string{"/", "/usr", "/etc", "/.workcell"} {
		if res := Exec(t, conn, "touch", dir+"/x"); res.ExitCode == 0 {
			t.Errorf("%s can be written to", dir)
		}
	}
	want := "lo\n0\n" // the third descriptor belongs to ls
	if s.h.Cluster {
		want = "lo\neth0\n0\n"
	}
	Prints(t, conn, "sed -n 's/:.*//p' /proc/net/dev | tr -d ' '; ls /proc/self/fd | grep -vc '^[0-3]$'; true", want)
}

// userNames verifies the name of the user of a sandbox, even after a restart, with both kinds of root.
func (s *suite) userNames(t *testing.T) {
	const script = `id; whoami; getent passwd "$(id -u)" | cut -d : -f 1,6; id -un 0; test -r /etc/group && echo readable`
	for user, name := range map[string]string{"": "user", "2001:2002": "user", "1000:0": "user", "65534": "user", "0:0": "root"} {
		for _, root := range []backend.RootMode{backend.RootReadonly, backend.RootWritable} {
			spec := s.spec()
			spec.User, spec.Root = user, root
			writable := root == backend.RootWritable
			if writable && (name == "root" || !s.caps.WritableRoot) || name == "root" && s.h.Cluster {
				continue
			}
			info, err := s.b.Create(t.Context(), spec)
			if errors.Is(err, backend.ErrUnsupported) { // the backend has no other users
				continue
			}
			must(t, err)
			uid, gid, _ := strings.Cut(info.User, ":")
			group := map[bool]string{true: "root", false: "user"}[gid == "0"]
			first := fmt.Sprintf("uid=%s(%s) gid=%s(%s)", uid, name, gid, group)
			rest := fmt.Sprintf("\n%s\n%[1]s:/workspace/.workcell/home\nroot\nreadable\n", name)
			for range 2 {
				got := Sh(t, Dial(t, s.b, info.ID), script)
				if !strings.HasPrefix(got, first) || !strings.HasSuffix(got, rest) {
					t.Errorf("user %q, root %d: %q, want %s…%s", user, root, got, first, rest)
				}
				must(t, s.b.Stop(t.Context(), info.ID))
				must(t, s.b.Start(t.Context(), info.ID))
			}
			Remove(t, s.b, info.ID)
		}
	}
}

// isolationOfRoot verifies that root in the sandbox has no access to the host.
func (s *suite) isolationOfRoot(t *testing.T) {
	spec := s.spec()
	spec.User = "0:0"
	if s.caps.WritableRoot {
		spec.Root = backend.RootWritable
	}
	if s.h.Cluster {
		Fails(t, "Create", second(s.b.Create(t.Context(), spec)), backend.ErrPermission)
		return
	}
	conn := s.dial(t, s.create(t, spec).ID)
	s.privileges(t, conn)
	if res := Exec(t, conn, "mknod", backend.Workdir+"/device", "c", "1", "3"); res.ExitCode == 0 {
		t.Error("a device can be made")
	}
	for _, file := range []string{"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/.workcell/x"} {
		if res := Exec(t, conn, "sh", "-c", "echo x > "+file); res.ExitCode == 0 {
			t.Errorf("%s can be written to", file)
		}
	}
	if s.caps.WritableRoot {
		Sh(t, conn, "touch /root/x /usr/x")
	}
}

// guestFiles verifies that all files of the guest agent and the library exist and are read-only for every user.
func (s *suite) guestFiles(t *testing.T) {
	_, conn := s.inDebian(t)
	files, err := embed.Files(nil)
	must(t, err)
	for _, f := range files {
		name := path.Join(embed.Dir, f.Path)
		switch {
		case f.Mode.Type() == fs.ModeSymlink:
			if got := Sh(t, conn, "readlink "+name); got != string(f.Data)+"\n" {
				t.Errorf("%s leads to %q", name, got)
			}
		case f.Data != nil:
			if got, want := Sh(t, conn, "sha256sum < "+name), fmt.Sprintf("%x  -\n", sha256.Sum256(f.Data)); got != want {
				t.Errorf("the contents of %s are %q, want %q", name, got, want)
			}
			fallthrough
		default:
			if got, want := Sh(t, conn, "stat -c %a "+name), fmt.Sprintf("%o\n", f.Mode); got != want {
				t.Errorf("the mode of %s is %q, want %q", name, got, want)
			}
		}
		if res := Exec(t, conn, "sh", "-c", "chmod 777 "+name+" || rm "+name+" || echo x > "+name); res.ExitCode == 0 {
			t.Errorf("%s can be changed", name)
		}
	}
	if res := Exec(t, conn, embed.Dir+"/bin/tools", "ls"); res.ExitCode != 69 {
		t.Errorf("tools ends with %d without a host, want 69", res.ExitCode)
	}
}

// privileges verifies that a command has no privileges and runs in the namespaces of the sandbox.
func (s *suite) privileges(t *testing.T, conn *client.Conn) {
	t.Helper()
	status := map[string]string{}
	for line := range strings.Lines(Sh(t, conn, "cat /proc/self/status")) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.TrimSpace(value)
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if v := status[set]; v == "" || strings.Trim(v, "0") != "" {
			t.Errorf("%s is %q", set, v)
		}
	}
	if status["NoNewPrivs"] != "1" || status["Seccomp"] != "2" {
		t.Errorf("NoNewPrivs %s, Seccomp %s", status["NoNewPrivs"], status["Seccomp"])
	}
	spaces := []string{"ipc", "mnt", "net", "pid", "uts"}
	if !s.h.Cluster { // on a cluster, the node's runtime decides about a cgroup namespace
		spaces = append(spaces, "cgroup")
	}
	for _, name := range spaces {
		inside := strings.TrimSpace(Sh(t, conn, "readlink /proc/self/ns/"+name))
		if host, err := os.Readlink("/proc/self/ns/" + name); err != nil || host == inside {
			t.Errorf("the %s namespace %s is the host's (%v)", name, inside, err)
		}
	}
}
