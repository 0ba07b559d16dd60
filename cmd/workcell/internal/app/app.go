// Package app is the application below the command line: it opens state, engines, models, and sandboxes, runs
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

// Options configure an App: flags, the environment, and a function that shows progress.
type Options struct {
	RunFlags
	Env     environ.Lookup
	Stderr  io.Writer                    // for notices and warnings
	Front   func(stderr io.Writer) Front // shows the progress of a run; required for runs
	Version string
	Command string // path of the command, such as "workcell sandbox exec"

	StateDir     string // --state-dir
	State        string // --state
	Config       string // --config
	OCIRuntime   string
	Isolation    backend.Isolation // --isolation
	Mounts       []string
	Pool         []string // IMAGE=N of servers' --pool
	MaxSandboxes int      // maximum number of open sandboxes; 0 means no limit. Only servers have a flag for it.
	NoReaper     bool     // other processes resume its runs if it is killed
}

// RunFlags is what a run is started with besides its file and its input. Its journal keeps it for the command that
// resumes it.
type RunFlags struct {
	Backend      string   `json:"backend"`                 // empty when it was not given
	MapImage     []string `json:"map_image,omitempty"`     // FROM=TO
	AllowImage   []string `json:"allow_image,omitempty"`   // patterns
	Model        string   `json:"model,omitempty"`         // in place of what the agents' files name
	Prices       string   `json:"prices,omitempty"`        // file of model prices
	TraceContent bool     `json:"trace_content,omitempty"` // prompts, answers and the like in traces
	Agents       string   `json:"agents,omitempty"`        // directory of a workflow's agents
	Workspace    string   `json:"workspace,omitempty"`     // directory to copy into sandboxes
	Keep         bool     `json:"keep,omitempty"`          // leave the sandboxes
	Audit        string   `json:"audit,omitempty"`         // file that decisions and commands are recorded in
	AuditHash    bool     `json:"audit_hash,omitempty"`    // hashes in place of arguments
	Out          string   `json:"out,omitempty"`           // directory to put outputs into
	Force        bool     `json:"force,omitempty"`         // also over files there that are others
	Apply        bool     `json:"apply,omitempty"`         // apply the run's patch when it succeeded
	User         string   `json:"user,omitempty"`          // whom agents with session: user serve
	HostTools    string   `json:"host_tools,omitempty"`    // file of the servers whose tools code may call

	EgressAllowPrivate []string `json:"egress_allow_private,omitempty"` // networks

	PipIndex    string `json:"pip_index,omitempty"`    // in place of pypi.org
	NpmRegistry string `json:"npm_registry,omitempty"` // in place of npm's own

	Defaults *session.Defaults `json:"defaults,omitempty"` // what is configured; nil until that is read
}

// Front shows progress, and asks the user at the terminal.
type Front interface {
	Line(format string, args ...any) // prints a permanent line
	Kind(kind string)                // "workflow" or "agent"
	Event(ev workflow.Event)
	Tool(agent string, e tools.ToolEvent)
	Pull(ev backend.PullProgress)
	Approver() hosttools.ApproverFunc // nil without a terminal
	Close()
}

// App is the application. It reads the configuration and opens state, engines, and models. It is immutable and safe for
// concurrent use.
type App struct {
	opts   Options
	loaded func() (*config.Config, error)
}

// New returns an App. It opens nothing: the first use of the configuration reads it.
func New(o Options) *App {
	a := &App{opts: o}
	a.loaded = sync.OnceValues(a.load)
	return a
}

// withFlags returns an App with the flags of a run.
func (a *App) withFlags(flags RunFlags) *App {
	o := a.opts
	o.RunFlags = flags
	return New(o)
}

// Config returns the configuration by flags, environment, and configuration file.
func (a *App) Config() (*config.Config, error) { return a.loaded() }
