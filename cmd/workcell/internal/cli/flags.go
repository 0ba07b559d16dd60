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

// ParseEnv parses -e flags. NAME=VALUE sets a value, and NAME alone passes on the value in this process, if it is set.
func ParseEnv(e environ.Lookup, pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if name == "" {
			// The value may be a secret, so the error omits it.
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

// EnvFlag adds -e to a command for programs. [ParseEnv] parses the values.
func EnvFlag(f *pflag.FlagSet, pairs *[]string) {
	f.StringArrayVarP(pairs, "env", "e", nil,
		"`NAME=VALUE`: environment variable; NAME alone passes on its local value (repeatable)")
}

// flagGroup is a set of flags for several commands. Their values are in Command.Options.
type flagGroup int

const (
	EngineFlags   flagGroup = 1 << iota // container engine; for every command with sandboxes
	ImageFlags                          // creation of sandboxes: images, mounts, and isolation
	ModelFlags                          // model instead of the models in the agents' files
	AgentFlags                          // runs of agents: hosts, packages, and contents of traces
	HostToolFlags                       // the operator's host tools file
	OutputFlags                         // format of the data on standard output
	AgentsFlags                         // directory of the agents of workflows
	AuditFlags                          // audit log
	PoolFlags                           // pooled sandboxes of servers
)

// Verb returns a command with the flags of some groups.
func (a *Command) Verb(groups flagGroup, cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	if groups&EngineFlags != 0 {
		f.StringVar(&a.Options.Backend, "backend", "",
			"`NAME`: docker, containerd, kubernetes, local (no engine, less isolation), or auto (docker, or containerd "+
				"if Docker "+
				"is not available); default: a named sandbox keeps its own, else $WORKCELL_BACKEND, the configuration "+
				"file, or auto")
	}
	if groups&ImageFlags != 0 {
		f.StringArrayVar(&a.Options.MapImage, "map-image", nil,
			"`FROM=TO`: use image TO instead of FROM, for example from a mirror (repeatable)")
		f.StringArrayVar(&a.Options.AllowImage, "allow-image", nil,
			"allow only images that match `PATTERN`, for example python:3.* or ghcr.io/acme/** (repeatable)")
		f.StringArrayVar(&a.Options.Mounts, "mount", nil,
			"`SOURCE:TARGET[:rw]`: mount host directory SOURCE at TARGET in sandboxes; read-only unless you add :rw "+
				"(repeatable)")
		f.StringVar(&a.Options.OCIRuntime, "oci-runtime", "",
			"`NAME`: OCI runtime, for example runsc to use gVisor's own kernel (default: the engine's default)")
		f.Var(OneOf(&a.Options.Isolation, backend.Isolations()...), "isolation",
			"minimum isolation of sandboxes; a workflow or agent can raise it but not lower it")
	}
	if groups&AgentFlags != 0 || cmd.Name() == "fill" { // its command has hosts too
		f.StringArrayVar(&a.Options.EgressAllowPrivate, "egress-allow-private", nil,
			"let allowed hosts (network.allow) have private addresses in `CIDR`, for example 10.0.0.0/8 (repeatable)")
	}
	if groups&AgentFlags != 0 {
		f.StringVar(&a.Options.PipIndex, "pip-index", "",
			"`URL` of the index for pip_packages (default: the image's setting)")
		f.StringVar(&a.Options.NpmRegistry, "npm-registry", "",
			"`URL` of the registry for npm_packages (default: the image's setting)")
		f.BoolVar(&a.Options.TraceContent, "trace-content", false,
			"include prompts, answers, tool calls, and error texts in traces; they may contain secrets")
	}
	if groups&ModelFlags != 0 {
		f.StringVar(&a.Options.Model, "model", "",
			"`MODEL`: model to use instead of the agents' models: provider/name, or scripted/PATH.yaml for recorded answers")
		f.StringVar(&a.Options.Prices, "prices", "",
			"`FILE`: path to a file with model prices for coding agents; overrides the built-in prices")
	}
	if groups&HostToolFlags != 0 {
		f.StringVar(&a.Options.HostTools, "host-tools", "", "`FILE`: list of MCP servers whose tools run on this host; "+
			"agents select tools with host_tools (default $WORKCELL_HOST_TOOLS)")
	}
	if groups&OutputFlags != 0 {
		f.VarP(OneOf(&a.Out, OutputTable, outputJSON), "output", "o", "output format")
	}
	if groups&AuditFlags != 0 {
		f.StringVar(&a.Options.Audit, "audit", "",
			"append a JSON line to `FILE` for each event listed in docs/operations/audit-log.md; fail if FILE cannot be written")
		if cmd.Name() != "ui" { // it audits no commands
			f.BoolVar(&a.Options.AuditHash, "audit-hash", false,
				"with --audit, record SHA-256 hashes of command arguments instead of the arguments")
		}
	}
	if groups&AgentsFlags != 0 {
		f.StringVar(&a.Options.Agents, "agents", "",
			"`DIR`: directory containing agents (default: agents, ../agents, and . relative to the workflow)")
	}
	if groups&PoolFlags != 0 {
		f.StringArrayVar(&a.Options.Pool, "pool", nil,
			"`IMAGE=N`: keep N sandboxes of IMAGE ready so that new ones open faster (repeatable); see "+
				"docs/operations/warm-pools.md")
	}
	return cmd
}

// BeforeCommand ends the flags of cmd at the second argument, the COMMAND. All later arguments belong to COMMAND, with
// or without --. Flags before and after the first argument belong to cmd. Call it last.
func BeforeCommand(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().SetInterspersed(false)
	check, run, split := cmd.Args, cmd.RunE, []string(nil)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if split = args; len(args) > 1 {
			if err := cmd.Flags().Parse(args[1:]); err != nil {
				return cmd.FlagErrorFunc()(cmd, err)
			}
			split = append(args[:1:1], cmd.Flags().Args()...)
		}
		if help, _ := cmd.Flags().GetBool("help"); help { // after the first argument
			return pflag.ErrHelp
		}
		return check(cmd, split)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, split) }
	return cmd
}

// Subcommands returns a command with only subcommands.
func Subcommands(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(subs...)
	return cmd
}

// Absent returns a hidden command for a command missing in this build.
func Absent(use string, err error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: "Not available in this build", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error { return err },
	}
}

// choice is a flag with a fixed set of values.
type choice[T ~string] struct {
	value *T
	words []string
}

// OneOf returns a flag for p. The default is the current value of p.
func OneOf[T ~string](p *T, values ...T) *choice[T] {
	c := &choice[T]{value: p}
	for _, v := range values {
		c.words = append(c.words, string(v))
	}
	return c
}

func (c *choice[T]) String() string { return string(*c.value) }

// Words returns the allowed values of the flag.
func (c *choice[T]) Words() []string { return c.words }

func (c *choice[T]) Type() string { return strings.Join(c.words, "|") }

func (c *choice[T]) Set(text string) error {
	if !slices.Contains(c.words, text) {
		return &unknownChoice{c.words}
	}
	*c.value = T(text)
	return nil
}

// unknownChoice is the error for a value not allowed for the flag.
type unknownChoice struct{ words []string }

func (e *unknownChoice) Error() string {
	last := len(e.words) - 1
	return "must be " + strings.Join(e.words[:last], ", ") + " or " + e.words[last]
}

// flagError returns the error for an invalid command line.
func flagError(cmd *cobra.Command, err error) error {
	bad, invalid := errors.AsType[*pflag.InvalidValueError](err)
	if unknown, ok := errors.AsType[*unknownChoice](err); ok && invalid {
		if bad.GetFlag().Name == "state" && strings.Contains(bad.GetValue(), "://") { // it may have a password
			return app.UsageError(errors.New("invalid value for --state"),
				"for a database, set WORKCELL_STATE; here, the flag "+unknown.Error())
		}
		return app.InvalidFlag(bad.GetFlag().Name, bad.GetValue(), unknown.Error())
	}
	return app.UsageError(err, "see `"+cmd.CommandPath()+" --help`")
}
