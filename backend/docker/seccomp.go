package docker

import (
	"strings"

	"github.com/workcell-dev/workcell/backend/internal/seccomp"
)

// seccompChoice returns the seccomp profile of a sandbox: Workcell's profile, or the profile configured by the engine's
// operator.
func seccompChoice(securityOptions []string) (profile string, enforced bool, err error) {
	for _, o := range securityOptions {
		name, rest, _ := strings.Cut(strings.TrimPrefix(o, "name="), ",")
		if name != "seccomp" {
			continue
		}
		switch strings.TrimPrefix(rest, "profile=") {
		case "", "default", "builtin", "unconfined":
			profile, err = seccomp.JSON()
			return profile, true, err
		}
		return "", true, nil
	}
	return "", false, nil
}
