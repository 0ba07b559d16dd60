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

//go:generate go run mknumbers.go

//go:embed numbers_*.txt
var numbers embed.FS

// Offsets in struct seccomp_data, and the size of its arguments.
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

// abi is one way to call the kernel of a machine.
type abi struct {
	arch  specs.Arch
	audit uint32 // AUDIT_ARCH_…
	table string // of numbers
}

func abis(arch specs.Arch) (abi, bool) {
	for _, a := range []abi{
		{specs.ArchX86_64, 0xc000003e, "amd64"},
		{specs.ArchX86, 0x40000003, "386"},
		{specs.ArchAARCH64, 0xc00000b7, "arm64"},
		{specs.ArchARM, 0x40000028, "arm"},
	} {
		if a.arch == arch {
			return a, true
		}
	}
	return abi{}, false
}

// Program assembles the filter as the kernel takes it: struct sock_filter after struct sock_filter, in the machine's
// byte order. It decides as what libseccomp makes of [OCI], with one exception: the x32 ABI, which hardly any kernel
// has, is answered as by a kernel without it. Calls that are newer than every call the profile knows are answered with
// ENOSYS, as runc does, so that programs fall back to older ones.
func Program(t Target) ([]byte, error) {
	insns, err := Instructions(t)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(insns)
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	if len(raw) > maxInstructions {
		return nil, fmt.Errorf("seccomp: a filter of %d instructions, the kernel takes %d", len(raw), maxInstructions)
	}
	out := make([]byte, 0, 8*len(raw))
	for _, r := range raw { // both architectures are little-endian
		out = binary.LittleEndian.AppendUint16(out, r.Op)
		out = append(out, r.Jt, r.Jf)
		out = binary.LittleEndian.AppendUint32(out, r.K)
	}
	return out, nil
}

const maxInstructions = 4096

// Instructions returns the same filter as instructions.
func Instructions(t Target) ([]bpf.Instruction, error) {
	f, err := OCI(t)
	if err != nil {
		return nil, err
	}
	out := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetArch, Size: 4}}
	for _, arch := range f.Architectures {
		a, ok := abis(arch)
		if !ok { // x32, which has its place in the section of amd64
			continue
		}
		section, err := assembleABI(f, a)
		if err != nil {
			return nil, err
		}
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: a.audit, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(section))})
		out = append(out, section...)
	}
	return append(out, bpf.RetConstant{Val: retKill}), nil
}

// verdict is what happens to a call.
type verdict struct {
	ret   uint32
	rules []rule // tried in order before ret
}

// rule returns its value when all conditions hold.
type rule struct {
	ret   uint32
	conds []specs.LinuxSeccompArg
}

// span is a run of numbers with one verdict, from its first number to the next span's.
type span struct {
	first uint32
	code  []bpf.Instruction
}

// assembleABI makes the part of the filter for one ABI, which always returns.
func assembleABI(f *specs.LinuxSeccomp, a abi) ([]bpf.Instruction, error) {
	deny, err := retValue(f.DefaultAction, f.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	byNumber, err := verdicts(f, a, deny)
	if err != nil {
		return nil, err
	}
	var spans []span
	add := func(first uint32, v verdict) error {
		code, err := assembleVerdict(v)
		if err != nil {
			return err
		}
		if n := len(spans); n > 0 && len(v.rules) == 0 && slices.Equal(spans[n-1].code, code) {
			return nil
		}
		spans = append(spans, span{first, code})
		return nil
	}
	next := uint32(0) // the first number without a span
	for _, nr := range slices.Sorted(maps.Keys(byNumber)) {
		if nr > next {
			err = add(next, verdict{ret: deny})
		}
		if err == nil {
			err = add(nr, byNumber[nr])
		}
		if err != nil {
			return nil, err
		}
		next = nr + 1
	}
	// Beyond the newest, x32 included.
	if err := add(next, verdict{ret: retErrno | enosys}); err != nil {
		return nil, err
	}
	return append([]bpf.Instruction{bpf.LoadAbsolute{Off: offsetNumber, Size: 4}}, search(spans)...), nil
}

// search makes a binary search over spans.
func search(spans []span) []bpf.Instruction {
	if len(spans) == 1 {
		return spans[0].code
	}
	mid := len(spans) / 2
	left, right := search(spans[:mid]), search(spans[mid:])
	out := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[mid].first, SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(left))}, // a conditional jump reaches 255 instructions only
	}
	return append(append(out, left...), right...)
}

// verdicts finds the filter's verdict about each number of an ABI, and denies a call for which no rule holds.
func verdicts(f *specs.LinuxSeccomp, a abi, deny uint32) (map[uint32]verdict, error) {
	table, err := callNumbers(a.table)
	if err != nil {
		return nil, err
	}
	out := map[uint32]verdict{}
	for _, s := range f.Syscalls {
		ret, err := retValue(s.Action, s.ErrnoRet)
		if err != nil {
			return nil, err
		}
		for _, name := range s.Names {
			nr, ok := table[name]
			if !ok { // another architecture's
				continue
			}
			v, seen := out[nr]
			switch {
			case !seen && len(s.Args) == 0:
				v = verdict{ret: ret}
			case len(s.Args) == 0 || seen && len(v.rules) == 0:
				return nil, fmt.Errorf("seccomp: rules for %s contradict each other", name)
			default:
				v.ret = deny
				v.rules = append(v.rules, rule{ret, s.Args})
			}
			out[nr] = v
		}
	}
	return out, nil
}

// retValue returns a filter's return value for an action.
func retValue(action specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch action {
	case specs.ActAllow:
		return retAllow, nil
	case specs.ActErrno:
		if errno == nil {
			return retErrno | eperm, nil
		}
		return retErrno | uint32(*errno&0xfff), nil
	}
	return 0, fmt.Errorf("seccomp: unknown action %s", action)
}

// assembleVerdict makes the code for one call. It may use the accumulator.
func assembleVerdict(v verdict) ([]bpf.Instruction, error) {
	var out []bpf.Instruction
	for _, r := range v.rules {
		code := []bpf.Instruction{bpf.RetConstant{Val: r.ret}}
		// From the last condition to the first: each skips what follows when it does not hold.
		for _, c := range slices.Backward(r.conds) {
			cond, err := assembleCondition(c, len(code))
			if err != nil {
				return nil, err
			}
			code = append(cond, code...)
		}
		out = append(out, code...)
	}
	return append(out, bpf.RetConstant{Val: v.ret}), nil
}

// assembleCondition continues behind itself when the condition holds and skips behind more instructions else. An
// argument is compared as two words of 32 bits. Other comparisons than the profile's are errors.
func assembleCondition(c specs.LinuxSeccompArg, behind int) ([]bpf.Instruction, error) {
	if c.Index > 5 || behind > 200 {
		return nil, fmt.Errorf("seccomp: a condition on argument %d, %d instructions before its end", c.Index, behind)
	}
	low := bpf.LoadAbsolute{Off: uint32(offsetArgs + argSize*c.Index), Size: 4}
	high := bpf.LoadAbsolute{Off: low.Off + 4, Size: 4}
	hi, lo, skip := uint32(c.Value>>32), uint32(c.Value), uint8(behind)
	switch c.Op {
	case specs.OpEqualTo:
		return []bpf.Instruction{high, bpf.JumpIf{Cond: bpf.JumpEqual, Val: hi, SkipFalse: skip + 2},
			low, bpf.JumpIf{Cond: bpf.JumpEqual, Val: lo, SkipFalse: skip}}, nil
	case specs.OpLessThan:
		return []bpf.Instruction{
			high, bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: hi, SkipTrue: skip + 3},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: hi, SkipFalse: 2},
			low, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: lo, SkipFalse: skip}}, nil
	case specs.OpMaskedEqual: // Value is the mask, ValueTwo what is to be left
		return []bpf.Instruction{
			high, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: hi}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.ValueTwo >> 32), SkipFalse: skip + 3},
			low, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: lo}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.ValueTwo), SkipFalse: skip}}, nil
	}
	return nil, fmt.Errorf("seccomp: unknown condition %s", c.Op)
}

// callNumbers reads a table of numbers.
func callNumbers(table string) (map[string]uint32, error) {
	b, err := numbers.ReadFile("numbers_" + table + ".txt")
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	out := map[string]uint32{}
	for line := range strings.Lines(string(b)) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("seccomp: number of %s: %w", name, err)
		}
		out[name] = uint32(n)
	}
	return out, nil
}
