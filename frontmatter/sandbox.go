package frontmatter

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// Mode determines the tools of an agent. The zero value means ModeCompute.
type Mode string

// Modes.
const (
	ModeCompute Mode = "compute" // sandbox_run: a fresh sandbox for each call
	ModeCode    Mode = "code"    // one persistent sandbox
	ModeScript  Mode = "script"  // sandbox_run in one persistent sandbox
	// ModeExecutor uses a coding agent instead of the model, in one persistent sandbox.
	ModeExecutor Mode = "executor"
)

// Lasting reports whether the sandbox keeps its files between calls in this mode.
func (m Mode) Lasting() bool { return m == ModeCode || m == ModeScript || m == ModeExecutor }

// Runtime is the language of a sandbox. It selects the default image. The zero value means RuntimePython.
type Runtime string

// Runtimes.
const (
	RuntimePython Runtime = "python"
	RuntimeNode   Runtime = "node"
	RuntimeBash   Runtime = "bash"
)

// Runtimes returns all runtimes.
func Runtimes() []Runtime { return []Runtime{RuntimePython, RuntimeNode, RuntimeBash} }

// DefaultImage returns the default image of a runtime. For an unknown runtime, it returns "".
func DefaultImage(r Runtime) string {
	return map[Runtime]string{
		RuntimePython: "python:3.11-slim", RuntimeNode: "node:20-slim", RuntimeBash: "debian:bookworm-slim",
	}[cmp.Or(r, RuntimePython)]
}

// RootMode determines whether the image's file system is writable. The zero value means RootReadonly.
type RootMode string

// Root modes.
const (
	RootReadonly RootMode = "readonly"
	RootWritable RootMode = "writable"
)

// Session names with a special meaning.
const (
	SessionDefault  = "default"  // sandbox shared by all agents of a run
	SessionIsolated = "isolated" // sandbox used only by this agent, which cannot use others
	SessionUser     = "user"     // sandbox of the run's end user (session.WithUser); outlives runs
)

// KeepWorkspace is the value of `keep:` with which an end user's sandbox is removed after each run of the agent and
// recreated with the workspace for the next run.
const KeepWorkspace = "workspace"

// Limits of values in a file, in addition to backend.LimitTable.
const (
	minTimeout     = Duration(time.Second)
	maxIdle        = Duration(30 * 24 * time.Hour)
	maxExec        = Duration(bound.ExecTimeout)
	maxExecSeconds = int64(bound.ExecTimeout / time.Second)
	maxYieldMS     = int64(bound.ExecTimeout / time.Millisecond)
	maxIdleSeconds = int64(30 * 24 * time.Hour / time.Second)
	maxStdoutBytes = 1 << 20
	maxPorts       = 16
	maxCaches      = 16
)

// Sandbox is the value of `sandbox:`. The zero value is a Python sandbox in compute mode. In a file, a limit of zero is
// refused; in a Go value, a zero field means the default. Genkit's Dev UI shows the descriptions.
type Sandbox struct {
	Mode    Mode              `json:"mode,omitempty" jsonschema:"enum=compute,enum=code,enum=script,enum=executor" jsonschema_description:"compute, the default: one fresh sandbox per program; code: one sandbox that keeps its files between calls; script: programs in one such sandbox; executor: a coding agent in one"`
	Runtime Runtime           `json:"runtime,omitempty" jsonschema:"enum=python,enum=node,enum=bash" jsonschema_description:"language of the programs, which selects the default image; default: python"`
	Image   string            `json:"image,omitempty" jsonschema_description:"container image; default: the runtime's image"`
	Session string            `json:"session,omitempty" jsonschema_description:"modes code and script: default is shared by the agents of a run, isolated is used by this agent only, any other name is shared by the agents that use it"`
	Keep    string            `json:"keep,omitempty" jsonschema:"enum=workspace" jsonschema_description:"session: user: what is kept after a run of the agent; default: the whole sandbox"`
	YieldMS int64             `json:"yield_ms,omitempty" jsonschema_description:"code mode: milliseconds that sandbox_exec waits for a command if a call does not set them; default: 10000"`
	User    string            `json:"user,omitempty" yamlnode:"number" jsonschema_description:"uid or uid:gid, as numbers; default: 1000:1000"`
	Root    RootMode          `json:"root,omitempty" jsonschema:"enum=readonly,enum=writable" jsonschema_description:"whether the image's file system is writable; default: readonly"`
	Env     map[string]string `json:"env,omitzero" jsonschema_description:"environment variables of every command, in addition to the image's"`
	Limits  Limits            `json:"limits,omitzero" jsonschema_description:"limits of the sandbox and of its commands"`
	Network Network           `json:"network,omitzero" jsonschema_description:"network access of the sandbox; default: none"`
	// Isolation is the minimum isolation of the sandbox. If empty, there is no minimum.
	Isolation backend.Isolation `json:"isolation,omitempty" jsonschema:"enum=process,enum=container,enum=kernel,enum=vm" jsonschema_description:"minimum isolation of the sandbox; if the backend is weaker, opening fails"`
	// Services are the operator's HTTP services that the sandbox can reach without a network.
	Services []ServiceUse `json:"services,omitzero" jsonschema_description:"HTTP services of the operator that code can call at http://NAME.workcell, without having their credentials"`
	// PipPackages, NpmPackages and Setup are installed once for all sandboxes with the same settings.
	PipPackages []string `json:"pip_packages,omitzero" jsonschema_description:"Python packages to install, with or without versions, such as requests>=2.31; wheels only"`
	NpmPackages []string `json:"npm_packages,omitzero" jsonschema_description:"npm packages to install, with or without versions, such as lodash@^4; their scripts do not run"`
	Setup       *Setup   `json:"setup,omitempty" jsonschema_description:"shell lines that install files in /opt/workcell"`
	// Cache contains the names of host caches with files that programs would otherwise download. The operator fills them.
	Cache []string `json:"cache,omitzero" jsonschema_description:"names of the host's caches that programs read, such as pip, npm, go"`
	// Outputs are the patterns of workspace files to collect after a run of the agent. Modes code, script, and
	// executor.
	Outputs []string `json:"outputs,omitzero" jsonschema_description:"files below /workspace that the agent creates, as patterns; ? at the end: optional"`
	// Ports are the named ports of programs in the sandbox, for users of `workcell sandbox forward`. Code mode only.
	Ports map[string]int64 `json:"ports,omitzero" jsonschema_description:"code mode: names of the ports that programs in the sandbox listen on; sandbox_open returns them"`
	// Snapshots gives the agent the tools sandbox_snapshot and sandbox_rollback. Code mode only.
	Snapshots bool `json:"snapshots,omitempty" jsonschema_description:"code mode: whether the agent may create snapshots of /workspace and roll back to them"`
	// HostTools are the host tools that sandboxed code may call, or nil. Modes code, script, and executor.
	HostTools *HostTools `json:"host_tools,omitempty" jsonschema_description:"modes code, script, and executor: the host tools that sandboxed code may call"`
	// Executor is the coding agent that does the work. Mode executor only.
	Executor *Executor `json:"executor,omitempty" jsonschema_description:"mode executor: the coding agent that does the work"`

	// First-generation fields, only for compute mode.

	TimeoutSeconds int64 `json:"timeout_seconds,omitempty" jsonschema_description:"compute mode: older spelling of limits.exec_timeout, in seconds"`
	MaxStdoutBytes int64 `json:"max_stdout_bytes,omitempty" jsonschema_description:"compute mode: how much output a call returns, per stream"`
	AllowNetwork   *bool `json:"allow_network,omitempty" jsonschema_description:"compute mode: older spelling of network.enabled"`
}

// Limits are the limits of the sandbox. A zero field means the default. For engine limits, see [backend.LimitTable].
type Limits struct {
	CPUMillicores int64    `json:"cpu_millicores,omitempty" jsonschema_description:"thousandths of a processor"`
	MemoryMB      int64    `json:"memory_mb,omitempty" jsonschema_description:"memory in MiB"`
	PIDs          int64    `json:"pids,omitempty" jsonschema_description:"processes and threads"`
	IdleTimeout   Duration `json:"idle_timeout,omitempty" jsonschema:"type=string" jsonschema_description:"idle time after which the sandbox is closed, such as 15m"`
	ExecTimeout   Duration `json:"exec_timeout,omitempty" jsonschema:"type=string" jsonschema_description:"default timeout of a command, such as 90s"`
	WorkspaceMB   int64    `json:"workspace_mb,omitempty" jsonschema_description:"size of /workspace in MiB"`
	ShmMB         int64    `json:"shm_mb,omitempty" jsonschema_description:"size of /dev/shm in MiB"`

	// First-generation fields, which agent files may contain.

	TimeoutSeconds     int64 `json:"timeout_seconds,omitempty" jsonschema_description:"older spelling of idle_timeout, in seconds"`
	ExecTimeoutSeconds int64 `json:"exec_timeout_seconds,omitempty" jsonschema_description:"older spelling of exec_timeout, in seconds"`
}

// Duration is a duration that is written as 90s, 15m, or 1h30m in files and JSON.
type Duration time.Duration

func seconds(n int64) Duration { return Duration(time.Duration(n) * time.Second) }

// String returns the shortest text of d, for example 15m instead of 15m0s.
func (d Duration) String() string {
	text := time.Duration(d).String()
	for _, zero := range []struct{ after, unit string }{{"m", "0s"}, {"h", "0m"}} {
		if rest, ok := strings.CutSuffix(text, zero.unit); ok && strings.HasSuffix(rest, zero.after) {
			text = rest
		}
	}
	return text
}

// MarshalText returns d.String().
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses text like time.ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}

// limitField is a field of Limits for a row of backend.LimitTable.
type limitField struct {
	name  string
	value *int64
}

// fields returns the fields for the rows of backend.LimitTable, with their names in files.
func (l *Limits) fields() []limitField {
	return []limitField{
		{"cpu_millicores", &l.CPUMillicores},
		{"memory_mb", &l.MemoryMB},
		{"pids", &l.PIDs},
		{"workspace_mb", &l.WorkspaceMB},
		{"shm_mb", &l.ShmMB},
	}
}

// Backend returns the limits that an engine enforces.
func (l Limits) Backend() backend.Limits {
	var out backend.Limits
	for _, f := range l.fields() {
		row := backend.LimitNamed(f.name)
		*row.Of(&out) = *f.value * row.Scale
	}
	return out
}

// LimitsOf returns the limits that an engine enforces, in the form used in files.
func LimitsOf(enforced backend.Limits) Limits {
	var l Limits
	for _, f := range l.fields() {
		row := backend.LimitNamed(f.name)
		*f.value = *row.Of(&enforced) / row.Scale
	}
	return l
}

// Network is the network access of the sandbox. The zero value uses the workflow's setting, or no network without a
// workflow.
type Network struct {
	// Enabled is nil if not set. False disables the network even in a workflow with a network.
	Enabled *bool `json:"enabled,omitempty" jsonschema_description:"true for a network without access to the host and its neighbours; false for none, even if the workflow has one"`
	// Allow lists the hosts a sandbox without a network can reach through the host process. Deny lists exceptions.
	Allow []string `json:"allow,omitzero" jsonschema_description:"hosts that can be reached without a network: names, *.name, name:port, or presets such as registry:pypi"`
	Deny  []string `json:"deny,omitzero" jsonschema_description:"exceptions to allow"`
}

// Hosts lists hosts sandboxed code can connect to through the host process. It is the same type as sandbox.Egress.
type Hosts = rules.Hosts

// ServiceUse is an operator's HTTP service for sandboxed code. It is the same type as sandbox.ServiceUse.
type ServiceUse = rules.ServiceUse

// Environment is the software to install in a sandbox. It is the same type as session.Environment.
type Environment = rules.Environment

// Hosts returns the hosts for a sandbox without a network.
func (n Network) Hosts() Hosts { return Hosts{Allow: n.Allow, Deny: n.Deny} }

// Allowed reports whether the sandbox has a network.
func (n Network) Allowed() bool { return n.Enabled != nil && *n.Enabled }

// Setup is the value of `setup:`.
type Setup struct {
	Run []string `json:"run,omitzero" jsonschema_description:"shell lines, which run once"`
	// Network lists the hosts that the setup commands, pip, and npm can reach in addition to the package registries.
	Network Hosts `json:"network,omitzero" jsonschema_description:"hosts that the installation can reach in addition to package registries"`
}

// Environment returns the software to install.
func (s Sandbox) Environment() Environment {
	e := Environment{Pip: s.PipPackages, Npm: s.NpmPackages}
	if s.Setup != nil {
		e.Setup, e.Network = s.Setup.Run, s.Setup.Network
	}
	return e
}

// WithDefaults sets the default mode, runtime, image, and session. It copies first-generation fields to their
// replacements, and does not clear them.
func (s Sandbox) WithDefaults() Sandbox {
	s.Mode = cmp.Or(s.Mode, ModeCompute)
	s.Runtime = cmp.Or(s.Runtime, RuntimePython)
	s.Image = cmp.Or(s.Image, DefaultImage(s.Runtime))
	s.Session = cmp.Or(s.Session, SessionDefault)
	s.Root = cmp.Or(s.Root, RootReadonly)
	if s.AllowNetwork != nil {
		s.Network.Enabled = s.AllowNetwork
	}
	l := &s.Limits
	l.IdleTimeout = cmp.Or(l.IdleTimeout, seconds(l.TimeoutSeconds))
	l.ExecTimeout = cmp.Or(l.ExecTimeout, seconds(l.ExecTimeoutSeconds), seconds(s.TimeoutSeconds))
	return s
}

// AsRoot reports whether the sandbox runs as user root or group root.
func (s Sandbox) AsRoot() bool {
	uid, gid, both := strings.Cut(s.User, ":")
	isZero := func(id string) bool { return id != "" && strings.Trim(id, "0") == "" }
	return isZero(uid) || both && isZero(gid)
}

var (
	userPattern    = regexp.MustCompile(`^[0-9]{1,10}(:[0-9]{1,10})?$`)
	sessionPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$`)
	cachePattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	portPattern    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	envPattern     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Problems returns all problems of s. If s is valid, it returns nothing.
func (s Sandbox) Problems() Errors {
	var c checker
	c.oneOf("mode", string(s.Mode), string(ModeCompute), string(ModeCode), string(ModeScript), string(ModeExecutor))
	c.oneOf("runtime", string(s.Runtime), string(RuntimePython), string(RuntimeNode), string(RuntimeBash))
	c.oneOf("root", string(s.Root), string(RootReadonly), string(RootWritable))
	c.oneOf("isolation", string(s.Isolation), string(backend.IsolationProcess), string(backend.IsolationContainer),
		string(backend.IsolationKernel), string(backend.IsolationVM))
	c.names(s)
	c.env(s.Env)
	c.limits(s.Limits)
	c.network(s)
	c.services(s)
	within(&c, "yield_ms", s.YieldMS, 1, maxYieldMS)
	within(&c, "timeout_seconds", s.TimeoutSeconds, 1, maxExecSeconds)
	within(&c, "max_stdout_bytes", s.MaxStdoutBytes, 1, maxStdoutBytes)
	c.AddBelow("", s.Environment().Problems())
	c.caches(s)
	c.AddBelow("", rules.Globs(s.Outputs).Problems())
	c.ports(s)
	c.executor(s)
	c.modes(s)
	if s.HostTools != nil { // after a wrong mode, which has the same position
		c.AddBelow("host_tools.", s.HostTools.Problems())
	}
	return c.Errors
}

type checker struct{ Errors }

func (c *checker) oneOf(field, value string, known ...string) {
	if value == "" || slices.Contains(known, value) {
		return
	}
	c.Add(field, suggest.Hint(value, known), "unknown %s %q", field, sanitize.Clip(value))
}

// within reports a number or a duration outside a range. Zero means the default.
func within[T int64 | Duration](c *checker, field string, value, low, high T) {
	if value == 0 || (value >= low && value <= high) {
		return
	}
	c.Add(field, "", "%s must be %v to %v, not %v", field, low, high, value)
}

func (c *checker) names(s Sandbox) {
	if strings.ContainsFunc(s.Image, func(r rune) bool { return r <= ' ' || r == 0x7f }) || len(s.Image) > 512 {
		c.Add("image", "", "%q is not an image reference", sanitize.Clip(s.Image))
	} else if s.Image != "" {
		if _, err := backend.NormalizeImage(s.Image); err != nil {
			c.Add("image", "", "%v", err)
		}
	}
	if s.User != "" && !userPattern.MatchString(s.User) {
		c.Add("user", `use numbers, for example "1000:1000"`, "%q is not a user ID", sanitize.Clip(s.User))
	}
	for id := range strings.SplitSeq(s.User, ":") {
		if n, err := strconv.ParseInt(id, 10, 64); err == nil && n > math.MaxInt32 { // engines store IDs in 32 bits
			c.Add("user", "", "%s is not a user ID, the largest is %d", sanitize.Clip(id), math.MaxInt32)
		}
	}
	if s.Session != "" && !sessionPattern.MatchString(s.Session) {
		c.Add("session", "use at most 63 letters, digits, '.', '_', or '-'", "%q is not a session name",
			sanitize.Clip(s.Session))
	}
	if rules.IsIsolated(s.Session) {
		c.Add("session", "write session: isolated, or another name", "%q is reserved for isolated sandboxes",
			sanitize.Clip(s.Session))
	}
}

func (c *checker) env(env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envPattern.MatchString(name) {
			c.Add("env."+name, "", "%q is not the name of an environment variable", sanitize.Clip(name))
		}
		if strings.ContainsRune(env[name], 0) {
			c.Add("env."+name, "", "the value of %q contains a NUL byte", sanitize.Clip(name))
		}
	}
}

func (c *checker) limits(l Limits) {
	for _, f := range l.fields() {
		least, most := backend.LimitNamed(f.name).Bounds()
		within(c, "limits."+f.name, *f.value, least, most)
	}
	within(c, "limits.timeout_seconds", l.TimeoutSeconds, 1, maxIdleSeconds)
	within(c, "limits.exec_timeout_seconds", l.ExecTimeoutSeconds, 1, maxExecSeconds)
	within(c, "limits.idle_timeout", l.IdleTimeout, minTimeout, maxIdle)
	within(c, "limits.exec_timeout", l.ExecTimeout, minTimeout, maxExec)
}

func (c *checker) network(s Sandbox) {
	c.AddBelow("network.", s.Network.Hosts().Problems())
	if s.Network.Allow != nil && s.WithDefaults().Network.Enabled != nil {
		c.Add("network.allow", "remove one of the two",
			"network.allow requires a sandbox without a network and cannot be used with network.enabled")
	}
}

func (c *checker) services(s Sandbox) {
	c.AddBelow("", Hosts{Services: s.Services}.Problems())
	if len(s.Services) > 0 && s.WithDefaults().Network.Allowed() {
		c.Add("services", "remove one of the two",
			"services require a sandbox without a network and cannot be used with network.enabled")
	}
}

func (c *checker) caches(s Sandbox) {
	for i, name := range s.Cache {
		if !cachePattern.MatchString(name) {
			c.Add(fmt.Sprintf("cache[%d]", i), "for example pip, npm, or go; run `workcell cache ls` to list caches",
				"%q is not the name of a cache", sanitize.Clip(name))
		}
	}
	if len(s.Cache) > maxCaches {
		c.Add("cache", "", "%d caches, the limit is %d", len(s.Cache), maxCaches)
	}
}

func (c *checker) ports(s Sandbox) {
	for _, name := range slices.Sorted(maps.Keys(s.Ports)) {
		if !portPattern.MatchString(name) {
			c.Add("ports."+name, "use at most 32 lower case letters, digits, or '-'", "%q is not the name of a port",
				sanitize.Clip(name))
		}
		if n := s.Ports[name]; n < 1 || n > math.MaxUint16 {
			c.Add("ports."+name, "", "ports.%s must be 1 to %d, not %d", sanitize.Clip(name), math.MaxUint16, n)
		}
	}
	if len(s.Ports) > maxPorts {
		c.Add("ports", "", "%d ports, the limit is %d", len(s.Ports), maxPorts)
	}
}

// modes reports fields that require another mode or session.
func (c *checker) modes(s Sandbox) {
	c.oneOf("keep", s.Keep, KeepWorkspace)
	compute, lasting := s.Mode == ModeCompute || s.Mode == "", s.Mode.Lasting()
	const (
		orCode = "add mode: code, or remove it"
		keeps  = " mode code, script, or executor; in compute mode every call has a fresh sandbox"
		waits  = " every call waits for the command"
	)
	for _, f := range []struct {
		refused             bool
		field, hint, reason string
	}{
		{s.Outputs != nil && !lasting, "outputs", orCode, "outputs require" + keeps},
		{s.Ports != nil && s.Mode != ModeCode, "ports", orCode, "ports require code mode, whose sandbox_open returns them"},
		{s.Snapshots && s.Mode != ModeCode, "snapshots", orCode,
			"snapshots require code mode, whose sandbox keeps its files"},
		{s.HostTools != nil && compute, "host_tools", "add mode: script, or remove it", "host_tools require" + keeps},
		{s.Keep != "" && s.Session != SessionUser, "keep", "add session: user, or remove it",
			"keep requires session: user; other sandboxes end with their run"},
		{s.TimeoutSeconds != 0 && lasting, "timeout_seconds", "use limits.exec_timeout",
			"timeout_seconds requires compute mode"},
		{s.MaxStdoutBytes != 0 && lasting, "max_stdout_bytes", "remove it", "max_stdout_bytes requires compute mode"},
		{s.AllowNetwork != nil && lasting, "allow_network", "use network.enabled", "allow_network requires compute mode"},
		{s.YieldMS != 0 && compute, "yield_ms", orCode, "yield_ms requires code mode; in compute mode" + waits},
		{s.YieldMS != 0 && lasting && s.Mode != ModeCode, "yield_ms", orCode,
			"yield_ms requires code mode; in mode " + string(s.Mode) + waits},
		{s.Runtime != "" && s.Mode == ModeExecutor, "runtime", "remove it, or set image",
			"runtime cannot be used in mode executor, which uses the coding agent's image"},
		{s.Session != "" && compute, "session", orCode, "session requires" + keeps},
	} {
		if f.refused {
			c.Add(f.field, f.hint, "%s", f.reason)
		}
	}
}
