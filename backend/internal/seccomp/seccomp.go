// Package seccomp contains the system call filter of all sandboxes, in the format of each kind of engine. All engines
// use the same filter.
//
// The profile is Moby's default (github.com/moby/profiles, v0.2.3), reduced to the rules for a container without
// capabilities on amd64 and arm64. It denies socketcall, because a 32-bit program could use this call to bypass the
// rules for socket. Leaving socketcall out of the profile is not enough: libseccomp would then allow all sockets named
// in any rule for socket. Compared with the profiles of older engines, this profile also denies AF_ALG and AF_VSOCK.
// AF_VSOCK is a path to the host's hypervisor outside of all network namespaces. With one profile, all engines behave
// alike.
//
// The rules list the socket families one by one up to the last instead of using a rule "above AF_VSOCK". A filter
// compares all 64 bits of an argument, but the kernel uses only 32, so 1<<32 + AF_VSOCK would match such a rule.
package seccomp

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

//go:embed profile.json
var profile []byte

// JSON returns the profile in Docker's format: one line of JSON, with conditions on architecture and kernel for the
// engine to resolve.
func JSON() (string, error) {
	var out bytes.Buffer
	if err := json.Compact(&out, profile); err != nil {
		return "", fmt.Errorf("seccomp profile: %w", err)
	}
	return out.String(), nil
}

// Target describes the host of a filter.
type Target struct {
	Arch   string // GOARCH value, for example "amd64"
	Kernel string // kernel release from uname, for example "6.1.0-18-amd64"
}

// source is the profile file. It has the format of an OCI filter plus conditions.
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

// OCI returns the filter for one host in the format of OCI runtimes, with all conditions resolved. The caller owns the
// returned value.
func OCI(t Target) (*specs.LinuxSeccomp, error) {
	var s source
	dec := json.NewDecoder(bytes.NewReader(profile))
	dec.DisallowUnknownFields() // an unknown condition must not be ignored
	if err := dec.Decode(&s); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	out := &specs.LinuxSeccomp{DefaultAction: s.DefaultAction, DefaultErrnoRet: s.DefaultErrnoRet}
	for _, a := range s.ArchMap {
		if abis()[a.Architecture].table == t.Arch {
			out.Architectures = append([]specs.Arch{a.Architecture}, a.SubArchitectures...)
		}
	}
	if out.Architectures == nil {
		return nil, fmt.Errorf("no seccomp profile for architecture %q", t.Arch)
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

// atLeast compares kernel releases by their first two numbers. An unparsable release counts as old, because a filter
// without the rule allows less.
func atLeast(release, minimum string) bool {
	if minimum == "" {
		return true
	}
	var have, want [2]int
	_, err1 := fmt.Sscanf(release, "%d.%d", &have[0], &have[1])
	_, err2 := fmt.Sscanf(minimum, "%d.%d", &want[0], &want[1])
	return err1 == nil && err2 == nil && slices.Compare(have[:], want[:]) >= 0
}
