package promises

import (
	"context"
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
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// localEngine is this machine itself.
type localEngine struct {
	state string // the driver's directory
	home  string // what names it to the command line of an ordinary user

	before []string // what belonged to nobody when the tests began
}

func openLocal(_ context.Context, dir string) (engine, error) {
	e := &localEngine{home: filepath.Join(dir, "state"), state: filepath.Join(dir, "state/workcell/local")}
	if os.Geteuid() == 0 {
		e.state = "/var/lib/workcell/local"
	}
	_, there, nonces, err := e.records("")
	if err != nil {
		return nil, err
	}
	e.before, err = e.ownerless(there, nonces)
	return e, err
}

func (e *localEngine) connect(ctx context.Context, c connection) (backend.SandboxBackend, error) {
	return local.New(ctx, &local.Options{StateDir: e.state, Logger: c.logger, TracerProvider: c.tracer})
}

func (e *localEngine) environ() []string { return []string{"XDG_STATE_HOME=" + e.home} }

func (e *localEngine) left(_ context.Context, prefix string) ([]string, error) {
	list, there, nonces, err := e.records(prefix)
	if err != nil || prefix != w.instance { // the rest tells no instance, and others may be at work
		return list, err
	}
	more, err := e.ownerless(there, nonces)
	return append(list, newOnly(more, e.before)...), err
}

// records lists the directories of sandboxes and workspaces of an instance; there and nonces name all that there are.
func (e *localEngine) records(prefix string) (list []string, there, nonces map[string]bool, err error) {
	there, nonces = map[string]bool{}, map[string]bool{}
	for _, place := range []string{"sandboxes", "workspaces"} {
		dirs, err := filepath.Glob(filepath.Join(e.state, place, "*"))
		if err != nil {
			return nil, nil, nil, err
		}
		for _, dir := range dirs {
			there[filepath.Base(dir)] = true
			records, err := filepath.Glob(filepath.Join(dir, "*.json"))
			if err != nil {
				return nil, nil, nil, err
			}
			for _, record := range records {
				text, err := os.ReadFile(record)
				if err != nil {
					continue // it is being removed
				}
				if strings.Contains(string(text), prefix) && !slices.Contains(list, dir) {
					list = append(list, dir)
				}
				var r struct{ Nonce, Group string } // a sandbox that was started again has its former group
				if json.Unmarshal(text, &r) == nil {
					nonces[r.Nonce], nonces[strings.TrimPrefix(r.Group, e.groups())] = true, true
				}
			}
		}
	}
	return list, there, nonces, nil
}

// ownerless lists what belongs to no sandbox.
func (e *localEngine) ownerless(there, nonces map[string]bool) ([]string, error) {
	var list []string
	ids, err := filepath.Glob(filepath.Join(e.state, "ids/*"))
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if owner, err := os.Readlink(id); err == nil && !there[owner] {
			list = append(list, "block of user ids "+id+" of "+owner)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/", "/sys/fs/cgroup/"} {
		groups, err := filepath.Glob(pattern + e.groups() + "*")
		if err != nil {
			return nil, err
		}
		for _, group := range groups {
			if !nonces[strings.TrimPrefix(filepath.Base(group), e.groups())] {
				list = append(list, "control group "+group)
			}
		}
	}
	return list, nil
}

// groups begins the names of the control groups of this state directory's sandboxes.
func (e *localEngine) groups() string {
	return "workcell-" + hash([]byte(e.state))[:8] + "-"
}

// pid gives the main process of a sandbox.
func (e *localEngine) pid(id string) (int, error) {
	name, _, _ := strings.Cut(id, "@")
	text, err := os.ReadFile(filepath.Join(e.state, "sandboxes", name, "run.json"))
	if err != nil {
		return 0, err
	}
	var run struct{ PID int }
	if err := json.Unmarshal(text, &run); err != nil || run.PID <= 0 {
		return 0, fmt.Errorf("run.json: %s: %w", text, err)
	}
	return run.PID, nil
}

func (e *localEngine) running(_ context.Context, id string) bool {
	pid, err := e.pid(id)
	if err != nil {
		return false
	}
	s, err := status(pid)
	return err == nil && !strings.HasPrefix(s["State"], "Z")
}

func (e *localEngine) processes(_ context.Context, id string) (int, error) {
	pid, err := e.pid(id)
	if err != nil {
		return 0, err
	}
	list, err := procs(pid)
	return len(list), err
}

func (e *localEngine) describe(_ context.Context, id string) (string, error) {
	name, _, _ := strings.Cut(id, "@")
	return smallFiles(filepath.Join(e.state, "sandboxes", name))
}

// stranger is a process. Labels are the engine's affair, and here there is none.
func (e *localEngine) stranger(t testing.TB, _ map[string]string) stranger {
	t.Helper()
	cmd := exec.Command("sleep", "6000")
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // then it has ended
		<-ended
	})
	pid := strconv.Itoa(cmd.Process.Pid)
	return stranger{[]string{"other@" + pid, pid, "/proc/" + pid}, func() bool {
		select {
		case <-ended:
			return false
		default:
			return true
		}
	}}
}

// unreachable: there is nothing to reach.
func (e *localEngine) unreachable(testing.TB) map[string]string { return nil }

// mounts: the parts of the machine that a sandbox sees are mounted one by one.
func (e *localEngine) mounts() *regexp.Regexp {
	return regexp.MustCompile(`^(/|/proc(/.*)?|/sys(/fs/cgroup(/.*)?)?|/dev|/dev/(pts|shm|full|null|random|tty|urandom|zero)|/tmp|/workspace|/\.workcell` +
		`|/usr|/bin|/sbin|/lib|/lib32|/lib64|/libx32` +
		`|/etc/(ld\.so\.cache|ld\.so\.conf|ld\.so\.conf\.d|alternatives|localtime|mime\.types|protocols|services|ssl/certs|ssl/openssl\.cnf` +
		`|ca-certificates|pki/tls/certs|pki/ca-trust|crypto-policies))$`)
}

func (e *localEngine) close() error { return nil }

// unusableState is what can be wrong in place of an engine that is away.
func unusableState(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "secret-place")
	must(t, os.WriteFile(file, nil, 0o600))
	open := filepath.Join(dir, "open")
	must(t, os.Mkdir(open, 0o700))
	must(t, os.Chmod(open, 0o777))
	for what, state := range map[string]string{"a file": file, "below a file": file + "/x", "for everybody": open} {
		b, err := local.New(t.Context(), &local.Options{StateDir: state})
		if err == nil {
			t.Errorf("a state directory that is %s was accepted", what)
			must(t, b.Close())
			continue
		}
		if strings.Contains(err.Error(), "secret-place") {
			t.Errorf("%s: %v tells the path", what, err)
		}
	}
	// What lies in it is gone under a sandbox: that is a lost one, and others go on.
	b := newBox(t, pythonBox())
	e := w.engine.(*localEngine)
	pid, err := e.pid(b.s.Info().EngineID)
	must(t, err)
	p, err := os.FindProcess(pid)
	must(t, errors.Join(err, p.Kill()))
	eventually(t, "the sandbox counts as lost", func() bool {
		return code(b.call(t, toolspec.ToolExec, obj{"cmd": []string{"true"}})) == toolspec.CodeLost
	})
	w.user.alive(t)
}
