package docker

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
)

// seccompProfile is Moby's default profile (github.com/moby/profiles, v0.2.3), cut down to what applies to a container
// without capabilities on amd64 and arm64, and without socketcall, which would let a 32-bit program past the rules for
// socket. Over the profile that older engines carry, it closes AF_VSOCK, a way to the machine's hypervisor that no
// network namespace contains, and AF_ALG, and it makes all engines behave alike.
//
//go:embed seccomp.json
var seccompProfile []byte

// seccompChoice says which profile a sandbox gets: ours, unless the engine's operator put one in place.
func seccompChoice(securityOptions []string) (profile string, enforced bool, err error) {
	for _, o := range securityOptions {
		name, rest, _ := strings.Cut(strings.TrimPrefix(o, "name="), ",")
		if name != "seccomp" {
			continue
		}
		switch strings.TrimPrefix(rest, "profile=") {
		case "", "default", "builtin", "unconfined":
			var out bytes.Buffer
			if err := json.Compact(&out, seccompProfile); err != nil {
				return "", false, fmt.Errorf("docker: seccomp profile: %w", err)
			}
			return out.String(), true, nil
		}
		return "", true, nil
	}
	return "", false, nil
}
