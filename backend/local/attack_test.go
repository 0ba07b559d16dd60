//go:build linux

package local_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
)

// The range of host IDs for sandbox users if root creates the sandboxes.
const (
	lowestID  = 0x7000_0000
	highestID = 0x7fff_ffff
)

// TestUserIsNobody verifies that a sandbox's user has no account on the host, and that every sandbox has a different
// user ID.
func TestUserIsNobody(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	seen := map[uint32]bool{}
	for range 3 {
		info := backendtest.Create(t, b, newSpec())
		conn := backendtest.Dial(t, b, info.ID)
		backendtest.Prints(t, conn, "touch f; stat -c %u:%g f", "1000:1000\n")
		var file, process unix.Stat_t
		pid, err := mainPID(dir, info.ID)
		err = errors.Join(err, unix.Stat(filepath.Join(dir, "workspaces", info.SessionID, "files", "f"), &file),
			unix.Stat(fmt.Sprintf("/proc/%d/task", pid), &process))
		must(t, err)
		if file.Uid < lowestID || file.Uid > highestID || file.Gid != file.Uid || seen[file.Uid] {
			t.Errorf("the file belongs to %d:%d, seen before %v", file.Uid, file.Gid, seen)
		}
		seen[file.Uid] = true
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", file.Uid, file.Uid, file.Uid, file.Uid)) {
			t.Errorf("the guest does not run as %d: %v\n%s", file.Uid, err, status)
		}
	}
}

// TestHostFiles verifies that a sandbox sees no host files except the documented files, and that these contain no
// secrets.
func TestHostFiles(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	other := backendtest.Create(t, b, newSpec())
	backendtest.Sh(t, backendtest.Dial(t, b, other.ID), "echo secret > f")
	conn := backendtest.Dial(t, b, backendtest.Create(t, b, newSpec()).ID)
	for _, p := range []string{
		"/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/machine-id", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/sudoers",
		"/etc/krb5.keytab", "/root/.ssh", "/boot", "/var/lib", "/var/run", "/run/docker.sock", "/run/containerd", "/sys/firmware",
		"/sys/kernel", "/proc/1/root/etc", "/dev/kmsg", "/dev/mem", "/dev/fuse", "/dev/kvm", "/dev/net", "/dev/vda", "/dev/sda",
		dir, filepath.Join(dir, "workspaces"), os.TempDir() + "/go-build", "/proc/1/cwd/home/..data", "/old_root", "/.dockerenv",
	} {
		if res := backendtest.Exec(t, conn, "ls", "-d", p); res.ExitCode == 0 {
			t.Errorf("%s exists", p)
		}
	}
	backendtest.Prints(t, conn, "ls -A /root /home /srv /mnt /opt /run 2>/dev/null | grep -v : | tr -d '\\n'", "")
	backendtest.Prints(t, conn, "cat /etc/passwd | wc -l; hostname", "3\nworkcell\n")
}

// TestGuestDescriptors verifies that the guest agent has no open descriptors of host files.
func TestGuestDescriptors(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	info := backendtest.Create(t, b, newSpec())
	pid, err := mainPID(dir, info.ID)
	must(t, err)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	for _, fd := range fds {
		link := fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())
		to, err := os.Readlink(link)
		if to == "/tmp" && !sameFile(t, link, "/tmp") {
			continue // the sandbox's own /tmp
		}
		if err == nil && strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/dev/null") && !strings.HasPrefix(to, "/proc") &&
			!strings.HasPrefix(to, "/sys/fs/cgroup") && !strings.HasPrefix(to, backend.Workdir) && !strings.HasSuffix(to, "/guest.log") && to != "/" {
			t.Errorf("the guest holds %s", to)
		}
	}
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	left, err := os.Stat(a)
	right, err2 := os.Stat(b)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return os.SameFile(left, right)
}

// TestReusedPID verifies that a process with the reused process ID of a dead guest agent is never signaled.
func TestReusedPID(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	info := backendtest.Create(t, b, newSpec())
	must(t, b.Stop(t.Context(), info.ID))
	victim := exec.Command("sleep", "300")
	must(t, victim.Start())
	defer func() {
		backendtest.Fails(t, "an innocent process was killed", victim.Process.Signal(syscall.Signal(0)), nil)
		_ = victim.Process.Kill()
		_ = victim.Wait() // killed above
	}()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(t, err)
	text := fmt.Sprintf(`{"pid":%d,"start":12345,"boot":%q}`, victim.Process.Pid, strings.TrimSpace(string(boot)))
	must(t, os.WriteFile(filepath.Join(boxDir(dir, info.ID), "run.json"), []byte(text), 0o600))
	if got, err := b.Get(t.Context(), info.ID); err != nil || got.State != backend.StateStopped {
		t.Errorf("state %s, %v", got.State, err)
	}
	must(t, b.Stop(t.Context(), info.ID))
	must(t, b.Start(t.Context(), info.ID))
}

// TestDamagedProcess verifies that a process with a damaged record is found through the control group.
func TestDamagedProcess(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	info := backendtest.Create(t, b, newSpec())
	conn := backendtest.Dial(t, b, info.ID)
	must(t, os.WriteFile(filepath.Join(boxDir(dir, info.ID), "run.json"), []byte("{"), 0o600))
	must(t, b.Stop(t.Context(), info.ID))
	select {
	case <-conn.Done():
	case <-time.After(3 * time.Minute):
		t.Error("the sandbox runs on")
	}
	must(t, b.Start(t.Context(), info.ID))
}

// TestImages verifies that Info reports "host" as the image, and that references to other images fail.
func TestImages(t *testing.T) {
	t.Parallel()
	b := newBackend(t, stateDir(t))
	for ref, want := range map[string]error{
		"host": nil, "debian:12-slim": nil, "workcell/debian:12": nil, "python:3.11": nil, "docker.io/library/python": nil, "node:22": nil,
		"alpine": backend.ErrUnsupported, "ghcr.io/acme/python": backend.ErrUnsupported, "workcell/guest": backend.ErrUnsupported,
		"python@sha256:" + strings.Repeat("ab", 32): backend.ErrUnsupported, "UPPER": backend.ErrInvalid,
	} {
		spec := newSpec()
		spec.Image = ref
		info, err := b.Create(t.Context(), spec)
		if err == nil {
			backendtest.Remove(t, b, info.ID)
		}
		if !errors.Is(err, want) || want == nil && (info.Image != "host" || len(info.ImageEnv) == 0) {
			t.Errorf("%s: %v, want %v; %s", ref, err, want, cmp.Diff("host", info.Image))
		}
	}
}
