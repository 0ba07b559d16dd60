//go:build linux

package promises

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
)

// localEngine is the host itself.
type localEngine struct {
	state string // driver's state directory
	home  string // XDG_STATE_HOME of the command line of an unprivileged user
}

func openLocal(dir string) engine {
	e := &localEngine{home: filepath.Join(dir, "state"), state: filepath.Join(dir, "state/workcell/local")}
	if os.Geteuid() == 0 {
		e.state = "/var/lib/workcell/local"
	}
	return e
}

func (e *localEngine) connect(ctx context.Context, c connection) (backend.SandboxBackend, error) {
	return local.New(ctx, &local.Options{StateDir: e.state, Logger: c.logger, TracerProvider: c.tracer})
}

func (e *localEngine) environ() []string { return []string{"XDG_STATE_HOME=" + e.home} }

func (e *localEngine) left(_ context.Context, prefix string) (list []string, err error) {
	for _, place := range []string{"sandboxes", "workspaces"} {
		records, err := filepath.Glob(filepath.Join(e.state, place, "*/*.json"))
		if err != nil {
			return nil, err
		}
		for _, record := range records {
			text, _ := os.ReadFile(record) // it may be about to be removed
			if dir := filepath.Dir(record); strings.Contains(string(text), prefix) && !slices.Contains(list, dir) {
				list = append(list, dir)
			}
		}
	}
	return list, nil
}

func (e *localEngine) pid(_ context.Context, id string) (int, error) {
	name, _, _ := strings.Cut(id, "@")
	text, err := os.ReadFile(filepath.Join(e.state, "sandboxes", name, "run.json"))
	if err != nil {
		return 0, err
	}
	var run struct{ PID int }
	return run.PID, errors.Join(err, json.Unmarshal(text, &run))
}

// describe returns the contents of a sandbox's records.
func (e *localEngine) describe(_ context.Context, id string) (string, error) {
	name, _, _ := strings.Cut(id, "@")
	return contentsBelow(filepath.Join(e.state, "sandboxes", name))
}

// contentsBelow returns the contents of the files below a directory.
func contentsBelow(dir string) (string, error) {
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&all, "%s: %s\n", path, text)
		return err
	})
	return all.String(), err
}

// stranger starts a process. The local backend has no images or labels.
func (e *localEngine) stranger(t testing.TB, _ string, _ map[string]string) stranger {
	t.Helper()
	cmd := exec.Command("sleep", "6000")
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	pid := strconv.Itoa(cmd.Process.Pid)
	return stranger{[]string{"other@" + pid, pid, "/proc/" + pid}, func() bool {
		s, err := status(cmd.Process.Pid)
		return err == nil && !strings.HasPrefix(s["State"], "Z")
	}}
}

// mounts matches the mounts of the visible parts of the host too, because they are mounted one by one.
func (e *localEngine) mounts() *regexp.Regexp {
	return regexp.MustCompile(`^(/|/proc(/.*)?|/sys(/fs/cgroup(/.*)?)?|/dev|/dev/(pts|shm|full|null|random|tty|urandom|zero)|/tmp|/workspace|/\.workcell` +
		`|/usr|/bin|/sbin|/lib|/lib32|/lib64|/libx32` +
		`|/etc/(ld\.so\.cache|ld\.so\.conf|ld\.so\.conf\.d|alternatives|localtime|mime\.types|protocols|services|ssl/certs|ssl/openssl\.cnf` +
		`|ca-certificates|pki/tls/certs|pki/ca-trust|crypto-policies|java-[0-9]+-openjdk/[^m/][^/]*))$`)
}

func (e *localEngine) close() error { return nil }

// inspect examines every process of a sandbox from the host. It checks the requirements of section 5 of the CIS Docker
// Benchmark for containers with data from the kernel.
func (e *localEngine) inspect(t *testing.T, b *testSandbox) {
	t.Helper()
	list, err := processes(t.Context(), b.s.Info().EngineID)
	must(t, err)
	for _, pid := range list {
		for _, ns := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup", "user"} {
			host, err := os.Readlink("/proc/self/ns/" + ns)
			must(t, err)
			if own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns)); err == nil && own == host {
				t.Errorf("process %d shares the namespace %s with the machine", pid, ns)
			}
		}
		s, err := status(pid)
		if err != nil || strings.HasPrefix(s["State"], "Z") {
			continue // it has exited in the meantime
		}
		unprivileged(t, fmt.Sprint("process ", pid), s)
		if uid := strings.Fields(s["Uid"])[0]; uid == "0" || os.Geteuid() == 0 && len(uid) < 10 {
			t.Errorf("process %d is the machine's user %s", pid, uid)
		}
	}
	main, err := e.pid(t.Context(), b.s.Info().EngineID)
	must(t, err)
	for _, name := range []string{"uid_map", "gid_map"} {
		for line := range strings.Lines(fileOf(t, main, name)) {
			outside, err := strconv.Atoi(strings.Fields(line)[1])
			if must(t, err); os.Geteuid() == 0 && outside < 1<<20 || outside == 0 {
				t.Errorf("%s maps %s", name, line)
			}
		}
	}
	if got := fileOf(t, main, "net/dev"); strings.Count(got, ":") != 1 || !strings.Contains(got, "lo:") {
		t.Errorf("5.9 own network: %q", got)
	}
	e.inspectGroup(t, b)
	// 5.31: the only open files of the host may be the process's own socket, log, and control group.
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", main))
	must(t, err)
	own := regexp.MustCompile(`^([^/]|/dev/|/proc|/sys/fs/cgroup/|` + backend.Workdir + `)|/guest\.log$`)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && !own.MatchString(to) && !ownTmp(t, fd, to) {
			t.Errorf("the main process holds %s open", to)
		}
	}
}

func fileOf(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	must(t, err)
	return string(text)
}

// inspectGroup checks the limits of a sandbox's control group, of either version. If control groups are not writable,
// Capabilities and doctor report it. TestN10Limits checks the limits in this case.
func (e *localEngine) inspectGroup(t *testing.T, b *testSandbox) {
	t.Helper()
	caps := w.driver.Capabilities()
	main, err := e.pid(t.Context(), b.s.Info().EngineID)
	must(t, err)
	sum := sha256.Sum256([]byte(e.state))
	group := regexp.MustCompile(fmt.Sprintf("workcell-%x-[0-9a-f]{16}", sum[:4])).FindString(fileOf(t, main, "cgroup"))
	for what, c := range map[string]struct {
		enforced bool
		v1, v2   string
		most     int64
	}{
		"5.10 memory":    {caps.Memory, "memory/%s/memory.limit_in_bytes", "%s/memory.max", (2048 + 64) << 20},
		"5.11 CPU":       {caps.CPU, "cpu/%s/cpu.cfs_quota_us", "%s/cpu.max", 1_000_000},
		"5.28 processes": {caps.PIDs && caps.Memory, "pids/%s/pids.max", "%s/pids.max", 1000},
	} {
		if !c.enforced {
			continue
		}
		text, err := os.ReadFile("/sys/fs/cgroup/" + fmt.Sprintf(c.v1, group))
		if err != nil {
			text, err = os.ReadFile("/sys/fs/cgroup/" + fmt.Sprintf(c.v2, group))
		}
		must(t, err)
		if n, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64); err != nil || n <= 0 || n > c.most {
			t.Errorf("%s: limit %d, %v", what, n, err)
		}
	}
}

// ownTmp reports whether an open file that the kernel calls /tmp is not the host's /tmp.
func ownTmp(t *testing.T, fd, path string) bool {
	t.Helper()
	if path != "/tmp" {
		return false
	}
	held, err := os.Stat(fd)
	must(t, err)
	machines, err := os.Stat("/tmp")
	must(t, err)
	return !os.SameFile(held, machines)
}
