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
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/reaper"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
)

func main() {
	stdout := os.Stdout
	// Some libraries print to os.Stdout (dotprompt does, for YAML it cannot read). Data must stay pure, so whatever is
	// not written through run's own writer lands on standard error.
	os.Stdout = os.Stderr
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, stdout, os.Stderr))
}

// run is the whole command: it parses args, does the work and returns the exit code. Everything the command reads from
// its surroundings besides the environment comes in through the parameters.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := newApp(stdin, stdout, stderr)
	ctx, stop := watchSignals(ctx, stderr, func(code int) {
		a.restoreTerminal()
		os.Exit(code)
	})
	defer stop()

	root := newRootCmd(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return finish(ctx, stderr, err)
}

// newRootCmd builds the tree of commands.
func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:     "workcell",
		Version: buildVersion(),
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
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { a.command = cmd.CommandPath() }
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.stateDirFlag, "state-dir", "",
		"`DIR` for sandbox records, run journals, and results (default $XDG_STATE_HOME/workcell)")
	root.PersistentFlags().StringVar(&a.stateFlag, "state", "",
		"`URL` of a PostgreSQL database for records and journals (default $WORKCELL_STATE, or a file in --state-dir)")
	root.PersistentFlags().StringVar(&a.configFlag, "config", "",
		"configuration `FILE` (default $WORKCELL_CONFIG, or $XDG_CONFIG_HOME/workcell/workcell.yaml)")
	group(root,
		newRunCmd(a),
		newRunsCmd(a),
		newWorkerCmd(a),
		newAgentCmd(a),
		newValidateCmd(a),
		newSessionsCmd(a),
		newMCPCmd(a),
		newToolsCmd(a),
		newDevCmd(a),
		newGuestCmd(a),
		newDoctorCmd(a),
		newCacheCmd(a),
		newConfigCmd(a),
		newVersionCmd(a),
	)
	if reaper.Supported {
		root.AddCommand(newReaperCmd(a))
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

// app is one call of the command: its streams, what the flags say that several commands have, and what is open for it.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            environ.Lookup
	command        string // the command that runs, "workcell sessions exec"

	runFlags
	stateDirFlag string
	stateFlag    string
	configFlag   string
	ociRuntime   string
	mounts       []string
	loaded       *config.Config // a.config's; nil until it is needed
	out          format
	join         bool             // its sandboxes are those of several servers (session.Options.Join)
	noReaper     bool             // what it leaves when it is killed is for others to go on with
	maxSandboxes int              // that may be open at once; 0 is no bound. Only servers have a flag for it.
	pool         []string         // IMAGE=N of servers' --pool
	poolOf       *session.Request // what sandboxes of the pool are besides their image; nil for commands that keep none ready

	before patch.Stamps                                  // files in --out when the run began
	onKept func(ctx context.Context, runID string) error // workflow.Options.OnKept; nil for runs of this machine

	hosts    *hosttools.Registry          // tools of the host for agents' code; nil for none
	records  state.Records                // openManager's; nil when it does without
	engine   string                       // the id of that of openManager; empty without records, when doctor opens several at once
	terminal atomic.Pointer[hostTerminal] // the one that is not as it was found, nil for none
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{stdin: stdin, stdout: stdout, stderr: stderr, env: os.LookupEnv, out: outputTable}
}
