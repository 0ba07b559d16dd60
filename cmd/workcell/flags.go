package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/backend"
)

// flagGroup is a set of flags that several commands have. What they say is in app.
type flagGroup int

const (
	engineFlags flagGroup = 1 << iota // the engine; every command that touches sandboxes has them
	imageFlags                        // how sandboxes are made: which images may be used, where they come from, the OCI runtime
	modelFlags                        // the model in place of what the agents' files name
	outputFlags                       // how data is written to standard output
	agentsFlags                       // where the agents of workflows are
	auditFlags                        // where decisions and commands are recorded
)

// verb returns a command with the flags of some groups.
func (a *command) verb(groups flagGroup, cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	if groups&engineFlags != 0 {
		f.StringVar(&a.Options.Backend, "backend", "",
			"backend to use: docker, containerd, kubernetes, local (no engine, less isolation), or auto (docker, or "+
				"containerd if Docker is not available) (default: the sandbox's own backend, $WORKCELL_BACKEND, the "+
				"configuration file, or auto)")
	}
	if groups&imageFlags != 0 {
		f.StringArrayVar(&a.Options.MapImage, "map-image", nil,
			"replace an image (`FROM=TO`), for example with one from a mirror (repeatable)")
		f.StringArrayVar(&a.Options.AllowImage, "allow-image", nil,
			"allow only images that match `PATTERN`, for example python:3.* or ghcr.io/acme/** (repeatable)")
		f.StringArrayVar(&a.Options.Mounts, "mount", nil,
			"mount a host directory in sandboxes (`SOURCE:TARGET[:rw]`), read-only unless you add :rw (repeatable)")
		f.StringVar(&a.Options.OCIRuntime, "oci-runtime", "", "OCI `RUNTIME`, for example runsc for gVisor (default: the engine's)")
		a.egressFlag(f)
	}
	if groups&modelFlags != 0 {
		f.StringVar(&a.Options.Model, "model", "",
			"`MODEL` to use instead of the agents' models: provider/name, or scripted/PATH.yaml for recorded answers")
		f.StringVar(&a.Options.Prices, "prices", "", "`FILE` with model prices for coding agents; overrides the built-in prices")
		f.BoolVar(&a.Options.TraceContent, "trace-content", false,
			"include prompts, answers, tool calls, and error texts in traces; they may contain secrets")
		a.hostToolsFlag(f)
	}
	if groups&outputFlags != 0 {
		f.VarP(oneOf(&a.out, outputTable, outputJSON), "output", "o", "output format")
	}
	if groups&auditFlags != 0 {
		f.StringVar(&a.Options.Audit, "audit", "",
			"append a JSON line to `FILE` for each tool call, sandbox, and command; if FILE cannot be written, the command fails")
		f.BoolVar(&a.Options.AuditHash, "audit-hash", false, "record SHA-256 hashes instead of command arguments")
	}
	if groups&agentsFlags != 0 {
		f.StringVar(&a.Options.Agents, "agents", "", "`DIR` with agents (default: agents, ../agents, and . relative to the workflow)")
	}
	return cmd
}

// subcommands returns a command that is nothing but its subcommands.
func subcommands(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(subs...)
	return cmd
}

// choice is a flag with one of a few values.
type choice[T ~string] struct {
	value *T
	words []string
}

// oneOf returns a flag for p, whose default is what p holds.
func oneOf[T ~string](p *T, values ...T) *choice[T] {
	c := &choice[T]{value: p}
	for _, v := range values {
		c.words = append(c.words, string(v))
	}
	return c
}

func (c *choice[T]) String() string { return string(*c.value) }

// Words returns the values that the flag takes.
func (c *choice[T]) Words() []string { return c.words }

func (c *choice[T]) Type() string { return strings.Join(c.words, "|") }

func (c *choice[T]) Set(text string) error {
	if !slices.Contains(c.words, text) {
		return &unknownChoice{c.words}
	}
	*c.value = T(text)
	return nil
}

// unknownChoice is the error of a value that a flag does not have.
type unknownChoice struct{ words []string }

func (e *unknownChoice) Error() string {
	last := len(e.words) - 1
	return "must be " + strings.Join(e.words[:last], ", ") + " or " + e.words[last]
}

// flagError returns the error of a command line that cannot be parsed.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	var unknown *unknownChoice
	if errors.As(err, &bad) && errors.As(err, &unknown) {
		return usageError(fmt.Errorf("invalid value %q for --%s", bad.GetValue(), bad.GetFlag().Name), unknown.Error())
	}
	return usageError(err, "see `"+cmd.CommandPath()+" --help`")
}

// limitFlags are the limits of a sandbox by flag, in the units of backend.LimitTable; zero for those that were not given.
type limitFlags map[string]*int64

// limitFlagNames returns the row of backend.LimitTable of each flag.
func limitFlagNames() map[string]string {
	return map[string]string{
		"cpu": "cpu_millicores", "memory-mb": "memory_mb", "pids": "pids", "workspace-mb": "workspace_mb", "tmp-mb": "tmp_mb",
	}
}

func (f *limitFlags) addTo(cmd *cobra.Command) {
	*f = limitFlags{}
	for flag, name := range limitFlagNames() {
		(*f)[flag] = cmd.Flags().Int64(flag, 0, limitUsage(name))
	}
}

// limitUsage describes a limit with its unit, bounds and default.
func limitUsage(name string) string {
	row := backend.LimitNamed(name)
	least, most := row.Bounds()
	unit := ""
	if !strings.HasPrefix(row.What, row.Unit) {
		unit = " in " + row.Unit
	}
	return fmt.Sprintf("%s%s, %d to %d (default %d)", row.What, unit, least, most, row.Default/row.Scale)
}

// limits returns what the flags ask for, and refuses in their words what no engine could enforce.
func (f limitFlags) limits() (backend.Limits, error) {
	var l backend.Limits
	for flag, name := range limitFlagNames() {
		row, value := backend.LimitNamed(name), *f[flag]
		if least, most := row.Bounds(); value != 0 && (value < least || value > most) {
			return l, usageError(fmt.Errorf("invalid value %d for --%s", value, flag), fmt.Sprintf("must be from %d to %d %s", least, most, row.Unit))
		}
		*row.Of(&l) = value * row.Scale
	}
	return l, nil
}
