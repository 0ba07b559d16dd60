package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/config"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
)

// doctorTimeout bounds each question to an engine, so that doctor answers also when the engine hangs.
const doctorTimeout = 5 * time.Second

// verdict returns how a check ended.
type verdict string

const (
	verdictOK   verdict = "ok"
	verdictWarn verdict = "warn" // works, less than it could
	verdictFail verdict = "fail" // no sandbox can run on this backend
)

// check is one finding.
type check struct {
	Name    string  `json:"name"`
	Verdict verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Fix     string  `json:"fix,omitempty"`
}

// report is the output of doctor.
type report struct {
	Usable   bool            `json:"usable"`           // a sandbox can run on the backend that commands would take
	Backend  string          `json:"backend"`          // what was asked for
	Chosen   string          `json:"chosen,omitempty"` // what commands would take; empty when auto finds nothing
	Version  string          `json:"version"`
	Guest    string          `json:"guest"`
	Backends []*engineReport `json:"backends"`
}

// engineReport is what was found out about one backend.
type engineReport struct {
	Name         string                `json:"name"`
	Usable       bool                  `json:"usable"`
	Engine       *backend.EngineInfo   `json:"engine,omitempty"`
	Capabilities *backend.Capabilities `json:"capabilities,omitempty"`
	Checks       []check               `json:"checks"`

	there bool // the engine answered
	tried bool // a sandbox was opened, or failed to
}

func (r *engineReport) add(name string, v verdict, detail, fix string) {
	r.Checks = append(r.Checks, check{name, v, detail, fix})
}

func newDoctorCmd(a *app) *cobra.Command {
	image, network := "", false
	cmd := a.verb(engineFlags|imageFlags|outputFlags, &cobra.Command{
		Use:     "doctor",
		Example: "  workcell doctor\n  workcell doctor --backend local -o json",
		Short:   "Check the engines and what they can enforce",
		Long: `Check which engines answer, what they can enforce and that a sandbox really opens, and say how to mend what is
missing: for each backend, or for the one that --backend names. Exits with 5 when no sandbox can run on the backend that
commands would take. It pulls nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.diagnose(cmd.Context(), image, network)
			if err != nil {
				return err
			}
			if err := a.print(r, r.table); err != nil {
				return err
			}
			if !r.Usable {
				return exitWith(exitUnavailable)
			}
			return nil
		},
	})
	cmd.Flags().StringVar(&image, "image", "", "image to open a sandbox from (default the first that is there)")
	cmd.Flags().BoolVar(&network, "network", false, "test with pods whether a Kubernetes cluster enforces NetworkPolicies")
	return cmd
}

// diagnose looks at one backend, or at all of them at the same time: one that hangs does not hold the others up.
func (a *app) diagnose(ctx context.Context, image string, network bool) (*report, error) {
	c, err := a.config()
	if err != nil {
		return nil, err
	}
	r := &report{Backend: c.Backend(), Version: buildVersion(), Guest: embed.Version()}
	drivers := a.engines().All()
	if r.Backend != engines.Auto {
		d, err := a.engines().Named(r.Backend)
		if err != nil {
			return nil, err
		}
		drivers = []engines.Engine{d}
	}
	if network && !slices.ContainsFunc(drivers, func(d engines.Engine) bool { return d.TryNetwork != nil }) {
		return nil, usageError(errors.New("--network tests a Kubernetes cluster"), "add --backend kubernetes")
	}
	r.Backends = make([]*engineReport, len(drivers))
	var looking sync.WaitGroup
	for i, d := range drivers {
		r.Backends[i] = &engineReport{Name: d.Name, Checks: []check{}}
		looking.Go(func() { a.examine(ctx, r.Backends[i], d, image, network) })
	}
	looking.Wait()
	r.choose()
	return r, nil
}

// choose sets which backend commands would take, by the rule of auto.
func (r *report) choose() {
	for _, e := range r.Backends {
		if r.Backend == e.Name || e.there && (e.Name == engines.Docker || e.Name == engines.Containerd) {
			r.Chosen, r.Usable = e.Name, e.Usable
			return
		}
	}
}

// table draws the report for people.
func (r *report) table(w io.Writer) error {
	fmt.Fprintf(w, "workcell %s, guest %s\n", r.Version, r.Guest)
	for _, e := range r.Backends {
		title := e.Name
		if r.Backend == engines.Auto && e.Name == r.Chosen {
			title += " (what --backend auto takes)"
		}
		fmt.Fprintf(w, "\n%s\n", title)
		if err := e.table(w); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", r.summary())
	return err
}

func (r *engineReport) table(w io.Writer) error {
	var rows [][]string
	for _, c := range r.Checks {
		rows = append(rows, []string{string(c.Verdict), c.Name, c.Detail})
		if c.Fix != "" {
			rows = append(rows, []string{" ", " ", "→ " + c.Fix})
		}
	}
	return writeTable(w, []string{"STATE", "CHECK", "FINDING"}, rows)
}

// summary is the report in one line.
func (r *report) summary() string {
	var usable []string
	tried := false
	for _, e := range r.Backends {
		if e.Usable {
			usable = append(usable, e.Name)
			tried = tried || e.tried && e.Name == r.Chosen
		}
	}
	switch {
	case r.Usable && !tried:
		return "the engine is fit; no sandbox was tried"
	case r.Usable:
		return "sandboxes can run: " + strings.Join(usable, ", ")
	case len(usable) > 0:
		return fmt.Sprintf("no sandbox can run with --backend %s; these would do: --backend %s", cmp.Or(r.Chosen, r.Backend),
			strings.Join(usable, ", --backend "))
	}
	return "no sandbox can run here"
}

// examine runs the checks of one backend in order; each needs the one before it.
func (a *app) examine(ctx context.Context, r *engineReport, d engines.Engine, image string, network bool) {
	m, done, err := a.openManager(ctx, d.Name, stateUnused)
	if err != nil {
		r.absent(ctx, d, err)
		return
	}
	defer done()
	defer m.Close(context.WithoutCancel(ctx)) // removes the trial sandbox should it still be there; nothing else is open
	if !r.engine(ctx, m.Backend(), d) {
		return
	}
	switch d.Name {
	case engines.Docker: // which says itself what filter it has
	case engines.Kubernetes:
		r.add("seccomp", verdictOK, "that of the container runtime, on every sandbox", "")
	default:
		r.add("seccomp", verdictOK, "Workcell's own filter on every sandbox", "")
	}
	if d.Name == engines.Local {
		r.add("wall", verdictWarn, "thinner than a container's: what this machine has in its system folders can be read and run inside, "+
			"and there is no daemon to watch over it", "docs/local.md compares the two; docker and containerd are the stronger choice")
	}
	r.enforcement(m.Backend().Capabilities())
	found := r.images(ctx, m.Backend(), a.loaded, image)
	r.agents(ctx, m, a)
	if network && d.TryNetwork != nil {
		r.network(ctx, d, found, a.loaded)
	}
	r.trial(ctx, m, found)
	r.ownKernel(ctx, m, found)
	r.Usable = !slices.ContainsFunc(r.Checks, func(c check) bool { return c.Verdict == verdictFail })
}

// absent reports that a backend cannot be used, why, and what to do.
func (r *engineReport) absent(ctx context.Context, d engines.Engine, err error) {
	_, hint := classify(err)
	if errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrUnsupported) {
		hint = d.Fix(err)
	}
	text := sanitize.Line(err.Error())
	if errors.Is(err, backend.ErrUnavailable) {
		if words := d.Absent(ctx); words != "" {
			text = words
		}
	}
	r.add("engine", verdictFail, text, hint)
}

// engine asks the engine who it is.
func (r *engineReport) engine(ctx context.Context, b backend.SandboxBackend, d engines.Engine) bool {
	r.there = true
	p, ok := b.(backend.Pinger)
	if !ok {
		r.add("engine", verdictOK, "answers", "")
		return true
	}
	bounded, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	info, err := p.Ping(bounded)
	if err != nil {
		r.absent(ctx, d, err)
		return false
	}
	r.Engine = &info
	r.add("engine", verdictOK, strings.TrimSpace(info.Name+" "+info.Version), "")
	facts := [][2]string{{"api", info.API}}
	if info.Kernel != "" {
		facts = append(facts, [2]string{"machine", strings.Trim(info.OS+"/"+info.Arch, "/") + ", kernel " + info.Kernel})
	}
	if info.Cgroup != "" {
		facts = append(facts, [2]string{"cgroup", "version " + info.Cgroup})
	}
	facts = append(facts, [2]string{"OCI runtimes", strings.Join(info.OCIRuntimes, ", ")})
	for _, key := range slices.Sorted(maps.Keys(info.Details)) {
		facts = append(facts, [2]string{strings.ReplaceAll(key, "_", " "), info.Details[key]})
	}
	for _, f := range facts {
		if f[1] != "" {
			r.add(f[0], verdictOK, f[1], "")
		}
	}
	return true
}

// enforcement reports what limits hold on this engine.
func (r *engineReport) enforcement(c backend.Capabilities) {
	r.Capabilities = &c
	workspace := "size of /workspace, watched: commands end when it is passed, and it is passed by what they write within a second or so"
	switch c.Workspace {
	case backend.WorkspaceSized:
		workspace = "size of /workspace, by a file system of its own, whose space is set aside where the disk can do that"
	case backend.WorkspaceMemory:
		workspace = "size of /workspace, which lies in memory"
	}
	root := "root: writable, watched: commands end when the workspace_mb that was asked for, or else 4 GiB, is passed outside of /workspace"
	if c.RootEnforcement == backend.WorkspaceMemory {
		root = "root: writable, which lies in memory"
	}
	cgroups := "give the engine this cgroup controller; as root on a rootless engine: systemd delegation (see the engine's documentation)"
	if r.Name == engines.Kubernetes {
		cgroups = "the kubelet's podPidsLimit bounds every pod of a node; agents that ask for limits.pids are refused"
	}
	if r.Name == engines.Local {
		cgroups = "run as root, or as an ordinary user with systemd-run --user --scope workcell …: see docs/local.md"
	}
	for _, l := range []struct {
		name, what string
		ok         bool
		fix        string
	}{
		{"memory limit", "memory and swap together", c.Memory, cgroups},
		{"cpu limit", "thousandths of a core", c.CPU, cgroups},
		{"process limit", "processes and threads", c.PIDs, cgroups},
		{"workspace size", workspace, c.Workspace != "", "agents that ask for limits.workspace_mb are refused; leave it out"},
		{"writable root", root, c.WritableRoot, ""},
		{"stop and start", "files survive a stop", c.Persistent, ""},
	} {
		if l.ok {
			r.add(l.name, verdictOK, "enforced: "+l.what, "")
		} else {
			r.add(l.name, verdictWarn, "cannot be enforced; asking for it is an error", l.fix)
		}
	}
	modes := make([]string, len(c.Networks))
	for i, n := range c.Networks {
		modes[i] = string(n)
	}
	v, fix := verdictOK, ""
	if !slices.Contains(c.Networks, backend.NetworkBridge) {
		v, fix = verdictWarn, "agents with network: {enabled: true} are refused on this engine"
	}
	r.add("networks", v, strings.Join(modes, ", "), fix)
}

// images reports which of the default images are present, and returns the first.
func (r *engineReport) images(ctx context.Context, b backend.SandboxBackend, conf *config.Config, chosen string) string {
	if _, ok := b.(backend.ImageChecker); !ok {
		return chosen
	}
	if r.Name == engines.Kubernetes { // images are its nodes'
		return cmp.Or(chosen, conf.Image(string(frontmatter.Runtimes()[0])))
	}
	var refs []string
	if chosen != "" {
		refs = []string{chosen}
	}
	for _, rt := range frontmatter.Runtimes() {
		ref := frontmatter.DefaultImage(rt)
		if r.Name != engines.Local {
			ref = conf.Image(string(rt))
		}
		refs = append(refs, ref)
	}
	present, absent := "present", "not present; pulled when first used"
	if r.Name == engines.Local {
		present, absent = "means this machine's own programs", "this machine has no such program"
	}
	first := chosen
	for _, ref := range refs {
		id, err := imageID(ctx, b, ref)
		switch {
		case err != nil:
			r.add("image "+ref, verdictWarn, sanitize.Line(err.Error()), "")
		case id != "":
			r.add("image "+ref, verdictOK, present, "")
			first = cmp.Or(first, ref)
		default:
			r.add("image "+ref, verdictWarn, absent, r.fetch(ref))
		}
	}
	return first
}

// imageID returns the id of an image, empty when it is not there.
func imageID(ctx context.Context, b backend.SandboxBackend, ref string) (string, error) {
	checker, ok := b.(backend.ImageChecker)
	if !ok {
		return "", fmt.Errorf("whether there is an image %s: %w", ref, backend.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	id, err := checker.ImageID(ctx, ref)
	if errors.Is(err, backend.ErrUnsupported) { // it is found out by who uses it
		return "", nil
	}
	return id, err
}

// fetch returns how to get an image that is not there.
func (r *engineReport) fetch(ref string) string {
	switch r.Name {
	case engines.Local:
		return "install it, as with apt-get install python3 or nodejs"
	case engines.Containerd:
		if full, err := backend.NormalizeImage(ref); err == nil {
			ref = full
		}
		return "ctr --namespace workcell images pull " + ref
	}
	return "docker pull " + ref
}

// network tests whether an engine isolates a sandbox without a network.
func (r *engineReport) network(ctx context.Context, d engines.Engine, image string, conf *config.Config) {
	const name = "network policy"
	ctx, cancel := context.WithTimeout(ctx, 24*doctorTimeout)
	defer cancel()
	closed, err := d.TryNetwork(ctx, image)
	if err != nil {
		r.add(name, verdictFail, sanitize.Line(err.Error()), "")
		return
	}
	fix := ""
	if conf.Kubernetes().NetworkPolicy == "" {
		fix = "set kubernetes.network_policy: enforced in workcell.yaml"
	}
	r.add(name, verdictOK, "enforced: a sandbox without a network does not reach "+strings.Join(closed, ", "), fix)
}

// trial opens a sandbox and closes it.
func (r *engineReport) trial(ctx context.Context, m *session.Manager, image string) {
	const name = "sandbox"
	if image == "" {
		r.add(name, verdictWarn, "not tried: no image is present", "pull one of the images above, or pass --image")
		return
	}
	r.tried = true
	ctx, cancel := context.WithTimeout(ctx, 6*doctorTimeout)
	defer cancel()
	began := time.Now()
	pull := backend.PullNever
	if r.Name == engines.Kubernetes {
		pull = backend.PullMissing
	}
	s, _, err := m.Open(ctx, session.UserKey("doctor-"+session.NewID()), session.Request{Image: image, Pull: pull})
	if err != nil {
		_, hint := classify(err)
		r.add(name, verdictFail, "does not open: "+sanitize.Line(err.Error()), hint)
		return
	}
	took := time.Since(began).Round(time.Millisecond)
	info := s.Info()
	r.hostTools(ctx, s)
	r.snapshots(ctx, s)
	if r.Name == engines.Local {
		for _, name := range frontmatter.ExecutorAgents() {
			r.agentVersion(ctx, s, name, "this machine")
		}
	}
	if err := s.Close(ctx); err != nil {
		r.add(name, verdictFail, "does not close: "+sanitize.Line(err.Error()), "")
		return
	}
	r.add(name, verdictOK, fmt.Sprintf("opened from %s in %s, as %s, with %s",
		image, took, info.User, strings.Join(info.Programs, ", ")), "")
}

// snapshots says how snapshots of a sandbox are made.
func (r *engineReport) snapshots(ctx context.Context, s *session.Session) {
	const name = "snapshots"
	switch _, mechanism, err := s.Snapshots(ctx); {
	case err != nil:
		r.add(name, verdictOK, "none: "+sanitize.Line(err.Error()), "")
	case mechanism == backend.SnapshotReflink:
		r.add(name, verdictOK, "reflink: they share blocks with the workspace", "")
	default:
		r.add(name, verdictOK, "copy: the file system cannot share blocks, so the first one copies the workspace", "for milliseconds, see docs/snapshots.md#a-disk-for-snapshots")
	}
}

// ownKernels returns the names under which OCI runtimes are usually configured that give a sandbox a kernel of its own.
func ownKernels() []string {
	return []string{"runsc", "kata", "kata-runtime", "io.containerd.runsc.v1", "io.containerd.kata.v2"}
}

// ownKernel reports whether sandboxes can have a kernel of their own, which a sandbox shows.
func (r *engineReport) ownKernel(ctx context.Context, m *session.Manager, image string) {
	const name = "own kernel"
	if r.Engine == nil || r.Name == engines.Local {
		return
	}
	at := slices.IndexFunc(r.Engine.OCIRuntimes, func(have string) bool { return slices.Contains(ownKernels(), have) })
	switch {
	case at < 0:
		r.add(name, verdictOK, "none: sandboxes share the machine's kernel", "for code that must not: gVisor or Kata, see docs/gvisor.md")
		return
	case image == "":
		r.add(name, verdictOK, "not tried: --oci-runtime "+r.Engine.OCIRuntimes[at], "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 6*doctorTimeout)
	defer cancel()
	runtime := r.Engine.OCIRuntimes[at]
	kernel, err := kernelUnder(ctx, m, session.Request{Image: image, Pull: backend.PullNever, OCIRuntime: runtime})
	switch {
	case err != nil:
		r.add(name, verdictWarn, "no sandbox opens with --oci-runtime "+runtime+": "+sanitize.Line(err.Error()), "see docs/gvisor.md; "+kvm())
	case kernel == r.Engine.Kernel:
		r.add(name, verdictWarn, "--oci-runtime "+runtime+" runs sandboxes on the machine's kernel, "+sanitize.Line(kernel), "")
	default:
		r.add(name, verdictOK, fmt.Sprintf("--oci-runtime %s: kernel %s; %s", runtime, sanitize.Line(kernel), kvm()), "")
	}
}

// kernelUnder returns the kernel that a sandbox sees.
func kernelUnder(ctx context.Context, m *session.Manager, req session.Request) (kernel string, err error) {
	s, _, err := m.Open(ctx, session.UserKey("doctor-"+session.NewID()), req)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
	res, err := s.Exec(ctx, session.ExecRequest{Argv: []string{"cat", "/proc/sys/kernel/osrelease"}})
	return strings.TrimSpace(string(res.Stdout.Bytes())), err
}

// kvm says whether this machine can run virtual machines, which gVisor's platform kvm and Kata need.
func kvm() string {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "without KVM here, gVisor's platform is systrap, and Kata does not run"
	}
	f.Close() //nolint:errcheck // nothing was written
	return "/dev/kvm can be opened here"
}

// hostTools reports whether a command of the trial sandbox reaches this process, as code that calls tools of the host does.
func (r *engineReport) hostTools(ctx context.Context, s *session.Session) {
	const name = "host tools"
	err := callHostTool(ctx, s)
	switch {
	case errors.Is(err, backend.ErrUnsupported):
		r.add(name, verdictWarn, "not supported: "+sanitize.Line(err.Error()), "")
	case err != nil:
		r.add(name, verdictWarn, "code inside does not reach them: "+sanitize.Line(err.Error()), "agents with host_tools will not work on this engine")
	default:
		r.add(name, verdictOK, "code inside reaches them, without a network", "")
	}
}

func callHostTool(ctx context.Context, s *session.Session) (err error) {
	registry, err := hosttools.New(nil, hosttools.Static("doctor", hosttools.Tool{
		Definition: hosttools.Definition{Name: "ping", ReadOnly: true},
		Handle: func(context.Context, hosttools.Call) (hosttools.Result, error) {
			return hosttools.Result{Text: "pong"}, nil
		},
	}))
	if err != nil {
		return err
	}
	set, err := registry.Set(ctx, hosttools.Grant{Rules: hosttools.Rules{Allow: []hosttools.Rule{{Tool: "doctor.ping"}}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close(ctx)) }()
	at, err := hosttools.Attach(ctx, s)
	if err != nil {
		return err
	}
	req := session.ExecRequest{Argv: []string{"tools", "call", "doctor.ping"}}
	at.Grant(ctx, set, &req)
	res, err := s.Exec(ctx, req)
	if err == nil && strings.TrimSpace(string(res.Stdout.Bytes())) != "pong" {
		err = fmt.Errorf("the command %s with %d: %s", res.Status, res.ExitCode, res.Stderr.Bytes())
	}
	return err
}
