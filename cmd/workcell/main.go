// Command workcell runs agents and workflows in sandboxes, and shows and uses the sandboxes themselves.
//
// Data goes to standard output, everything else to standard error. See `workcell --help` for the commands and the
// table of exit codes.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// version is set by release builds with -ldflags "-X main.version=v1.2.3".
var version string

func main() {
	stdout := os.Stdout
	// Some libraries print to os.Stdout (dotprompt does, for YAML it cannot read). Data must stay pure, so whatever is
	// not written through run's own writer lands on standard error.
	os.Stdout = os.Stderr
	os.Exit(run(context.Background(), os.Args[1:], newCommand(os.Stdin, stdout, os.Stderr, version), commands()...))
}

// commands returns the groups of commands.
func commands() []group {
	return []group{runCommands, sandboxCommands, adminCommands}
}

// group returns commands for the root.
type group func(*command) []*cobra.Command

// run parses args, does the work and returns the exit code.
func run(ctx context.Context, args []string, a *command, groups ...group) int {
	ctx, stop := watchSignals(ctx, a.stderr, func(code int) {
		a.restoreTerminal()
		os.Exit(code)
	})
	defer stop()

	root := newRootCmd(a, groups...)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return finish(ctx, a.stderr, err)
}

// newRootCmd builds the tree of commands.
func newRootCmd(a *command, groups ...group) *cobra.Command {
	root := &cobra.Command{
		Use:     "workcell",
		Version: a.version,
		Short:   "Sandboxes for Genkit agents",
		Long: `Workcell runs Genkit agents and multi-step workflows in isolated sandboxes: Docker or containerd
containers, Kubernetes pods, or Linux namespaces on this host (the local backend, which needs no engine).

The default backend is Docker, or containerd if Docker is not available. To check your setup, run
` + "`workcell doctor`" + `. A run removes its sandboxes when it ends, unless you pass --keep or the workflow
keeps them (retention:, checkpoints:).

` + exitCodeHelp + `

Environment:
  WORKCELL_BACKEND     default for --backend
  WORKCELL_STATE_DIR   default for --state-dir
  WORKCELL_STATE       default for --state; use it for a URL with a password, because other users can see command-line flags
  WORKCELL_CONFIG      default for --config
  WORKCELL_IMAGE_MAP   values for --map-image, separated by commas
  WORKCELL_ALLOW_ROOT  set to 1 to allow sandboxes that run as root
  WORKCELL_HOST_TOOLS  default for --host-tools
  WORKCELL_MCP_TOKEN   bearer token for HTTP clients of workcell mcp
  WORKCELL_DEBUG       set to 1 to print debug logs
  WORKCELL_REAPER      set to off to disable the background process that cleans up if this command is killed
  WORKCELL_KUBE_*      CONTEXT, NAMESPACE, GUEST_IMAGE, STORAGE_CLASS, NETWORK_POLICY: override kubernetes.* settings
  KUBECONFIG           cluster configuration, as for kubectl
  DOCKER_HOST, DOCKER_* Docker engine, as for the docker command
  CONTAINERD_ADDRESS, CONTAINERD_NAMESPACE, CONTAINERD_SNAPSHOTTER
                       containerd socket, namespace (default workcell), and snapshotter
  GEMINI_API_KEY, ANTHROPIC_API_KEY, OPENAI_API_KEY
                       keys of model providers; for others, see docs/cli.md
  OTEL_*               traces and metrics; see docs/telemetry.md
  GENKIT_ENV=dev       connect to the Genkit Developer UI`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("workcell {{.Version}}\n")
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		a.Options.Command = cmd.CommandPath()
		a.app = newApp(a.Options)
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.Options.StateDir, "state-dir", "",
		"`DIR` for sandbox records, run journals, and results (default $XDG_STATE_HOME/workcell)")
	root.PersistentFlags().StringVar(&a.Options.State, "state", "",
		"`URL` of a PostgreSQL database for records and journals (default $WORKCELL_STATE, or a file in --state-dir)")
	root.PersistentFlags().StringVar(&a.Options.Config, "config", "",
		"configuration `FILE` (default $WORKCELL_CONFIG, or $XDG_CONFIG_HOME/workcell/workcell.yaml)")
	subcommands(root)
	for _, g := range groups {
		root.AddCommand(g(a)...)
	}
	wrapArgErrors(root)
	a.completeWords(root)
	return root
}

// wrapArgErrors makes wrong arguments usage errors in every command, as wrong flags are.
func wrapArgErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			switch {
			case err == nil, hint.Of(err) != nil:
				return err
			case c.HasAvailableSubCommands():
				return usageError(err, commandHint(c, args))
			}
			return usageError(err, fmt.Sprintf("usage: %s", c.UseLine()))
		}
	}
	for _, sub := range cmd.Commands() {
		wrapArgErrors(sub)
	}
}

// commandHint returns which command of a group may be meant.
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
	if alike := group.SuggestionsFor(args[0]); !ok && len(alike) > 0 { // other words for it
		near, ok = alike[0], true
	}
	if !ok {
		return hint
	}
	return "did you mean `" + group.CommandPath() + " " + near + "`? " + hint
}

// command is one call of the command: its streams, what its flags say, and the app that is made of them.
type command struct {
	*app             // nil until the flags were read
	Options  Options // what the flags say; commands bind them
	stdin    io.Reader
	stdout   io.Writer
	stderr   io.Writer
	version  string
	out      format
	terminal atomic.Pointer[hostTerminal] // the one that is not as it was found, nil for none
}

// newCommand returns a command with streams. version is empty unless it is a release.
func newCommand(stdin io.Reader, stdout, stderr io.Writer, version string) *command {
	a := &command{stdin: stdin, stdout: stdout, stderr: stderr, version: buildVersion(version), out: outputTable}
	a.Options = Options{Env: os.LookupEnv, Stderr: stderr, Version: a.version, Front: a.front}
	return a
}

// buildVersion returns version, else what Go recorded of the module and its revision.
func buildVersion(version string) string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	if v == "" || v == "(devel)" {
		return "devel"
	}
	return v
}
