package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/session"
)

// doctorTimeout bounds each question to the engine, so that doctor answers also when the engine hangs.
const doctorTimeout = 5 * time.Second

// verdict says how a check ended.
type verdict string

const (
	verdictOK   verdict = "ok"
	verdictWarn verdict = "warn" // works, less than it could
	verdictFail verdict = "fail" // no sandbox can run
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
	Usable       bool                  `json:"usable"`
	Backend      string                `json:"backend"`
	Version      string                `json:"version"`
	Guest        string                `json:"guest"`
	Engine       *backend.EngineInfo   `json:"engine,omitempty"`
	Capabilities *backend.Capabilities `json:"capabilities,omitempty"`
	Checks       []check               `json:"checks"`

	tried bool // a sandbox was opened, or failed to
}

func (r *report) add(name string, v verdict, detail, fix string) {
	r.Checks = append(r.Checks, check{name, v, detail, fix})
}

func newDoctorCmd(a *app) *cobra.Command {
	var (
		engine engineFlags
		images imageFlags
		out    outputFlag
		image  string
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the engine and what it can enforce",
		Long: `Check that the engine answers, what it can enforce and that a sandbox really opens, and say how to mend what is
missing. Exits with 5 when no sandbox can run. It pulls nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := a.diagnose(cmd.Context(), engine, images, image)
			if err := out.write(a.stdout, r, r.table); err != nil {
				return err
			}
			if !r.Usable {
				return exitWith(exitUnavailable)
			}
			return nil
		},
	}
	engine.addTo(cmd)
	images.addTo(cmd)
	out.addTo(cmd)
	cmd.Flags().StringVar(&image, "image", "", "image to open a sandbox from (default the first that is there)")
	return cmd
}

// diagnose runs the checks in order; each needs the one before it.
func (a *app) diagnose(ctx context.Context, engine engineFlags, images imageFlags, image string) *report {
	r := &report{Backend: engine.backend, Version: buildVersion(), Guest: embed.Version(), Checks: []check{}}
	m, done, err := a.openManager(ctx, engine, images)
	if err != nil {
		_, hint := classify(err)
		if errors.Is(err, backend.ErrUnavailable) {
			hint = engineFix(engine.backend)
		}
		r.add("engine", verdictFail, oneLine(err.Error()), hint)
		return r
	}
	defer done()
	defer m.Close(context.WithoutCancel(ctx)) // removes the trial sandbox should it still be there; nothing else is open
	r.engine(ctx, m.Backend())
	r.enforcement(m.Backend().Capabilities())
	found := r.images(ctx, m.Backend(), image)
	r.trial(ctx, m, found)
	r.Usable = !slices.ContainsFunc(r.Checks, func(c check) bool { return c.Verdict == verdictFail })
	return r
}

func engineFix(name string) string {
	if name == "docker" {
		return "start Docker (Docker Desktop, `systemctl start docker`, or `dockerd`), let this user use it, " +
			"or point DOCKER_HOST at an engine"
	}
	return "start the engine"
}

// engine asks the engine who it is.
func (r *report) engine(ctx context.Context, b backend.SandboxBackend) {
	p, ok := b.(backend.Pinger)
	if !ok {
		r.add("engine", verdictOK, "answers", "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	info, err := p.Ping(ctx)
	if err != nil {
		r.add("engine", verdictFail, oneLine(err.Error()), engineFix(r.Backend))
		return
	}
	r.Engine = &info
	r.add("engine", verdictOK, strings.TrimSpace(info.Name+" "+info.Version), "")
	r.add("api", verdictOK, info.API, "")
	r.add("machine", verdictOK, fmt.Sprintf("%s/%s, kernel %s", info.OS, info.Arch, info.Kernel), "")
	r.add("cgroup", verdictOK, "version "+info.Cgroup, "")
	r.add("runtimes", verdictOK, strings.Join(info.Runtimes, ", "), "")
	if security := info.Details["security"]; security != "" {
		r.add("security", verdictOK, security, "")
	}
}

// enforcement says what limits hold on this engine.
func (r *report) enforcement(c backend.Capabilities) {
	r.Capabilities = &c
	cgroups := "give the engine this cgroup controller; as root on a rootless engine: systemd delegation (see the engine's documentation)"
	for _, l := range []struct {
		name, what string
		ok         bool
		fix        string
	}{
		{"memory limit", "memory and swap together", c.Memory, cgroups},
		{"cpu limit", "thousandths of a core", c.CPU, cgroups},
		{"process limit", "processes and threads", c.PIDs, cgroups},
		{"workspace size", "size of /workspace", c.Workspace, "agents that ask for limits.workspace_mb are refused; leave it out, " +
			"or use an engine with quotas (XFS with pquota)"},
		{"writable root", "root: writable", c.WritableRoot, ""},
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

// images looks which of the default images are there and gives the first.
func (r *report) images(ctx context.Context, b backend.SandboxBackend, chosen string) string {
	checker, ok := b.(backend.ImageChecker)
	if !ok {
		return chosen
	}
	var refs []string
	for _, rt := range frontmatter.Runtimes() {
		refs = append(refs, frontmatter.DefaultImage(rt))
	}
	if chosen != "" {
		refs = append([]string{chosen}, refs...)
	}
	first := ""
	for _, ref := range refs {
		ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
		has, err := checker.HasImage(ctx, ref)
		cancel()
		switch {
		case err != nil:
			r.add("image "+ref, verdictWarn, oneLine(err.Error()), "")
		case has:
			r.add("image "+ref, verdictOK, "present", "")
			if first == "" {
				first = ref
			}
		default:
			r.add("image "+ref, verdictWarn, "not present; pulled when first used", "docker pull "+ref)
		}
	}
	if chosen != "" {
		return chosen
	}
	return first
}

// trial opens a sandbox and closes it.
func (r *report) trial(ctx context.Context, m *session.Manager, image string) {
	const name = "sandbox"
	if image == "" {
		r.add(name, verdictWarn, "not tried: no image is present", "pull one of the images above, or pass --image")
		return
	}
	r.tried = true
	ctx, cancel := context.WithTimeout(ctx, 6*doctorTimeout)
	defer cancel()
	began := time.Now()
	s, _, err := m.Open(ctx, session.UserKey("doctor-"+session.NewID()), session.Request{Image: image, Pull: backend.PullNever})
	if err != nil {
		_, hint := classify(err)
		r.add(name, verdictFail, "does not open: "+oneLine(err.Error()), hint)
		return
	}
	took := time.Since(began).Round(time.Millisecond)
	info := s.Info()
	if err := s.Close(ctx); err != nil {
		r.add(name, verdictFail, "does not close: "+oneLine(err.Error()), "")
		return
	}
	r.add(name, verdictOK, fmt.Sprintf("opened from %s in %s, as %s, with %s",
		image, took, info.User, strings.Join(info.Programs, ", ")), "")
}

// table draws the report for people.
func (r *report) table(w io.Writer) error {
	rows := [][]string{
		{string(verdictOK), "workcell", r.Version},
		{string(verdictOK), "guest", r.Guest},
	}
	for _, c := range r.Checks {
		rows = append(rows, []string{string(c.Verdict), c.Name, c.Detail})
		if c.Fix != "" {
			rows = append(rows, []string{" ", " ", "→ " + c.Fix})
		}
	}
	if err := writeTable(w, []string{"STATE", "CHECK", "FINDING"}, rows); err != nil {
		return err
	}
	verdict := "sandboxes can run"
	switch {
	case !r.Usable:
		verdict = "no sandbox can run here"
	case !r.tried:
		verdict = "the engine is fit; no sandbox was tried"
	}
	_, err := fmt.Fprintf(w, "\n%s\n", verdict)
	return err
}
