package admincmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// doctorTimeout limits each request to an engine, to ensure the end of doctor even if the engine hangs.
const doctorTimeout = 5 * time.Second

// verdict is the result of a check.
type verdict string

const (
	verdictOK   verdict = "ok"
	verdictWarn verdict = "warn" // works with limitations
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
	Usable   bool            `json:"usable"`           // a sandbox can run on the backend chosen for commands
	Backend  string          `json:"backend"`          // requested backend
	Chosen   string          `json:"chosen,omitempty"` // backend chosen for commands; empty if auto finds none
	Version  string          `json:"version"`
	Guest    string          `json:"guest"`
	Backends []*engineReport `json:"backends"`
}

// engineReport has the findings for one backend.
type engineReport struct {
	Name         string                `json:"name"`
	Usable       bool                  `json:"usable"`
	Engine       *backend.EngineInfo   `json:"engine,omitempty"`
	Capabilities *backend.Capabilities `json:"capabilities,omitempty"`
	Checks       []check               `json:"checks"`

	there bool // the engine answered
	tried bool // opening a sandbox was tried
}

func (r *engineReport) add(name string, v verdict, detail, fix string) {
	r.Checks = append(r.Checks, check{name, v, detail, fix})
}

func newDoctorCmd(a *command) *cobra.Command {
	image, network := "", false
	cmd := a.Verb(cli.EngineFlags|cli.ImageFlags|cli.OutputFlags, &cobra.Command{
		Use:     "doctor",
		Example: "  workcell doctor\n  workcell doctor --backend local -o json",
		Short:   "Check backends, limits, and images",
		Long: `Check which backends are available, which limits they can enforce, and whether they can open a sandbox.
For each problem, the command suggests a fix but does not apply it. It also warns if a service's variable is not set.
Models, their API keys, and the state database are not checked. Images are pulled only on Kubernetes. Test sandboxes are
removed. To check the image of an agent or workflow, pass --image. If a stronger OCI runtime such as gVisor is
installed, the command names it.

By default, the command checks all backends. To check a single backend, use --backend, WORKCELL_BACKEND, or the
configuration file.

The STATE column shows ok, warn (a feature, limit, or image is missing), or fail (sandboxes cannot run). Each engine
has 5 seconds to answer a request. The exit code is 5 if the backend that other commands would use cannot run sandboxes.
Unless you select a backend, other commands use Docker, or containerd if Docker is not available.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.diagnose(cmd.Context(), image, network)
			if err != nil {
				return err
			}
			if err := a.Print(r, r.table); err != nil {
				return err
			}
			if !r.Usable {
				return app.ExitWith(app.ExitUnavailable)
			}
			return nil
		},
	})
	cmd.Flags().StringVar(&image, "image", "", "`IMAGE`: image for the test sandbox (default: the first available image)")
	cmd.Flags().BoolVar(&network, "network", false,
		"create pods to test whether a Kubernetes cluster enforces NetworkPolicies")
	return cmd
}

// diagnose checks one backend, or all backends concurrently, to prevent a hanging backend from delaying the others.
func (a *command) diagnose(ctx context.Context, image string, network bool) (*report, error) {
	c, err := a.Config()
	if err != nil {
		return nil, err
	}
	r := &report{Backend: c.Backend, Version: a.Options.Version, Guest: embed.Version()}
	drivers := a.Engines().All()
	if r.Backend != engines.Auto {
		d, err := a.Engines().Named(r.Backend)
		if err != nil {
			return nil, err
		}
		drivers = []engines.Engine{d}
	}
	if network && !slices.ContainsFunc(drivers, func(d engines.Engine) bool { return d.TryNetwork != nil }) {
		return nil, app.UsageError(errors.New("--network requires a Kubernetes cluster"), "add --backend kubernetes")
	}
	r.Backends = make([]*engineReport, len(drivers))
	var looking sync.WaitGroup
	for i, d := range drivers {
		r.Backends[i] = &engineReport{Name: d.Name, Checks: []check{}}
		looking.Go(func() { a.examine(ctx, c, r.Backends[i], d, image, network) })
	}
	looking.Wait()
	r.choose()
	return r, nil
}

// choose sets the backend chosen for commands, with the rules of auto.
func (r *report) choose() {
	for _, e := range r.Backends {
		if r.Backend == e.Name || e.there && (e.Name == engines.Docker || e.Name == engines.Containerd) {
			r.Chosen, r.Usable = e.Name, e.Usable
			return
		}
	}
}

// table prints the report as text.
func (r *report) table(w io.Writer) error {
	fmt.Fprintf(w, "workcell %s, guest %s\n", r.Version, r.Guest)
	for _, e := range r.Backends {
		title := e.Name
		if r.Backend == engines.Auto && e.Name == r.Chosen {
			title += " (used by --backend auto)"
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
	return cli.WriteTable(w, []string{"STATE", "CHECK", "FINDING"}, rows)
}

// summary returns the report as one line.
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
		return "the engine is available, but no sandbox was tested"
	case r.Usable:
		return "sandboxes can run on: " + strings.Join(usable, ", ")
	case len(usable) > 0:
		return fmt.Sprintf("no sandbox can run with --backend %s; use --backend %s", cmp.Or(r.Chosen, r.Backend),
			strings.Join(usable, " or --backend "))
	}
	return "no sandbox can run; fix the failed checks above"
}

// examine runs the checks of one backend in order. Each check requires the previous check.
func (a *command) examine(
	ctx context.Context, conf *config.Config, r *engineReport, d engines.Engine, image string, network bool,
) {
	m, err := a.OpenManager(ctx, app.Use{Backend: d.Name, State: app.StateUnused})
	if err != nil {
		r.absent(ctx, d, err)
		return
	}
	defer m.Done()
	defer m.Close(context.WithoutCancel(ctx)) // removes the trial sandbox if it still exists; no other sandbox is open
	if !r.engine(ctx, m.Backend(), d) {
		return
	}
	switch d.Name {
	case engines.Docker: // the engine reports the filter
	case engines.Kubernetes:
		r.add("seccomp", verdictOK, "container runtime's filter, for all sandboxes", "")
	default:
		r.add("seccomp", verdictOK, "Workcell's filter, for all sandboxes", "")
	}
	if d.Name == engines.Local {
		r.add("isolation", verdictWarn,
			"process, less than a container: sandboxes can read and run programs in the host's system directories, "+
				"and no daemon supervises them", "use docker or containerd for stronger isolation (docs/operations/local.md)")
	} else {
		r.isolation(m.Backend().Capabilities().Isolation, m.NewIsolation())
	}
	r.enforcement(m.Backend().Capabilities())
	r.services(conf)
	found := r.images(ctx, m.Backend(), conf, image)
	if network && d.TryNetwork != nil {
		r.network(ctx, d, found, conf)
	}
	r.trial(ctx, m, found)
	r.Usable = !slices.ContainsFunc(r.Checks, func(c check) bool { return c.Verdict == verdictFail })
}

// isolation reports the isolation of new sandboxes, and OCI runtimes with a different isolation.
func (r *engineReport) isolation(tiers map[string]backend.Isolation, used backend.Isolation) {
	text := cmp.Or(string(used), "unknown: the RuntimeClass cannot be read")
	for _, runtime := range slices.Sorted(maps.Keys(tiers)) {
		if runtime != "" && tiers[runtime] != used {
			text += fmt.Sprintf("; %s with --oci-runtime %s", tiers[runtime], runtime)
		}
	}
	r.add("isolation", verdictOK, text, "")
}

// absent reports an unusable backend, with reason and remedy.
func (r *engineReport) absent(ctx context.Context, d engines.Engine, err error) {
	_, hint := app.Classify(err)
	if errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrUnsupported) {
		hint = d.Fix(err)
	}
	text := sanitize.Line(err.Error())
	if errors.Is(err, backend.ErrUnavailable) {
		text = d.Why(ctx, err)
	}
	r.add("engine", verdictFail, text, hint)
}

// engine requests information about the engine.
func (r *engineReport) engine(ctx context.Context, b backend.SandboxBackend, d engines.Engine) bool {
	r.there = true
	bounded, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	info, err := b.Ping(bounded)
	if err != nil {
		r.absent(ctx, d, err)
		return false
	}
	r.Engine = &info
	r.add("engine", verdictOK, strings.TrimSpace(info.Name+" "+info.Version), "")
	facts := [][2]string{{"api", info.API}}
	if info.Kernel != "" {
		facts = append(facts, [2]string{"host", strings.Trim(info.OS+"/"+info.Arch, "/") + ", kernel " + info.Kernel})
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

// enforcement reports the limits enforced by this engine.
func (r *engineReport) enforcement(c backend.Capabilities) {
	r.Capabilities = &c
	workspace := "monitored: size of /workspace; commands are killed above the limit, about one second after they " +
		"exceed it"
	switch c.Workspace {
	case backend.WorkspaceSized:
		workspace = "enforced: size of /workspace, with a separate file system, whose space is reserved"
	case backend.WorkspaceMemory:
		workspace = "enforced: size of /workspace, in memory"
	}
	root := "monitored: writable root; commands are killed if files outside /workspace exceed workspace_mb, or 4 GiB " +
		"by default"
	if c.RootEnforcement == backend.WorkspaceMemory {
		root = "enforced: writable root, in memory"
	}
	cgroups := "enable this cgroup controller for the engine; for a rootless engine, set up systemd delegation as root " +
		"(see its documentation)"
	if r.Name == engines.Kubernetes {
		cgroups = "the kubelet's podPidsLimit applies to all pods; agents that set limits.pids are refused"
	}
	if r.Name == engines.Local {
		cgroups = "run as root, or as another user with systemd-run --user --scope workcell … (docs/operations/local.md)"
	}
	for _, l := range []struct {
		name, what string
		ok         bool
		fix        string
	}{
		{"memory limit", "enforced: memory and swap combined", c.Memory, cgroups},
		{"cpu limit", "enforced: CPU time, in thousandths of a core", c.CPU, cgroups},
		{"process limit", "enforced: processes and threads", c.PIDs, cgroups},
		{"workspace size", workspace, c.Workspace != "", "agents that set limits.workspace_mb are refused; remove it"},
		{"writable root", root, c.WritableRoot, ""},
		{"stop and start", "supported: files survive a stop", c.Persistent, ""},
	} {
		if l.ok {
			r.add(l.name, verdictOK, l.what, "")
		} else {
			r.add(l.name, verdictWarn, "not supported; requests for it fail", l.fix)
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

// services reports whether the credentials of the configured services are available.
func (r *engineReport) services(conf *config.Config) {
	for _, s := range conf.Services {
		verdict, detail := verdictOK, s.URL.String()
		if s.Auth != nil {
			if err := s.Auth(http.Header{}); err != nil {
				verdict, detail = verdictWarn, err.Error()
			}
		}
		r.add("service "+s.Name, verdict, detail, "")
	}
}

// images reports which of the default images are present, and returns the first.
func (r *engineReport) images(
	ctx context.Context, b backend.SandboxBackend, conf *config.Config, chosen string,
) string {
	if r.Name == engines.Kubernetes { // only the nodes know their images
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
	present, absent := "present", "not present; pulled on first use"
	if r.Name == engines.Local {
		present, absent = "uses the host's programs", "program not found on the host"
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

// imageID returns the id of an image, or an empty string if the image is missing.
func imageID(ctx context.Context, b backend.SandboxBackend, ref string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	id, err := b.ImageID(ctx, ref)
	if errors.Is(err, backend.ErrUnsupported) { // unknown until a sandbox uses the image
		return "", nil
	}
	return id, err
}

// fetch returns the remedy for a missing image.
func (r *engineReport) fetch(ref string) string {
	mirrored := "; to use an image of a mirror, pass --map-image " + ref + "=IMAGE"
	switch r.Name {
	case engines.Local:
		return "install it, for example with apt-get install python3 or nodejs"
	case engines.Containerd:
		if full, err := backend.NormalizeImage(ref); err == nil {
			ref = full
		}
		return "ctr --namespace workcell images pull " + ref + mirrored
	}
	return "docker pull " + ref + mirrored
}

// network tests whether an engine isolates a sandbox without a network.
func (r *engineReport) network(ctx context.Context, d engines.Engine, image string, conf *config.Config) {
	const name = "network policy"
	ctx, cancel := context.WithTimeout(ctx, 24*doctorTimeout)
	defer cancel()
	closed, err := d.TryNetwork(ctx, image, conf.MapImages)
	if err != nil {
		r.add(name, verdictFail, sanitize.Line(err.Error()), "")
		return
	}
	fix := ""
	if conf.Kubernetes.NetworkPolicy == "" {
		fix = "set kubernetes.network_policy: enforced in workcell.yaml"
	}
	r.add(name, verdictOK, "enforced: a sandbox without network access cannot reach "+strings.Join(closed, ", "), fix)
}

// trial opens a sandbox and closes it.
func (r *engineReport) trial(ctx context.Context, m *app.Manager, image string) {
	const name = "sandbox"
	if image == "" {
		r.add(name, verdictWarn, "not tested: no image available", "pull an image above, or pass --image with a local image")
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
	s, _, err := m.Open(ctx, session.UserKey("doctor-"+record.NewID()), session.Request{Image: image, Pull: pull})
	if err != nil {
		_, hint := app.Classify(err)
		if pull == backend.PullNever && errors.Is(err, backend.ErrImage) {
			hint = r.fetch(image)
		}
		r.add(name, verdictFail, "cannot be opened: "+sanitize.Line(err.Error()), hint)
		return
	}
	took := time.Since(began).Round(time.Millisecond)
	info := s.Info()
	r.snapshots(ctx, s)
	if err := s.Close(ctx); err != nil {
		r.add(name, verdictFail, "cannot be closed: "+sanitize.Line(err.Error()), "")
		return
	}
	r.add(name, verdictOK, fmt.Sprintf("opened from %s in %s as %s, with %s",
		image, took, info.User, strings.Join(info.Programs, ", ")), "")
}

// snapshots reports how the backend creates snapshots of a sandbox.
func (r *engineReport) snapshots(ctx context.Context, s *session.Session) {
	const name = "snapshots"
	switch _, mechanism, err := s.Snapshots(ctx); {
	case err != nil:
		r.add(name, verdictOK, "not available: "+sanitize.Line(err.Error()), "")
	case mechanism == "":
		r.add(name, verdictOK, "not available: cannot freeze commands", "run as root, or in a delegated cgroup")
	case mechanism == backend.SnapshotReflink:
		r.add(name, verdictOK, "reflink: snapshots share blocks with the workspace", "")
	default:
		r.add(name, verdictOK, "copy: the file system cannot share blocks, so the first snapshot copies the workspace",
			"for fast snapshots, see docs/guides/snapshots-and-forks.md#make-snapshots-fast")
	}
}
