package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
)

// ParseEnv reads -e flags: NAME=VALUE, or NAME alone to pass on the value that this process has, if it has one.
func ParseEnv(e environ.Lookup, pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if name == "" {
			// The value may be a secret, so it is not repeated.
			return nil, app.UsageError(fmt.Errorf("environment variable without a name before ="),
				"use -e NAME=VALUE or -e NAME")
		}
		if !ok {
			if value, ok = e(name); !ok {
				continue
			}
		}
		out[name] = value
	}
	return out, nil
}

// egressFlag adds the flags of networks that are not public, and of registries that may be in them.
func (a *Command) egressFlag(f *pflag.FlagSet) {
	f.StringArrayVar(&a.Options.EgressAllowPrivate, "egress-allow-private", nil,
		"let hosts in network.allow resolve to private addresses in `CIDR`, for example 10.0.0.0/8 (repeatable)")
	f.StringVar(&a.Options.PipIndex, "pip-index", "", "`URL` of the index for pip_packages (default: the image's setting)")
	f.StringVar(&a.Options.NpmRegistry, "npm-registry", "", "`URL` of the registry for npm_packages (default: the image's setting)")
}

// PoolFlag adds --pool to a server.
func (a *Command) PoolFlag(f *pflag.FlagSet) {
	f.StringArrayVar(&a.Options.Pool, "pool", nil, "`IMAGE=N`: keep N sandboxes of IMAGE ready so that new ones open faster (repeatable)")
}

// flagGroup is a set of flags that several commands have. What they say is in Command.Options.
type flagGroup int

const (
	EngineFlags flagGroup = 1 << iota // the engine; every command that touches sandboxes has them
	ImageFlags                        // how sandboxes are made: which images may be used, where they come from, the OCI runtime
	ModelFlags                        // the model in place of what the agents' files name
	OutputFlags                       // how data is written to standard output
	AgentsFlags                       // where the agents of workflows are
	AuditFlags                        // where decisions and commands are recorded
)

// Verb returns a command with the flags of some groups.
func (a *Command) Verb(groups flagGroup, cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	if groups&EngineFlags != 0 {
		f.StringVar(&a.Options.Backend, "backend", "",
			"`NAME`: docker, containerd, kubernetes, local (no engine, less isolation), or auto (docker, or containerd if Docker "+
				"is not available); default: the sandbox's own backend, else $WORKCELL_BACKEND, the configuration file, or auto")
	}
	if groups&ImageFlags != 0 {
		f.StringArrayVar(&a.Options.MapImage, "map-image", nil,
			"`FROM=TO`: use image TO instead of FROM, for example from a mirror (repeatable)")
		f.StringArrayVar(&a.Options.AllowImage, "allow-image", nil,
			"allow only images that match `PATTERN`, for example python:3.* or ghcr.io/acme/** (repeatable)")
		f.StringArrayVar(&a.Options.Mounts, "mount", nil,
			"`SOURCE:TARGET[:rw]`: mount host directory SOURCE at TARGET in sandboxes; read-only unless you add :rw (repeatable)")
		f.StringVar(&a.Options.OCIRuntime, "oci-runtime", "", "`NAME`: OCI runtime, for example runsc for gVisor (default: the engine's default)")
		f.Var(OneOf(&a.Options.Isolation, backend.Isolations()...), "isolation",
			"minimum isolation of sandboxes; a file can only require more")
		a.egressFlag(f)
	}
	if groups&ModelFlags != 0 {
		f.StringVar(&a.Options.Model, "model", "",
			"`MODEL`: model to use instead of the agents' models: provider/name, or scripted/PATH.yaml for recorded answers")
		f.StringVar(&a.Options.Prices, "prices", "", "`FILE`: path to a file with model prices for coding agents; overrides the built-in prices")
		f.BoolVar(&a.Options.TraceContent, "trace-content", false,
			"include prompts, answers, tool calls, and error texts in traces; they may contain secrets")
		a.HostToolsFlag(f)
	}
	if groups&OutputFlags != 0 {
		f.VarP(OneOf(&a.Out, OutputTable, outputJSON), "output", "o", "output format")
	}
	if groups&AuditFlags != 0 {
		f.StringVar(&a.Options.Audit, "audit", "",
			"append a JSON line to `FILE` for each tool call, sandbox, and command; if FILE cannot be written, workcell stops with an error")
		f.BoolVar(&a.Options.AuditHash, "audit-hash", false, "record SHA-256 hashes instead of command arguments")
	}
	if groups&AgentsFlags != 0 {
		f.StringVar(&a.Options.Agents, "agents", "", "`DIR`: directory containing agents (default: agents, ../agents, and . relative to the workflow)")
	}
	return cmd
}

// Subcommands returns a command that is nothing but its subcommands.
func Subcommands(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
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

// OneOf returns a flag for p, whose default is what p holds.
func OneOf[T ~string](p *T, values ...T) *choice[T] {
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
		return app.UsageError(fmt.Errorf("invalid value %q for --%s", bad.GetValue(), bad.GetFlag().Name), unknown.Error())
	}
	return app.UsageError(err, "see `"+cmd.CommandPath()+" --help`")
}

// HostToolsFlag adds the flag of the operator's file.
func (a *Command) HostToolsFlag(f *pflag.FlagSet) {
	f.StringVar(&a.Options.HostTools, "host-tools", "",
		"`FILE`: path to a file that lists MCP servers with host tools; an agent's host_tools selects tools (default $WORKCELL_HOST_TOOLS)")
}
