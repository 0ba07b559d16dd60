package docker

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

const (
	guestDir  = embed.Dir   // mount point of the guest volume
	namePre   = "workcell-" // prefix of all container and volume names
	noneShell = "NONE"      // disables the health check of an image

	// labelConfig contains the data for Info missing from the engine's listing, as JSON.
	labelConfig = backend.LabelPrefix + "config"
	// labelNonce distinguishes a volume of this Create call from an existing volume.
	labelNonce = backend.LabelPrefix + "nonce"
	// labelTerminals is a label on the volume of a sandbox's terminals. It contains the name of the workspace volume.
	labelTerminals = backend.LabelPrefix + "terminals"
	// labelFork is a label on the volume of a fork. The fork is complete when the volume's directory contains forkedFile.
	labelFork = backend.LabelPrefix + "fork"
)

type volumeName string

// workspaceName returns the name of a session's workspace volume.
func workspaceName(session string) volumeName { return volumeName(namePre + session + "-workspace") }

// plan describes the requests to the engine.
type plan struct {
	*kit.Plan
	engine    *engine    // engine against which the plan was checked
	name      string     // name of the container
	volume    volumeName // workspace volume
	labels    map[string]string
	installed string // name of the existing environment; empty for none
	unnamed   bool   // created without accountMounts
}

// config is the content of labelConfig.
type config struct {
	kit.Record
	Labels []string `json:"labels,omitempty"` // names of the user's labels; other labels come from the image
}

// newPlan checks a plan against the engine's capabilities.
func (b *driver) newPlan(ctx context.Context, checked *kit.Plan) (*plan, error) {
	e, err := b.learn(ctx)
	if err != nil {
		return nil, err
	}
	p := &plan{Plan: checked, engine: e, name: namePre + checked.Spec.ID, volume: workspaceName(checked.Spec.ID)}
	if err := checked.Enforceable(e.memory, e.caps); err != nil {
		return nil, err
	}
	if err := e.supports(checked); err != nil {
		return nil, err
	}
	if err := checked.ResolveMounts(b.isElsewhere, e.root); err != nil {
		return nil, err
	}
	p.labels = p.makeLabels(b.opts.Guest.Version)
	return p, nil
}

// isElsewhere reports whether a directory to mount is probably on another host. The engine then checks the directory.
func (b *driver) isElsewhere(dir string) bool {
	_, err := os.Stat(dir)
	return err != nil || !strings.HasPrefix(b.api.DaemonHost(), "unix:")
}

// makeLabels merges the user's labels with Workcell's labels.
func (p *plan) makeLabels(guest string) map[string]string {
	names := slices.Sorted(maps.Keys(p.Spec.Labels))
	js, _ := json.Marshal(config{Record: p.Record(backend.WorkspaceWatched), Labels: names}) // cannot fail: texts, numbers
	l := map[string]string{}
	maps.Copy(l, p.Spec.Labels)
	maps.Copy(l, p.SandboxLabels(guest))
	l[labelConfig], l[labelBuilding] = string(js), ""
	return l
}

func (b *driver) containerConfig(p *plan) *container.Config {
	return &container.Config{
		Image:       p.Image,
		Hostname:    kit.Hostname,
		User:        p.User.String(),
		WorkingDir:  "/",
		Entrypoint:  []string{embed.Path},
		Cmd:         p.Record(backend.WorkspaceWatched).GuestArgs(p.Root),
		Env:         kit.GuestEnv(),
		Labels:      p.labels,
		Healthcheck: &container.HealthConfig{Test: []string{noneShell}},
		// The guest agent ignores all other signals, because commands may send it any signal.
		StopSignal:  "SIGKILL",
		StopTimeout: new(1),
	}
}

func (b *driver) hostConfig(p *plan, img *image, nonce string) *container.HostConfig {
	network := container.NetworkMode(backend.NetworkNone)
	if p.Spec.Network == backend.NetworkBridge {
		network = networkName
	}
	security := []string{"no-new-privileges"}
	if p.engine.profile != "" {
		security = append(security, "seccomp="+p.engine.profile)
	}
	return &container.HostConfig{
		NetworkMode:    network,
		IpcMode:        container.IPCModePrivate,
		CgroupnsMode:   container.CgroupnsModePrivate,
		CapDrop:        []string{"ALL"},
		SecurityOpt:    security,
		MaskedPaths:    kit.MaskedPaths(p.engine.cpus),
		ReadonlyPaths:  kit.ReadonlyPaths("/sys/fs/cgroup"),
		ReadonlyRootfs: p.Spec.Root != backend.RootWritable,
		LogConfig:      container.LogConfig{Type: "none"},
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		ShmSize:        p.Spec.Limits.ShmBytes,
		Runtime:        p.Spec.OCIRuntime,
		Init:           new(false),
		Resources:      p.engine.resources(p.Spec.Limits, p.Root),
		// Installers and compilers execute files in /tmp.
		Tmpfs:  map[string]string{"/tmp": "rw,nosuid,nodev,exec," + kit.TmpfsOptions(p.Spec.Limits.TmpBytes, p.User)},
		Mounts: b.mounts(p, img, nonce),
	}
}

// terminals returns a mount to replace the engine's devpts, in which a container could use all pseudo-terminals of the
// host. The engine creates the volume together with the container and removes both together. For `docker rm` without
// volumes, see removeTerminals.
func terminals(labels map[string]string) mount.Mount {
	return mount.Mount{Type: mount.TypeVolume, Target: "/dev/pts", VolumeOptions: &mount.VolumeOptions{
		NoCopy: true, Labels: labels, DriverConfig: &mount.Driver{Name: "local", Options: map[string]string{
			"type": "devpts", "device": "devpts", "o": "nosuid,noexec," + kit.TerminalOptions,
		}},
	}}
}

// overVolumes returns a tmpfs for every volume of an image, except at the targets of other mounts.
func overVolumes(img *image, except ...backend.Mount) (ms []mount.Mount) {
	for _, v := range img.volumes {
		if slices.ContainsFunc(except, func(m backend.Mount) bool { return m.Target == v }) {
			continue // the engine refuses a second mount with the same target
		}
		ms = append(ms, mount.Mount{
			Type: mount.TypeTmpfs, Target: v,
			TmpfsOptions: &mount.TmpfsOptions{SizeBytes: kit.ImageVolumeBytes, Mode: 0o1777},
		})
	}
	return ms
}

// mounts returns the mounts of the guest agent, workspace, account files, terminals, and a tmpfs for every volume of
// the image. Without the tmpfs, the engine would create an anonymous volume without a size limit.
func (b *driver) mounts(p *plan, img *image, nonce string) []mount.Mount {
	ms := []mount.Mount{b.guest.of(p.engine.runtime(p.Spec)).mount(true), b.workspaceMount(p, nonce)}
	ms = append(ms, b.accountMounts(p, img)...)
	ms = append(ms, overVolumes(img, p.Spec.Mounts...)...)
	for _, m := range p.Spec.Mounts {
		ms = append(ms, mount.Mount{
			Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: !m.Writable,
			// Mounts below a read-only mount could be writable.
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: true},
		})
	}
	// The terminals are the last mount because the engine would not remove this volume if a later mount failed.
	if p.engine.terminals && kernelNetwork(p.engine.runtime(p.Spec)) {
		labels := map[string]string{backend.LabelInstance: p.Spec.Instance, labelTerminals: string(p.volume)}
		ms = append(ms, terminals(labels))
	}
	return ms
}
