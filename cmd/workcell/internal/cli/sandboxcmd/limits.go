package sandboxcmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
)

// limitFlags are the limits of a sandbox by flag, in the units of backend.LimitTable. A limit that is not set is zero.
type limitFlags map[string]*int64

// limitFlagNames returns the name in backend.LimitTable for each flag.
func limitFlagNames() map[string]string {
	return map[string]string{
		"cpu": "cpu_millicores", "memory-mb": "memory_mb", "pids": "pids", "workspace-mb": "workspace_mb", "tmp-mb": "tmp_mb",
		"shm-mb": "shm_mb",
	}
}

func (f *limitFlags) addTo(cmd *cobra.Command) {
	*f = limitFlags{}
	for flag, name := range limitFlagNames() {
		(*f)[flag] = cmd.Flags().Int64(flag, 0, limitUsage(name))
	}
}

// limitUsage describes a limit with its unit, its range, and its default.
func limitUsage(name string) string {
	row := backend.LimitNamed(name)
	least, most := row.Bounds()
	unit := ""
	if !strings.HasPrefix(row.What, row.Unit) {
		unit = " " + row.Unit
	}
	usage := fmt.Sprintf("%s, %d to %d%s", row.What, least, most, unit)
	if row.Default == 0 {
		return usage
	}
	return fmt.Sprintf("%s (default %d)", usage, row.Default/row.Scale)
}

// limits returns the limits set by the flags. It returns an error that names the flag for limits that no engine can
// enforce.
func (f limitFlags) limits() (backend.Limits, error) {
	var l backend.Limits
	for flag, name := range limitFlagNames() {
		row, value := backend.LimitNamed(name), *f[flag]
		if least, most := row.Bounds(); value != 0 && (value < least || value > most) {
			return l, app.InvalidFlag(flag, value, fmt.Sprintf("must be from %d to %d %s", least, most, row.Unit))
		}
		*row.Of(&l) = value * row.Scale
	}
	return l, nil
}
