package seccomp_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"

	"github.com/workcell-dev/workcell/backend/internal/seccomp"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// Architecture constants passed by the kernel to a filter.
const (
	auditAMD64 = 0xc000003e
	audit386   = 0x40000003
	auditARM64 = 0xc00000b7
	auditARM   = 0x40000028
)

const (
	kill  = 0x80000000
	allow = 0x7fff0000
	errno = 0x00050000
)

func target(arch string) seccomp.Target {
	return seccomp.Target{Arch: arch, Kernel: "6.1.0-18-" + arch}
}

// simulator runs the assembled filter in a virtual machine.
type simulator struct {
	vm     *bpf.VM
	filter *specs.LinuxSeccomp
}

func simulate(t testing.TB, arch string) simulator {
	t.Helper()
	insns, err := seccomp.Instructions(target(arch))
	must(t, err)
	// The virtual machine only accepts package bpf's instruction types. Assembling the raw form proves that the kernel's
	// form exists.
	if raw, err := bpf.Assemble(insns); err != nil || len(raw) > 4096 { // the kernel's limit
		t.Fatalf("%d instructions: %v", len(raw), err)
	}
	vm, err := bpf.NewVM(insns)
	must(t, err)
	filter, err := seccomp.OCI(target(arch))
	must(t, err)
	return simulator{vm, filter}
}

// run returns the filter's result for a call. The virtual machine reads words in network byte order, the kernel in the
// host's byte order.
func (s simulator) run(t testing.TB, audit, nr uint32, args [6]uint64) uint32 {
	t.Helper()
	b := make([]byte, 0, 64)
	b = binary.BigEndian.AppendUint32(b, nr)
	b = binary.BigEndian.AppendUint32(b, audit)
	b = append(b, make([]byte, 8)...) // the instruction pointer
	for _, a := range args {
		b = binary.BigEndian.AppendUint32(b, uint32(a))
		b = binary.BigEndian.AppendUint32(b, uint32(a>>32))
	}
	got, err := s.vm.Run(b)
	must(t, err)
	return uint32(got)
}

// table reads the call numbers of an architecture. It returns the newest call number known to the filter.
func table(t testing.TB, arch string, f *specs.LinuxSeccomp) (names map[uint32]string, newest uint32) {
	t.Helper()
	file, err := os.Open("numbers_" + arch + ".txt")
	must(t, err)
	defer file.Close()
	names = map[uint32]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, number, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseUint(number, 10, 32)
		must(t, err)
		names[uint32(n)] = name
		if slices.ContainsFunc(f.Syscalls, func(s specs.LinuxSyscall) bool { return slices.Contains(s.Names, name) }) {
			newest = max(newest, uint32(n))
		}
	}
	return names, newest
}

// want evaluates the profile directly and returns the expected result for a call.
func want(f *specs.LinuxSeccomp, names map[uint32]string, newest, nr uint32, args [6]uint64) uint32 {
	if nr > newest {
		return errno | 38
	}
	for _, s := range f.Syscalls {
		if name, ok := names[nr]; !ok || !slices.Contains(s.Names, name) || !holds(s.Args, args) {
			continue
		}
		if s.Action == specs.ActAllow {
			return allow
		}
		return errno | uint32(*s.ErrnoRet)
	}
	return errno | 1
}

func holds(conds []specs.LinuxSeccompArg, args [6]uint64) bool {
	for _, c := range conds {
		a := args[c.Index]
		ok := map[specs.LinuxSeccompOperator]bool{
			specs.OpEqualTo: a == c.Value, specs.OpLessThan: a < c.Value, specs.OpMaskedEqual: a&c.Value == c.ValueTwo,
		}[c.Op]
		if !ok {
			return false
		}
	}
	return true
}

// machines lists the architectures of the host with their system call interfaces.
func machines() []struct {
	arch, table string
	audit       uint32
} {
	return []struct {
		arch, table string
		audit       uint32
	}{
		{"amd64", "amd64", auditAMD64}, {"amd64", "386", audit386}, {"arm64", "arm64", auditARM64}, {"arm64", "arm", auditARM},
	}
}

// TestProgramFollowsTheProfile verifies that the filter makes the same decision as the profile for every call number,
// with arguments at the boundaries of all conditions.
func TestProgramFollowsTheProfile(t *testing.T) {
	t.Parallel()
	for _, m := range machines() {
		t.Run(m.arch+" "+m.table, func(t *testing.T) {
			t.Parallel()
			s := simulate(t, m.arch)
			names, newest := table(t, m.table, s.filter)
			if newest < 400 {
				t.Fatalf("the newest known call is %d", newest)
			}
			edges := []uint64{0, 1, 1 << 31, 1 << 32, 1<<64 - 1}
			for _, r := range s.filter.Syscalls {
				for _, c := range r.Args {
					edges = append(edges, c.Value-1, c.Value, c.Value+1, c.Value|1<<32, c.Value<<32, c.Value&-c.Value, ^c.Value)
				}
			}
			numbers := []uint32{1 << 20, 983039, 983041, 983042, 983045, 983046, 0x40000000, 0x40000001, 1<<31 - 1, 1 << 31, 1<<32 - 1}
			for nr := range uint32(1200) {
				numbers = append(numbers, nr)
			}
			for _, nr := range numbers {
				for _, a := range edges {
					args := [6]uint64{a, a, a, a, a, a}
					if got, want := s.run(t, m.audit, nr, args), want(s.filter, names, newest, nr, args); got != want {
						t.Fatalf("%s(%d) with %#x: %#x, want %#x", names[nr], nr, a, got, want)
					}
				}
			}
		})
	}
}

// TestProgramDenies verifies that the filter denies dangerous calls, independent of the contents of the profile.
func TestProgramDenies(t *testing.T) {
	t.Parallel()
	for _, m := range machines() {
		s := simulate(t, m.arch)
		names, _ := table(t, m.table, s.filter)
		for nr, name := range names {
			switch name {
			case "mount", "umount2", "pivot_root", "unshare", "setns", "bpf", "keyctl", "add_key", "request_key", "perf_event_open",
				"open_by_handle_at", "kexec_load", "init_module", "finit_module", "reboot", "swapon", "userfaultfd", "fsopen",
				"open_tree", "move_mount", "mount_setattr", "io_uring_setup", "socketcall", "chroot", "clone3", "quotactl":
				if got := s.run(t, m.audit, nr, [6]uint64{}); got&0xffff0000 != errno {
					t.Errorf("%s %s: %#x", m.table, name, got)
				}
			}
		}
		clone, socket := number(t, names, "clone"), number(t, names, "socket")
		for _, flag := range []uint64{0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000} {
			if got := s.run(t, m.audit, clone, [6]uint64{flag | 17}); got == allow {
				t.Errorf("%s: clone with %#x: %#x", m.table, flag, got)
			}
		}
		for family, want := range map[uint64]uint32{1: allow, 2: allow, 10: allow, 16: allow, 38: errno | 1, 40: errno | 1, 45: allow, 1<<32 | 38: errno | 1, 1<<32 | 40: errno | 1, 1<<63 | 40: errno | 1} {
			if got := s.run(t, m.audit, socket, [6]uint64{family}); got != want {
				t.Errorf("%s: socket of family %#x: %#x, want %#x", m.table, family, got, want)
			}
		}
	}
}

func number(t testing.TB, names map[uint32]string, name string) uint32 {
	t.Helper()
	for nr, n := range names {
		if n == name {
			return nr
		}
	}
	t.Fatalf("there is no call %s", name)
	return 0
}

// TestProgramForeignArchitectures verifies that a call through a foreign architecture kills the process, and that x32
// calls get the same result as on a kernel without x32.
func TestProgramForeignArchitectures(t *testing.T) {
	t.Parallel()
	for arch, foreign := range map[string][]uint32{
		"amd64": {0, auditARM64, auditARM, 0xc0000016, 1<<32 - 1}, "arm64": {0, auditAMD64, audit386, 0xc0000016, 1<<32 - 1},
	} {
		s := simulate(t, arch)
		for _, a := range foreign {
			if got := s.run(t, a, 0, [6]uint64{}); got != kill {
				t.Errorf("%s: architecture %#x: %#x", arch, a, got)
			}
		}
	}
	s := simulate(t, "amd64")
	for _, nr := range []uint32{0, 1, 59, 520, 1 << 29} {
		if got := s.run(t, auditAMD64, 0x40000000|nr, [6]uint64{}); got != errno|38 {
			t.Errorf("x32 call %d: %#x", nr, got)
		}
	}
}

func TestProgramSize(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"amd64", "arm64"} {
		p, err := seccomp.Program(target(arch))
		if err != nil || len(p)%8 != 0 || len(p)/8 < 100 || len(p)/8 > 4096 {
			t.Errorf("%s: %d bytes, %v", arch, len(p), err)
		}
		// The first instruction loads the architecture: BPF_LD|BPF_W|BPF_ABS at offset 4.
		if first := fmt.Sprintf("%x", p[:8]); first != "2000000004000000" {
			t.Errorf("%s begins with %s", arch, first)
		}
	}
	if _, err := seccomp.Program(target("riscv64")); err == nil {
		t.Error("there is a filter for an unknown architecture")
	}
}

var must = checktest.Must
