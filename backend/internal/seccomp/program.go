package seccomp

import (
	"embed"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
)

//go:generate sh mknumbers.sh

//go:embed numbers_*.txt
var numbers embed.FS

// Offsets of fields in struct seccomp_data, and the size of an argument.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
	argSize      = 8
)

// Return values of a filter.
const (
	retKill  = 0x80000000
	retErrno = 0x00050000
	retAllow = 0x7fff0000

	eperm  = 1
	enosys = 38
)

// abi is a system call interface of a host.
type abi struct {
	audit uint32 // an AUDIT_ARCH constant of the kernel
	table string // name of the table of call numbers; a GOARCH value
}

func abis() map[specs.Arch]abi {
	return map[specs.Arch]abi{
		specs.ArchX86_64:  {0xc000003e, "amd64"},
		specs.ArchX86:     {0x40000003, "386"},
		specs.ArchAARCH64: {0xc00000b7, "arm64"},
		specs.ArchARM:     {0x40000028, "arm"},
	}
}

// Program returns the filter in the kernel's format: an array of struct sock_filter in the host's byte order. The
// filter makes the same decisions as libseccomp's filter for [OCI], with one exception. For the x32 ABI, which hardly
// any kernel supports, it returns the same error as a kernel without x32. For calls newer than all calls in the
// profile, the filter returns ENOSYS, as runc does, to allow programs to use older calls. Defects of the embedded profile
// and tables cause a panic, which the tests of all architectures would find.
func Program(t Target) ([]byte, error) {
	insns, err := instructions(t)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(insns)
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	out := make([]byte, 0, 8*len(raw))
	for _, r := range raw { // amd64 and arm64 are both little-endian
		out = binary.LittleEndian.AppendUint16(out, r.Op)
		out = append(out, r.Jt, r.Jf)
		out = binary.LittleEndian.AppendUint32(out, r.K)
	}
	return out, nil
}

// instructions returns the filter as a list of instructions.
func instructions(t Target) ([]bpf.Instruction, error) {
	f, err := OCI(t)
	if err != nil {
		return nil, err
	}
	out := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetArch, Size: 4}}
	for _, arch := range f.Architectures {
		a, ok := abis()[arch]
		if !ok { // x32, which the section of amd64 handles
			continue
		}
		section := assembleABI(f, a)
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: a.audit, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(section))})
		out = append(out, section...)
	}
	return append(out, bpf.RetConstant{Val: retKill}), nil
}

// verdict is the filter's decision for a call.
type verdict struct {
	ret   uint32
	rules []rule // tried in order; if none matches, ret applies
}

// rule returns ret if all conditions hold.
type rule struct {
	ret   uint32
	conds []specs.LinuxSeccompArg
}

// span is a range of call numbers with one verdict. The range starts at first and ends before the next span.
type span struct {
	first uint32
	code  []bpf.Instruction
}

// assembleABI generates the part of the filter for one ABI. This part always returns.
func assembleABI(f *specs.LinuxSeccomp, a abi) []bpf.Instruction {
	deny := retValue(f.DefaultAction, f.DefaultErrnoRet)
	byNumber := verdicts(f, a, deny)
	var spans []span
	add := func(first uint32, v verdict) {
		code := assembleVerdict(v)
		if n := len(spans); n > 0 && len(v.rules) == 0 && slices.Equal(spans[n-1].code, code) {
			return
		}
		spans = append(spans, span{first, code})
	}
	next := uint32(0) // the first number without a span
	for _, nr := range slices.Sorted(maps.Keys(byNumber)) {
		if nr > next {
			add(next, verdict{ret: deny})
		}
		add(nr, byNumber[nr])
		next = nr + 1
	}
	// Numbers above the newest call, including x32 calls, return ENOSYS.
	add(next, verdict{ret: retErrno | enosys})
	return append([]bpf.Instruction{bpf.LoadAbsolute{Off: offsetNumber, Size: 4}}, search(spans)...)
}

// search generates a binary search over spans.
func search(spans []span) []bpf.Instruction {
	if len(spans) == 1 {
		return spans[0].code
	}
	mid := len(spans) / 2
	left, right := search(spans[:mid]), search(spans[mid:])
	out := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[mid].first, SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(left))}, // a conditional jump can skip at most 255 instructions
	}
	return append(append(out, left...), right...)
}

// verdicts returns the filter's verdict for each call number of an ABI. A call is denied if no rule matches.
func verdicts(f *specs.LinuxSeccomp, a abi, deny uint32) map[uint32]verdict {
	table := callNumbers(a.table)
	out := map[uint32]verdict{}
	for _, s := range f.Syscalls {
		ret := retValue(s.Action, s.ErrnoRet)
		for _, name := range s.Names {
			nr, ok := table[name]
			if !ok { // a call of another architecture
				continue
			}
			v, seen := out[nr]
			switch {
			case !seen && len(s.Args) == 0:
				v = verdict{ret: ret}
			case len(s.Args) == 0 || seen && len(v.rules) == 0:
				panic("seccomp: rules for " + name + " contradict each other")
			default:
				v.ret = deny
				v.rules = append(v.rules, rule{ret, s.Args})
			}
			out[nr] = v
		}
	}
	return out
}

// retValue returns the filter's return value for an action.
func retValue(action specs.LinuxSeccompAction, errno *uint) uint32 {
	switch action {
	case specs.ActAllow:
		return retAllow
	case specs.ActErrno:
		if errno == nil {
			return retErrno | eperm
		}
		return retErrno | uint32(*errno&0xfff)
	}
	panic("seccomp: unknown action " + string(action))
}

// assembleVerdict generates the code for one call. The code may overwrite the accumulator.
func assembleVerdict(v verdict) []bpf.Instruction {
	var out []bpf.Instruction
	for _, r := range v.rules {
		code := []bpf.Instruction{bpf.RetConstant{Val: r.ret}}
		// Assemble the conditions from last to first. A failed condition skips the following code.
		for _, c := range slices.Backward(r.conds) {
			code = append(assembleCondition(c, len(code)), code...)
		}
		out = append(out, code...)
	}
	return append(out, bpf.RetConstant{Val: v.ret})
}

// assembleCondition generates code for a condition. If the condition fails, the code skips behind more instructions.
// The code compares an argument as two 32-bit words. Only operators of the profile are supported.
func assembleCondition(c specs.LinuxSeccompArg, behind int) []bpf.Instruction {
	low := bpf.LoadAbsolute{Off: uint32(offsetArgs + argSize*c.Index), Size: 4}
	high := bpf.LoadAbsolute{Off: low.Off + 4, Size: 4}
	hi, lo, skip := uint32(c.Value>>32), uint32(c.Value), uint8(behind)
	switch c.Op {
	case specs.OpEqualTo:
		return []bpf.Instruction{high, bpf.JumpIf{Cond: bpf.JumpEqual, Val: hi, SkipFalse: skip + 2},
			low, bpf.JumpIf{Cond: bpf.JumpEqual, Val: lo, SkipFalse: skip}}
	case specs.OpLessThan:
		return []bpf.Instruction{
			high, bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: hi, SkipTrue: skip + 3},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: hi, SkipFalse: 2},
			low, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: lo, SkipFalse: skip}}
	case specs.OpMaskedEqual: // Value is the mask, ValueTwo the expected result
		return []bpf.Instruction{
			high, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: hi},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.ValueTwo >> 32), SkipFalse: skip + 3},
			low, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: lo},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.ValueTwo), SkipFalse: skip}}
	}
	panic("seccomp: unknown condition " + string(c.Op))
}

// callNumbers parses a table of system call numbers.
func callNumbers(table string) map[string]uint32 {
	b, err := numbers.ReadFile("numbers_" + table + ".txt")
	if err != nil {
		panic(err)
	}
	out := map[string]uint32{}
	for line := range strings.Lines(string(b)) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			panic(err)
		}
		out[name] = uint32(n)
	}
	return out
}
