//go:build linux

package promises

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	imagetypes "github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
)

// dockerEngine is a Docker Engine.
type dockerEngine struct {
	api  *dockerclient.Client
	host string // in the format of DOCKER_HOST; empty for the platform's default
}

func openDocker() (engine, error) {
	api, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	return &dockerEngine{api, os.Getenv("DOCKER_HOST")}, err
}

func (e *dockerEngine) connect(ctx context.Context, c connection) (backend.SandboxBackend, error) {
	return docker.New(ctx, &docker.Options{
		Host: cmp.Or(c.address, e.host), AllowNets: c.allowNets, Patience: c.patience, PullTimeout: c.pullTimeout, Logger: c.logger, TracerProvider: c.tracer,
	})
}

func (e *dockerEngine) environ() []string {
	if e.host != "" {
		return []string{"DOCKER_HOST=" + e.host}
	}
	return nil
}

func (e *dockerEngine) left(ctx context.Context, prefix string) ([]string, error) {
	cs, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	vs, verr := e.api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", backend.LabelInstance))})
	if err = errors.Join(err, verr); err != nil {
		return nil, err
	}
	var list []string
	for _, c := range cs {
		if strings.HasPrefix(c.Labels[backend.LabelInstance], prefix) || strings.Contains(strings.Join(c.Names, " "), prefix) {
			list = append(list, fmt.Sprintf("container %v, %s", c.Names, c.State))
		}
	}
	for _, vol := range vs.Volumes {
		if strings.HasPrefix(vol.Labels[backend.LabelInstance], prefix) {
			list = append(list, "volume "+vol.Name)
		}
	}
	return list, nil
}

func (e *dockerEngine) pid(ctx context.Context, id string) (int, error) {
	res, err := e.api.ContainerInspect(ctx, id)
	if err != nil {
		return 0, err
	}
	return res.State.Pid, nil
}

func (e *dockerEngine) describe(ctx context.Context, id string) (string, error) {
	c, err := e.api.ContainerInspect(ctx, id)
	if err != nil {
		return "", err
	}
	v, err := e.api.VolumeInspect(ctx, "workcell-"+c.Config.Labels[backend.LabelID]+"-workspace")
	if err != nil {
		return "", err
	}
	text, err := json.Marshal([]any{c, v})
	return string(text), err
}

func (e *dockerEngine) stranger(t testing.TB, image string, labels map[string]string) stranger {
	t.Helper()
	name := strangerName()
	res, err := e.api.ContainerCreate(t.Context(), &container.Config{Image: image, Cmd: []string{"sleep", "6000"}, Labels: labels},
		&container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	must(t, err)
	t.Cleanup(func() {
		must(t, e.api.ContainerRemove(context.Background(), res.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}))
	})
	must(t, e.api.ContainerStart(t.Context(), res.ID, container.StartOptions{}))
	return stranger{[]string{res.ID, res.ID[:12], name}, func() bool { return running(res.ID) }}
}

func (e *dockerEngine) derive(t testing.TB, c change) string {
	t.Helper()
	ctx := context.Background() // complete the work even if the test is canceled
	res, err := e.api.ContainerCreate(ctx, &container.Config{Image: debianImage, Cmd: []string{"true"}}, nil, nil, nil, strangerName())
	must(t, err)
	defer func() { must(t, e.api.ContainerRemove(ctx, res.ID, container.RemoveOptions{Force: true})) }()
	if c.file != nil {
		must(t, e.api.CopyToContainer(ctx, res.ID, "/", bytes.NewReader(c.file.archive(t)), container.CopyToContainerOptions{}))
	}
	var changes []string
	for name, value := range c.env {
		changes = append(changes, "ENV "+name+"="+value)
	}
	for name, value := range c.labels {
		changes = append(changes, "LABEL "+name+"="+value)
	}
	ref := newReference()
	_, err = e.api.ContainerCommit(ctx, res.ID, container.CommitOptions{Reference: ref, Changes: changes})
	must(t, err)
	t.Cleanup(func() { must(t, e.forget(context.Background(), ref)) })
	return ref
}

// archive returns the file as a tar archive.
func (f *file) archive(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	must(t, tw.WriteHeader(&tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.data))}))
	_, err := tw.Write(f.data)
	must(t, errors.Join(err, tw.Close()))
	return b.Bytes()
}

func (e *dockerEngine) tag(ctx context.Context, image, ref string) error {
	return e.api.ImageTag(ctx, image, ref)
}

func (e *dockerEngine) forget(ctx context.Context, ref string) error {
	_, err := e.api.ImageRemove(ctx, ref, imagetypes.RemoveOptions{Force: true, PruneChildren: true})
	return err
}

func (e *dockerEngine) proxy(t testing.TB) *proxy {
	t.Helper()
	at, err := dockerclient.ParseHostURL(e.api.DaemonHost())
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0") // like an engine on another host, whose streams are separate
	must(t, err)
	p := newProxy(t, l, dialer(at.Scheme, at.Host), forwardHTTP)
	p.address = "tcp://" + p.address
	return p
}

// creates reports whether a request creates the sandbox's container, as opposed to a helper container.
func (e *dockerEngine) creates(r *http.Request) bool {
	name := r.URL.Query().Get("name")
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/containers/create") &&
		strings.HasPrefix(name, "workcell-sbx_") && strings.Count(name, "-") == 1
}

func (e *dockerEngine) streams() bool { return true }

func (e *dockerEngine) mounts() *regexp.Regexp { return containerMounts() }

func (e *dockerEngine) close() error { return e.api.Close() }

// inspect checks a container's description against section 5 of the CIS Docker Benchmark and our additional
// requirements. AppArmor and SELinux (5.1, 5.2) depend on the host. A health check (5.26) would start a program
// repeatedly in a sandbox whose main process already reports the health.
func (e *dockerEngine) inspect(t *testing.T, b *testSandbox) {
	t.Helper()
	info, err := e.api.Info(t.Context())
	must(t, err)
	has := func(module string) bool {
		return slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.HasPrefix(o, "name="+module) })
	}
	c, err := e.api.ContainerInspect(t.Context(), b.s.Info().EngineID)
	must(t, err)
	h := c.HostConfig
	option := func(name string) bool {
		return slices.ContainsFunc(h.SecurityOpt, func(o string) bool { return strings.HasPrefix(o, name) })
	}
	mounts := slices.DeleteFunc(slices.Clone(c.Mounts), isAccounts)
	for rule, ok := range map[string]bool{
		"5.1 AppArmor, where the machine has it": !has("apparmor") || c.AppArmorProfile != "" && c.AppArmorProfile != "unconfined",
		"5.2 SELinux, where the machine has it":  !has("selinux") || c.ProcessLabel != "",
		"5.3 capabilities":                       slices.Equal(h.CapDrop, []string{"ALL"}) && len(h.CapAdd) == 0,
		"5.4 not privileged":                     !h.Privileged,
		"5.5 no directories of the host":         len(h.Links)+len(h.ExtraHosts)+len(h.DNS)+len(h.VolumesFrom)+len(h.Binds) == 0,
		"5.7, 5.8, 5.13 no ports":                len(h.PortBindings)+len(c.NetworkSettings.Ports) == 0 && !h.PublishAllPorts,
		"5.9 own network":                        !h.NetworkMode.IsHost() && !h.NetworkMode.IsContainer(),
		"5.10 memory":                            h.Memory > 0 && h.MemorySwap == h.Memory,
		"5.11 CPU":                               h.NanoCPUs > 0 || h.CPUShares > 0,
		"5.12 read-only root":                    h.ReadonlyRootfs == (b.s.Info().Root == backend.RootReadonly),
		"5.14 no restarts":                       h.RestartPolicy.IsNone(),
		"5.15 own processes":                     h.PidMode == "",
		"5.16 own IPC":                           h.IpcMode == container.IPCModePrivate,
		"5.17 no devices":                        len(h.Devices)+len(h.DeviceRequests)+len(h.DeviceCgroupRules) == 0,
		"5.18 ulimits":                           len(h.Ulimits) >= 3,
		"5.20 own host name":                     h.UTSMode == "",
		"5.21 seccomp":                           !option("seccomp=unconfined") && has("seccomp"),
		"5.24 cgroup":                            h.CgroupParent == "" && h.CgroupnsMode == container.CgroupnsModePrivate,
		"5.25 no new privileges":                 slices.Contains(h.SecurityOpt, "no-new-privileges"),
		"5.28 processes":                         h.PidsLimit != nil && *h.PidsLimit > 0,
		"5.29 not the default bridge":            h.NetworkMode != "default" && h.NetworkMode != "bridge",
		"5.30 user namespace not the machine's":  h.UsernsMode == "",
		"groups, sysctls":                        len(h.GroupAdd)+len(h.Sysctls) == 0,
		"kills for lack of memory":               (h.OomKillDisable == nil || !*h.OomKillDisable) && h.OomScoreAdj >= 0,
		"masked and read-only paths":             len(h.MaskedPaths) >= 8 && len(h.ReadonlyPaths) >= 5,
		"no log, no terminal":                    h.LogConfig.Type == "none" && !c.Config.Tty,
		"entry point":                            slices.Equal(c.Config.Entrypoint, []string{"/.workcell/workcell-guest"}) && slices.Equal(c.Config.Cmd, guestArguments(b)),
		"environment":                            !slices.ContainsFunc(c.Config.Env, func(e string) bool { return strings.HasPrefix(e, hostCanary) }),
		"user":                                   c.Config.User == b.s.Info().User,
		"label of instance":                      c.Config.Labels[backend.LabelInstance] == w.instance,
		"5.19, 5.31 our volumes and the terminals": (len(mounts) == 3 && terminals(h.Mounts) || len(mounts) == 2 && h.Runtime == "runsc") &&
			slices.ContainsFunc(c.Mounts, ownVolume("/workspace", true)) && slices.ContainsFunc(c.Mounts, ownVolume("/.workcell", false)),
	} {
		if !ok {
			t.Errorf("%s: not so", rule)
		}
	}
}

// isAccounts reports whether a mount is the file with the sandbox's user, of our volume.
func isAccounts(m container.MountPoint) bool {
	return (m.Destination == "/etc/passwd" || m.Destination == "/etc/group") && m.Type == mount.TypeBind && !m.RW &&
		strings.Contains(m.Source, "/volumes/workcell-guest-") && m.Propagation == mount.PropagationRSlave
}

// terminals reports whether what is mounted at /dev/pts has a bound.
func terminals(mounts []mount.Mount) bool {
	return slices.ContainsFunc(mounts, func(m mount.Mount) bool {
		return m.Target == "/dev/pts" && strings.HasSuffix(m.VolumeOptions.DriverConfig.Options["o"], ",max=64")
	})
}

// ownVolume returns a function that reports whether a mount is one of our volumes.
func ownVolume(at string, writable bool) func(container.MountPoint) bool {
	return func(m container.MountPoint) bool {
		return m.Type == mount.TypeVolume && strings.HasPrefix(m.Name, "workcell-") && m.Destination == at && m.RW == writable && m.Propagation != mount.PropagationShared
	}
}
