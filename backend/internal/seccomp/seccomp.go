// Package seccomp holds the one system call filter of all sandboxes, whatever engine runs them, in the form
// that each kind of engine takes.
//
// The profile is Moby's default (github.com/moby/profiles, v0.2.3), cut down to what applies to a container without
// capabilities on amd64 and arm64. It refuses socketcall, which would let a 32-bit program past the rules for socket:
// to leave it out is not enough, because libseccomp then lets it make every kind of socket that any rule for socket
// names. Over the profile that older engines carry, it closes AF_VSOCK, a way to the machine's hypervisor that no
// network namespace contains, and AF_ALG, and it makes all engines behave alike.
//
// The families of socket are named one by one up to the last, not "above AF_VSOCK": a filter compares all 64 bits of an
// argument of which the kernel takes 32, so that 1<<32 + AF_VSOCK would be above it.
package seccomp

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

//go:embed profile.json
var profile []byte

// JSON returns the profile as Docker takes it: one line of JSON, with conditions on architecture and kernel that the
// engine resolves.
func JSON() (string, error) {
	var out bytes.Buffer
	if err := json.Compact(&out, profile); err != nil {
		return "", fmt.Errorf("seccomp profile: %w", err)
	}
	return out.String(), nil
}

// Target is the machine that a filter is for.
type Target struct {
	Arch   string // Go's name: "amd64", "arm64"
	Kernel string // release as uname gives it, "6.1.0-18-amd64"
}

// source is the profile as it is written. It is an OCI filter but for the conditions.
type source struct {
	DefaultAction   specs.LinuxSeccompAction `json:"defaultAction"`
	DefaultErrnoRet *uint                    `json:"defaultErrnoRet"`
	ArchMap         []struct {
		Architecture     specs.Arch   `json:"architecture"`
		SubArchitectures []specs.Arch `json:"subArchitectures"`
	} `json:"archMap"`
	Syscalls []struct {
		specs.LinuxSyscall
		Includes struct {
			Arches    []string `json:"arches"`
			MinKernel string   `json:"minKernel"`
		} `json:"includes"`
	} `json:"syscalls"`
}

// OCI returns the filter for one machine, all conditions resolved, as an OCI runtime takes it. The value is the
// caller's.
func OCI(t Target) (*specs.LinuxSeccomp, error) {
	var s source
	dec := json.NewDecoder(bytes.NewReader(profile))
	dec.DisallowUnknownFields() // a condition that is not understood must not be dropped
	if err := dec.Decode(&s); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	out := &specs.LinuxSeccomp{DefaultAction: s.DefaultAction, DefaultErrnoRet: s.DefaultErrnoRet}
	native, err := nativeArch(t.Arch)
	if err != nil {
		return nil, err
	}
	for _, a := range s.ArchMap {
		if a.Architecture == native {
			out.Architectures = append([]specs.Arch{native}, a.SubArchitectures...)
		}
	}
	for _, c := range s.Syscalls {
		if len(c.Includes.Arches) > 0 && !slices.Contains(c.Includes.Arches, t.Arch) {
			continue
		}
		if !atLeast(t.Kernel, c.Includes.MinKernel) {
			continue
		}
		out.Syscalls = append(out.Syscalls, c.LinuxSyscall)
	}
	return out, nil
}

func nativeArch(arch string) (specs.Arch, error) {
	switch arch {
	case "amd64":
		return specs.ArchX86_64, nil
	case "arm64":
		return specs.ArchAARCH64, nil
	}
	return "", fmt.Errorf("no seccomp profile for architecture %q", arch)
}

// atLeast compares releases by their first two numbers. What cannot be read counts as old: a rule that is left out
// allows less.
func atLeast(release, minimum string) bool {
	if minimum == "" {
		return true
	}
	have, ok1 := version(release)
	want, ok2 := version(minimum)
	return ok1 && ok2 && slices.Compare(have, want) >= 0
}

func version(release string) ([]int, bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return nil, false
	}
	major, err1 := strconv.Atoi(parts[0])
	digits := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(parts[1])
	}
	minor, err2 := strconv.Atoi(parts[1][:digits])
	return []int{major, minor}, err1 == nil && err2 == nil
}
