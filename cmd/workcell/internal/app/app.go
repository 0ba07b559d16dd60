// Package app is the application without the command line. It opens state, engines, models, and sandboxes, runs
// workflows, and collects their results.
package app

import (
	"io"
	"sync"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// Options configures an App with flags, the environment, and a progress display.
type Options struct {
	runFlags
	Env     environ.Lookup
	Stderr  io.Writer                    // for notices and warnings
	Front   func(stderr io.Writer) Front // creates the progress display of a run; required for runs
	Version string
	Command string // command path, for example "workcell sandbox exec"

	StateDir     string // --state-dir
	State        string // --state
	Config       string // --config
	OCIRuntime   string
	Isolation    backend.Isolation // --isolation
	Mounts       []string
	Pool         []string // IMAGE=N, from the servers' --pool flag
	MaxSandboxes int      // maximum number of open sandboxes; 0 means no limit. Only servers have this flag.
	NoReaper     bool     // if it is killed, other processes resume the runs
}

// runFlags are the flags of a run, except the file and the input. The journal stores them for the command resuming
// the run.
type runFlags struct {
	Backend      string   `json:"backend"`                 // empty if not set
	MapImage     []string `json:"map_image,omitempty"`     // FROM=TO, for example python:3=mirror.example/python:3
	AllowImage   []string `json:"allow_image,omitempty"`   // patterns, for example python:3.*
	Model        string   `json:"model,omitempty"`         // overrides the models in the agents' files
	Prices       string   `json:"prices,omitempty"`        // file with model prices
	TraceContent bool     `json:"trace_content,omitempty"` // include contents such as prompts and answers in traces
	Agents       string   `json:"agents,omitempty"`        // directory of a workflow's agents
	Workspace    string   `json:"workspace,omitempty"`     // directory to copy into sandboxes
	Keep         bool     `json:"keep,omitempty"`          // do not remove the sandboxes
	Audit        string   `json:"audit,omitempty"`         // audit log file for decisions and commands
	AuditHash    bool     `json:"audit_hash,omitempty"`    // record hashes instead of arguments
	Out          string   `json:"out,omitempty"`           // directory for outputs
	Force        bool     `json:"force,omitempty"`         // overwrite differing files
	Apply        bool     `json:"apply,omitempty"`         // apply the run's patch if it succeeds
	User         string   `json:"user,omitempty"`          // end user for agents with session: user
	HostTools    string   `json:"host_tools,omitempty"`    // file with the servers of host tools

	EgressAllowPrivate []string `json:"egress_allow_private,omitempty"` // networks, for example 10.0.0.0/8

	PipIndex    string `json:"pip_index,omitempty"`    // replaces pypi.org
	NpmRegistry string `json:"npm_registry,omitempty"` // replaces npm's default registry

	Defaults *session.Defaults `json:"defaults,omitempty"` // configured defaults; nil until the configuration is read
}

// Front displays progress and asks the user at the terminal.
type Front interface {
	Line(format string, args ...any) // prints a permanent line
	Kind(kind string)                // "workflow" or "agent"
	Event(ev workflow.Event)
	Tool(agent string, e tools.ToolEvent)
	Pull(ev backend.PullProgress)
	Approver() hosttools.Approver // nil without a terminal
	Close()
}

// App is the application. It reads the configuration and opens state, engines, and models. It is immutable and safe for
// concurrent use.
type App struct {
	opts   Options
	loaded func() (*config.Config, error)
}

// New returns an App. It opens nothing. The configuration is read on first use.
func New(o Options) *App {
	a := &App{opts: o}
	a.loaded = sync.OnceValues(a.load)
	return a
}

// withFlags returns an App with the flags of a run.
func (a *App) withFlags(flags runFlags) *App {
	o := a.opts
	o.runFlags = flags
	return New(o)
}

// Config returns the configuration from flags, environment, and configuration file.
func (a *App) Config() (*config.Config, error) { return a.loaded() }
