package record

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// ExecMarker is the variable by which the guest finds the processes of a command.
const ExecMarker = "WORKCELL_EXEC"

// maxEnvBytes bounds the environment of a command: Linux allows arguments and environment a quarter of the stack's
// limit together, 2 MiB usually.
const maxEnvBytes = 1 << 20

// ValidateEnv checks names and values. Which names change a program's loading (LD_PRELOAD, …) is not its business: the
// sandbox is the boundary, not the environment.
func ValidateEnv(env map[string]string) error {
	size := 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		switch {
		case name == "":
			return fmt.Errorf("%w: environment variable without a name", backend.ErrInvalid)
		case strings.ContainsAny(name, "=\x00"):
			return fmt.Errorf("%w: environment variable name %q contains = or NUL", backend.ErrInvalid, sanitize.Message(name))
		case strings.Contains(value, "\x00"):
			return fmt.Errorf("%w: value of environment variable %q contains NUL", backend.ErrInvalid, sanitize.Message(name))
		case name == ExecMarker:
			return fmt.Errorf("%w: environment variable %s is reserved", backend.ErrInvalid, ExecMarker)
		}
		size += len(name) + len(value) + 2
	}
	if size > maxEnvBytes {
		return fmt.Errorf("%w: the environment has %d bytes, the limit is %d", backend.ErrTooLarge, size, maxEnvBytes)
	}
	return nil
}
