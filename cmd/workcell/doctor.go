package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
)

// examine runs the checks of one backend in order; each needs the one before it.
func (a *app) examine(ctx context.Context, r *engineReport, d engines.Engine, images imageFlags, image string) {
	m, done, err := a.openManager(ctx, engineFlags{backend: d.Name}, images, stateUnused)
	if err != nil {
		r.absent(ctx, d, err)
		return
	}
	defer done()
	defer m.Close(context.WithoutCancel(ctx)) // removes the trial sandbox should it still be there; nothing else is open
	if !r.engine(ctx, m.Backend(), d) {
		return
	}
	if d.Name != engines.Docker { // which says itself what filter it has
		r.add("seccomp", verdictOK, "Workcell's own filter on every sandbox", "")
	}
	if d.Name == engines.Local {
		r.add("wall", verdictWarn, "thinner than a container's: what this machine has in its system folders can be read and run inside, "+
			"and there is no daemon to watch over it", "docs/local.md compares the two; docker and containerd are the stronger choice")
	}
	r.enforcement(m.Backend().Capabilities())
	found := r.images(ctx, m.Backend(), image)
	r.trial(ctx, m, found)
	r.Usable = !r.failed()
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
	for _, row := range []struct{ name, detail string }{
		{"api", info.API},
		{"machine", strings.Trim(info.OS+"/"+info.Arch, "/") + ", kernel " + info.Kernel},
		{"cgroup", "version " + info.Cgroup},
		{"runtimes", strings.Join(info.Runtimes, ", ")},
	} {
		if row.detail != "" && row.detail != "version " {
			r.add(row.name, verdictOK, row.detail, "")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(info.Details)) {
		if v := info.Details[key]; v != "" {
			r.add(strings.ReplaceAll(key, "_", " "), verdictOK, v, "")
		}
	}
	return true
}

// workspaceWords returns what holds a workspace to its size.
func workspaceWords(m backend.Enforcement) string {
	switch m {
	case backend.WorkspaceSized:
		return "size of /workspace, by a file system of its own, whose space is set aside where the disk can do that"
	case backend.WorkspaceMemory:
		return "size of /workspace, which lies in memory"
	}
	return "size of /workspace, watched: commands end when it is passed, and it is passed by what they write within a second or so"
}

// rootWords returns what holds what is written to a root to its size.
func rootWords(m backend.Enforcement) string {
	if m == backend.WorkspaceMemory {
		return "root: writable, which lies in memory"
	}
	return "root: writable, watched: commands end when the workspace_mb that was asked for, or else 4 GiB, is passed outside of /workspace"
}

// enforcement reports what limits hold on this engine.
func (r *engineReport) enforcement(c backend.Capabilities) {
	r.Capabilities = &c
	cgroups := "give the engine this cgroup controller; as root on a rootless engine: systemd delegation (see the engine's documentation)"
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
		{"workspace size", workspaceWords(c.Workspace), c.Workspace != "", "agents that ask for limits.workspace_mb are refused; leave it out"},
		{"writable root", rootWords(c.RootEnforcement), c.WritableRoot, ""},
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
func (r *engineReport) images(ctx context.Context, b backend.SandboxBackend, chosen string) string {
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
			r.add("image "+ref, verdictWarn, sanitize.Line(err.Error()), "")
		case has:
			r.add("image "+ref, verdictOK, r.present(), "")
			if first == "" {
				first = ref
			}
		default:
			r.missing(ref)
		}
	}
	if chosen != "" {
		return chosen
	}
	return first
}

// present returns what an image being there means on this backend.
func (r *engineReport) present() string {
	if r.Name == engines.Local {
		return "means this machine's own programs"
	}
	return "present"
}

// missing reports an image that is not there, and how to get it.
func (r *engineReport) missing(ref string) {
	switch r.Name {
	case engines.Local:
		r.add("image "+ref, verdictWarn, "this machine has no such program", "install it, as with apt-get install python3 or nodejs")
	case engines.Containerd:
		full, err := backend.NormalizeImage(ref)
		if err != nil {
			full = ref
		}
		r.add("image "+ref, verdictWarn, "not present; pulled when first used", "ctr --namespace workcell images pull "+full)
	default:
		r.add("image "+ref, verdictWarn, "not present; pulled when first used", "docker pull "+ref)
	}
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
	s, _, err := m.Open(ctx, session.UserKey("doctor-"+session.NewID()), session.Request{Image: image, Pull: backend.PullNever})
	if err != nil {
		_, hint := classify(err)
		r.add(name, verdictFail, "does not open: "+sanitize.Line(err.Error()), hint)
		return
	}
	took := time.Since(began).Round(time.Millisecond)
	info := s.Info()
	if err := s.Close(ctx); err != nil {
		r.add(name, verdictFail, "does not close: "+sanitize.Line(err.Error()), "")
		return
	}
	r.add(name, verdictOK, fmt.Sprintf("opened from %s in %s, as %s, with %s",
		image, took, info.User, strings.Join(info.Programs, ", ")), "")
}
