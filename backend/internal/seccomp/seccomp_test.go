package seccomp_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend/internal/seccomp"
)

// rules returns the rules of a filter for a call.
func rules(f *specs.LinuxSeccomp, call string) []specs.LinuxSyscall {
	var out []specs.LinuxSyscall
	for _, s := range f.Syscalls {
		if slices.Contains(s.Names, call) {
			out = append(out, s)
		}
	}
	return out
}

func TestJSONIsOneLine(t *testing.T) {
	t.Parallel()
	s, err := seccomp.JSON()
	if err != nil || !json.Valid([]byte(s)) || slices.Contains([]byte(s), '\n') {
		t.Errorf("JSON: %d bytes, %v", len(s), err)
	}
}

func TestOCI(t *testing.T) {
	t.Parallel()
	f, err := seccomp.OCI(seccomp.Target{Arch: "amd64", Kernel: "6.1.0-18-amd64"})
	must(t, err)
	if diff := cmp.Diff([]specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}, f.Architectures); diff != "" {
		t.Errorf("architectures (-want +got)\n%s", diff)
	}
	if f.DefaultAction != specs.ActErrno || f.DefaultErrnoRet == nil || *f.DefaultErrnoRet != 1 {
		t.Errorf("default %s, %v", f.DefaultAction, f.DefaultErrnoRet)
	}
	for call, want := range map[string]int{
		"read": 1, "ptrace": 1, "arch_prctl": 1, "socket": 7, "clone": 1, "clone3": 1,
		"mount": 0, "bpf": 0, "keyctl": 0, "unshare": 0, "setns": 0, "perf_event_open": 0, "socketcall": 1, "sync_file_range2": 0,
	} {
		if got := rules(f, call); len(got) != want {
			t.Errorf("%s: %d rules, want %d", call, len(got), want)
		}
	}
	for _, r := range rules(f, "socket") {
		if len(r.Args) != 1 || r.Args[0].Index != 0 {
			t.Errorf("socket is allowed without a look at its family: %+v", r)
		}
	}
	for _, call := range []string{"clone3", "socketcall"} {
		if r := rules(f, call); len(r) != 1 || r[0].Action != specs.ActErrno || r[0].ErrnoRet == nil || *r[0].ErrnoRet != 38 {
			t.Errorf("%s: %+v", call, r)
		}
	}
}

func TestOCIConditions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		target seccomp.Target
		call   string
		want   int
	}{
		{seccomp.Target{Arch: "amd64", Kernel: "4.7.9"}, "ptrace", 0},
		{seccomp.Target{Arch: "amd64", Kernel: "4.8.0"}, "ptrace", 1},
		{seccomp.Target{Arch: "amd64", Kernel: "5.0-rc1"}, "ptrace", 1},
		{seccomp.Target{Arch: "amd64", Kernel: "10.0"}, "ptrace", 1},
		{seccomp.Target{Arch: "amd64"}, "ptrace", 0},
		{seccomp.Target{Arch: "amd64", Kernel: "what"}, "ptrace", 0},
		{seccomp.Target{Arch: "arm64", Kernel: "6.1"}, "arch_prctl", 0},
		{seccomp.Target{Arch: "arm64", Kernel: "6.1"}, "sync_file_range2", 1},
	} {
		f, err := seccomp.OCI(c.target)
		must(t, err)
		if got := rules(f, c.call); len(got) != c.want {
			t.Errorf("%+v: %s has %d rules, want %d", c.target, c.call, len(got), c.want)
		}
	}
	if f, err := seccomp.OCI(seccomp.Target{Arch: "s390x", Kernel: "6.1"}); err == nil {
		t.Errorf("a profile for an unknown architecture: %+v", f)
	}
}
