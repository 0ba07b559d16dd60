package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

const (
	guestDir  = kit.GuestDir // where the guest's volume is mounted
	namePre   = "workcell-"  // begins the name of every container and volume
	noneShell = "NONE"       // a health check of this name switches off the image's own

	// labelConfig holds what Info needs and the engine's listing does not tell, as JSON.
	labelConfig = backend.LabelPrefix + "config"
	// labelNonce tells the volume that this very Create made from one that was there.
	labelNonce = backend.LabelPrefix + "nonce"
)

type volumeName string

// workspaceName names the workspace of a session.
func workspaceName(session string) volumeName { return volumeName(namePre + session + "-workspace") }

// plan is a checked Spec with all defaults filled in.
type plan struct {
	spec        backend.Spec
	asked       backend.Limits // limits before defaults
	options     backend.Limits // the driver's
	ref         string         // full form of the image reference
	user        kit.User
	name        string              // of the container
	volume      volumeName          // of the workspace
	enforcement backend.Enforcement // what holds its limit
	labels      map[string]string
}

// config is the content of labelConfig.
type config struct {
	Image   string              `json:"image"`
	User    string              `json:"user"`
	Root    backend.RootMode    `json:"root"`
	Network backend.NetworkMode `json:"network"`
	Limits  backend.Limits      `json:"limits"`
	// Workspace is what holds the workspace's limit.
	Workspace backend.Enforcement `json:"workspace,omitempty"`
	RootBytes int64               `json:"root_bytes,omitempty"` // as the guest was told
	Ephemeral bool                `json:"ephemeral,omitempty"`
	Labels    []string            `json:"labels,omitempty"` // names of the user's own labels; others come with the image
}

// newPlan checks spec against what can be said without the engine and against what the engine can do.
func (b *Backend) newPlan(ctx context.Context, spec backend.Spec) (*plan, error) {
	if err := kit.CheckSpec(spec); err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if err := b.opts.Images.Check(spec.Image); err != nil {
		return nil, err
	}
	ref, err := backend.NormalizeImage(spec.Image)
	if err != nil {
		return nil, err
	}
	p := &plan{spec: spec, asked: spec.Limits, options: b.opts.Limits, ref: ref, name: namePre + spec.ID, volume: workspaceName(spec.ID)}
	if p.user, err = kit.ParseUser(spec.User); err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if err := b.engine.enforceable(spec.Limits); err != nil {
		return nil, err
	}
	p.spec.Limits = kit.SandboxLimits(spec.Limits, b.opts.Limits)
	if p.spec.Network == "" {
		p.spec.Network = backend.NetworkNone
	}
	if p.spec.Created.IsZero() {
		p.spec.Created = time.Now()
	}
	if err := b.engine.supports(p.spec); err != nil {
		return nil, err
	}
	if err := b.chooseEnforcement(ctx, p); err != nil {
		return nil, err
	}
	p.labels, err = p.makeLabels(b.opts.Guest.Version)
	return p, err
}

// makeLabels joins the user's labels with ours. All of ours are always set, because the engine fills in what an image
// declares where a container has no label of that name.
func (p *plan) makeLabels(guest string) (map[string]string, error) {
	l := copyLabels(p.spec.Labels)
	c := config{Image: p.spec.Image, User: p.user.String(), Root: p.spec.Root, Network: p.spec.Network, Limits: p.spec.Limits, Workspace: p.enforcement,
		RootBytes: p.rootBytes(), Ephemeral: p.spec.Ephemeral}
	c.Labels = slices.Sorted(maps.Keys(p.spec.Labels))
	js, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("docker: label %s: %w", labelConfig, err)
	}
	for k, v := range p.objectLabels(backend.RoleSandbox) {
		l[k] = v
	}
	l[backend.LabelSpec] = p.spec.Hash
	l[backend.LabelGuest] = guest
	l[labelConfig] = string(js)
	return l, nil
}

// objectLabels mark a thing that belongs to the sandbox, so that whoever sweeps finds it.
func (p *plan) objectLabels(role string) map[string]string {
	return map[string]string{
		backend.LabelRole:     role,
		backend.LabelInstance: p.spec.Instance,
		backend.LabelID:       p.spec.ID,
		backend.LabelKey:      p.spec.Key,
		backend.LabelRun:      p.spec.Run,
		backend.LabelCreated:  p.spec.Created.UTC().Format(time.RFC3339Nano),
	}
}

// imageName is what the engine gets to see: the short form, as people read it in the engine's own listings, unless the
// engine would take that for an id.
func (p *plan) imageName() string {
	named, err := reference.ParseNormalizedNamed(p.ref)
	if err != nil {
		return p.ref
	}
	if short := reference.FamiliarString(named); !strings.HasPrefix(short, "sha256:") && strings.ContainsAny(short, ":@") {
		return short
	}
	return p.ref
}

func (p *plan) rootBytes() int64 { return kit.RootBytes(p.spec.Root, p.asked, p.options) }

func (b *Backend) containerConfig(p *plan) *container.Config {
	second := 1
	return &container.Config{
		Image:        p.imageName(),
		Hostname:     "workcell",
		User:         p.user.String(),
		WorkingDir:   "/",
		Entrypoint:   []string{embed.Path},
		Cmd:          kit.GuestArgs(p.spec.Limits, p.enforcement == backend.WorkspaceWatched, p.rootBytes(), p.spec.OrphanTimeout),
		Env:          guestEnv(),
		OpenStdin:    true,
		AttachStdin:  true,
		AttachStdout: true,
		AttachStderr: true,
		Labels:       p.labels,
		Healthcheck:  &container.HealthConfig{Test: []string{noneShell}},
		// The guest outlives every signal but this one, because its commands may send it any.
		StopSignal:  "SIGKILL",
		StopTimeout: &second,
	}
}

// guestEnv is the environment of the guest itself, not of commands. The engine adds what the image declares, so what
// would steer the guest's runtime is set here.
func guestEnv() []string {
	return []string{"GODEBUG=", "GOGC=", "GOMAXPROCS=", "GOMEMLIMIT=", "GOTRACEBACK="}
}

func (b *Backend) hostConfig(p *plan, img *image, network, nonce string) *container.HostConfig {
	noInit := false
	security := []string{"no-new-privileges"}
	if b.engine.profile != "" {
		security = append(security, "seccomp="+b.engine.profile)
	}
	return &container.HostConfig{
		NetworkMode:    container.NetworkMode(network),
		IpcMode:        container.IPCModePrivate,
		CgroupnsMode:   container.CgroupnsModePrivate,
		CapDrop:        []string{"ALL"},
		SecurityOpt:    security,
		MaskedPaths:    kit.MaskedPaths(b.engine.cpus),
		ReadonlyPaths:  kit.ReadonlyPaths(),
		ReadonlyRootfs: p.spec.Root != backend.RootWritable,
		LogConfig:      container.LogConfig{Type: "none"},
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		ShmSize:        kit.ShmSize(p.spec.Limits),
		Runtime:        p.spec.Runtime,
		Init:           &noInit,
		Resources:      b.engine.resources(p.spec.Limits, p.enforcement, p.rootBytes()),
		Tmpfs:          map[string]string{"/tmp": tmpfsOptions(p.spec.Limits.TmpBytes, p.user, "1777")},
		Mounts:         b.mounts(p, img, nonce),
	}
}

// tmpfsOptions allow execution: installers and compilers run what they put into /tmp.
func tmpfsOptions(size int64, o kit.User, mode string) string {
	return fmt.Sprintf("rw,nosuid,nodev,exec,size=%d,nr_inodes=%d,mode=%s,uid=%d,gid=%d", size, kit.Inodes(size), mode, o.UID, o.GID)
}

// mounts are the guest, the workspace, and something harmless over every volume that the image declares: the engine
// would make an anonymous one without a size.
func (b *Backend) mounts(p *plan, img *image, nonce string) []mount.Mount {
	ms := []mount.Mount{
		{
			Type: mount.TypeVolume, Source: string(b.guestVolumeName()), Target: guestDir, ReadOnly: true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: b.guestLabels(backend.RoleGuest)},
		},
		b.workspaceMount(p, nonce),
	}
	for _, v := range img.volumes {
		ms = append(ms, mount.Mount{
			Type: mount.TypeTmpfs, Target: v,
			TmpfsOptions: &mount.TmpfsOptions{SizeBytes: kit.ImageVolumeBytes, Mode: 0o1777},
		})
	}
	return ms
}
