package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

func TestInstanceIsMadeOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "state")
	const commands = 20
	ids := make([]string, commands)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			a := &app{env: withEnv(map[string]string{"WORKCELL_STATE_DIR": dir})}
			id, err := a.instance()
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || !isInstanceID(id) {
			t.Fatalf("ids = %q", ids)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the state directory holds %v, %v", entries, err)
	}
	if runtime.GOOS == "windows" {
		return // no Unix modes there
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, instanceFile): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v, want %v", path, st.Mode().Perm(), err, want)
		}
	}
}

func TestDamagedInstanceIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, instanceFile)
	if err := os.WriteFile(path, []byte("../../x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{stateDirFlag: dir, env: withEnv(nil)}
	_, err := a.instance()
	wantFailure(t, err, exitFailed, "does not hold an instance id")
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "../../x\n" {
		t.Errorf("file = %q, %v", raw, err)
	}
}

func TestStateDirChoice(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	flag, variable, xdg := filepath.Join(base, "flag"), filepath.Join(base, "var"), filepath.Join(base, "xdg")
	for _, tc := range []struct {
		flag string
		vars map[string]string
		want string
	}{
		{flag, map[string]string{"WORKCELL_STATE_DIR": variable, "XDG_STATE_HOME": xdg}, flag},
		{"", map[string]string{"WORKCELL_STATE_DIR": variable, "XDG_STATE_HOME": xdg}, variable},
		{"", map[string]string{"XDG_STATE_HOME": xdg}, filepath.Join(xdg, "workcell")},
	} {
		a := &app{stateDirFlag: tc.flag, env: withEnv(tc.vars)}
		if got, err := a.stateDir(); err != nil || got != tc.want {
			t.Errorf("stateDir = %q, %v, want %q", got, err, tc.want)
		}
	}
}

func TestStateDirThatCannotBeMade(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{stateDirFlag: filepath.Join(file, "below"), env: withEnv(nil)}
	_, err := a.stateDir()
	wantFailure(t, err, exitUsage, "cannot make the state directory")
	var pe *os.PathError
	if !errors.As(err, &pe) {
		t.Errorf("error = %#v", err)
	}
}
