// Package cli contains everything shared by all commands: streams, flags, output, progress, the terminal, and the exit
// of the process.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// Command is one invocation of the workcell command. It holds the streams, the flags, and the App with these flags.
type Command struct {
	*app.App             // nil until the flags are parsed
	Options  app.Options // bound to flags; App has a copy
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer
	Out      format
	Terminal atomic.Pointer[HostTerminal] // terminal in a changed mode; nil for none

	stdinRead bool // ReadStdin was called
}

// New returns a Command. version is empty except in releases.
func New(stdin io.Reader, stdout, stderr io.Writer, version string) *Command {
	a := &Command{Stdin: stdin, Stdout: stdout, Stderr: stderr, Out: OutputTable}
	a.Options = app.Options{Env: os.LookupEnv, Stderr: stderr, Version: buildVersion(version), Front: a.front}
	return a
}

// ReadStdin reads standard input to the end, once. It also returns when ctx ends, because a read from a terminal or a
// pipe cannot be canceled.
func (a *Command) ReadStdin(ctx context.Context, most int64) (data []byte, err error) {
	if a.stdinRead {
		return nil, app.UsageError(errors.New("standard input can be read only once"), "use files for the other values")
	}
	a.stdinRead = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		if data, err = io.ReadAll(io.LimitReader(a.Stdin, most+1)); err == nil && int64(len(data)) > most {
			err = fmt.Errorf("larger than %s", ByteSize(most))
		}
	}()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-done:
		return data, err
	}
}

// Group returns commands for the root command.
type Group func(*Command) []*cobra.Command

// Run parses args, runs the command, and returns the exit code.
func Run(ctx context.Context, args []string, a *Command, groups ...Group) int {
	ctx, stop := watchSignals(ctx, a.Stderr, func(code int) {
		a.RestoreTerminal()
		os.Exit(code)
	})
	defer stop()

	root := Root(a, groups...)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return finish(ctx, a.Stderr, err)
}

// valueName matches the name of a flag's value at the beginning of the description, where pflag repeats the name.
var valueName = regexp.MustCompile(`(?m)^( +(?:-\w, )?--\S+ \S+ +)\S+: `)

// Root returns the command tree.
func Root(a *Command, groups ...Group) *cobra.Command {
	root := &cobra.Command{
		Use:     "workcell",
		Version: a.Options.Version,
		Short:   "Sandboxes for Genkit agents",
		Long: `Workcell runs Genkit agents and multi-step workflows in isolated sandboxes: Docker or containerd
containers, Kubernetes pods, or Linux namespaces on this host (the local backend, which needs no engine).

To check your setup, run ` + "`workcell doctor`" + `. To run an agent (a .prompt file) or a workflow (a .yaml file), use
` + "`workcell run FILE`" + `. To create a sandbox manually, use ` + "`workcell sandbox open`" + `. By default,
Workcell uses Docker, or containerd if Docker is not available. The containerd and local backends require Linux. The
flags below apply to all commands, but runs ls has its own --state. Documentation:
https://github.com/workcell-dev/workcell

By default, sandboxes have no network access. Workcell removes a run's sandboxes when the run ends. To keep
them, pass --keep, or set retention or checkpoints in the workflow.

` + exitCodeHelp + `

Environment (flags override these variables, which override the configuration file):
  WORKCELL_BACKEND     default for --backend: docker, containerd, kubernetes, local, or auto
  WORKCELL_STATE_DIR   default for --state-dir
  WORKCELL_STATE       default for --state; use it for a URL with a password, because other users can see command-line flags
  WORKCELL_CONFIG      default for --config; for all settings, see docs/reference/configuration.md
  WORKCELL_IMAGE_MAP   values for --map-image, separated by commas
  WORKCELL_ALLOW_ROOT  set to 1 to allow sandboxes that run as root
  WORKCELL_HOST_TOOLS  default for --host-tools
  WORKCELL_MCP_TOKEN   bearer token for HTTP clients of workcell mcp
  WORKCELL_DEBUG       set to 1 to print debug logs, as text
  WORKCELL_REAPER      set to off to disable the background process that cleans up if this command is killed
  WORKCELL_KUBE_*      override kubernetes.* settings, for example WORKCELL_KUBE_NAMESPACE
  KUBECONFIG           kubeconfig file, as used by kubectl
  DOCKER_*             Docker connection settings such as DOCKER_HOST, as used by the docker CLI
  CONTAINERD_*         CONTAINERD_ADDRESS, CONTAINERD_NAMESPACE (default workcell), CONTAINERD_SNAPSHOTTER
  *_API_KEY            model providers' API keys: GEMINI_API_KEY, …; see docs/reference/environment.md
  OTEL_*               where to send traces and metrics (default: nowhere); see docs/reference/telemetry.md
  GENKIT_ENV=dev       connect to the Genkit Developer UI`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("workcell {{.Version}}\n")
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		a.Options.Command = cmd.CommandPath()
		a.App = app.New(a.Options)
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		fmt.Fprintf(a.Stdout, "%s\n\n%s", cmp.Or(cmd.Long, cmd.Short), valueName.ReplaceAllString(cmd.UsageString(), "$1"))
	})
	root.PersistentFlags().StringVar(&a.Options.StateDir, "state-dir", "",
		"`DIR`: directory for sandbox records, run journals, and results (default $XDG_STATE_HOME/workcell)")
	root.PersistentFlags().StringVar(&a.Options.State, "state", "",
		"`URL` of a PostgreSQL database for records and journals (default $WORKCELL_STATE, or a file in --state-dir)")
	root.PersistentFlags().StringVar(&a.Options.Config, "config", "",
		"`FILE`: path to the configuration file (default $WORKCELL_CONFIG, or $XDG_CONFIG_HOME/workcell/workcell.yaml)")
	Subcommands(root)
	for _, g := range groups {
		root.AddCommand(g(a)...)
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if topic, rest, _ := root.Find(args); topic.HasAvailableSubCommands() {
					return topic.ValidateArgs(rest)
				}
				return nil
			}
		case "completion":
			Subcommands(cmd)
		}
	}
	wrapArgErrors(root)
	a.completeWords(root)
	return root
}

// wrapArgErrors turns invalid arguments of all commands into usage errors, like invalid flags.
func wrapArgErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			switch {
			case err == nil, hint.Of(err) != nil:
				return err
			case !c.HasAvailableSubCommands() && strings.HasPrefix(err.Error(), "unknown command"): // cobra.NoArgs
				todo := "usage: " + c.UseLine()
				if c.Flags().Lookup("name") != nil {
					todo = "did you mean `" + c.CommandPath() + " --name " + hint.Quote(args[0]) + "`?"
				}
				return app.UsageError(fmt.Errorf("unexpected argument %q", args[0]), todo)
			case c.HasAvailableSubCommands():
				return app.UsageError(err, commandHint(c, args))
			case strings.Contains(err.Error(), " arg(s), "): // cobra.ExactArgs and similar functions
				err = fmt.Errorf("invalid number of arguments: %d", len(args))
			}
			return app.UsageError(err, fmt.Sprintf("usage: %s", c.UseLine()))
		}
	}
	for _, sub := range cmd.Commands() {
		wrapArgErrors(sub)
	}
}

// commandHint returns a hint with the probably intended command of a group.
func commandHint(group *cobra.Command, args []string) string {
	hint := "see `" + group.CommandPath() + " --help`"
	if len(args) == 0 {
		return hint
	}
	var names []string
	for _, sub := range group.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	near, ok := suggest.Closest(args[0], names)
	if alike := group.SuggestionsFor(args[0]); !ok && len(alike) > 0 { // known synonyms of commands
		near, ok = alike[0], true
	}
	if !ok {
		return hint
	}
	return "did you mean `" + group.CommandPath() + " " + near + "`? " + hint
}

// buildVersion returns version. If version is empty, it returns the module version recorded by Go, which contains the
// revision.
func buildVersion(version string) string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = strings.Trim(info.Main.Version, "()")
	}
	return cmp.Or(version, "devel")
}
