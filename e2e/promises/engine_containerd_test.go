//go:build linux

package promises

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	cerrdefs "github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/e2e/machinetest"
	"github.com/workcell-dev/workcell/session/record"
)

// containerdImages are the images of a containerd namespace on the host.
type containerdImages struct {
	api       *ctrd.Client
	namespace string
}

// openContainerdImages connects to a containerd.
func openContainerdImages(socket, namespace string) (containerdImages, error) {
	api, err := ctrd.New(socket, ctrd.WithDefaultNamespace(namespace))
	return containerdImages{api, namespace}, err
}

// in returns a context with the namespace.
func (e containerdImages) in(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, e.namespace)
}

func (e containerdImages) close() error { return e.api.Close() }

// containerdEngine is a containerd on the host.
type containerdEngine struct {
	containerdImages
	socket   string
	state    string            // driver's state directory
	runtimes map[string]string // additional runtimes, by path
}

func openContainerd() (engine, error) {
	e := &containerdEngine{socket: cmp.Or(os.Getenv("CONTAINERD_ADDRESS"), containerd.DefaultAddress), state: containerd.DefaultStateDir}
	var err error
	e.containerdImages, err = openContainerdImages(e.socket, containerd.DefaultNamespace)
	return e, err
}

func (e *containerdEngine) connect(ctx context.Context, c connection) (backend.SandboxBackend, error) {
	return containerd.New(ctx, &containerd.Options{
		Address: cmp.Or(c.address, e.socket), StateDir: e.state, OCIRuntime: os.Getenv("WORKCELL_TEST_OCI_RUNTIME"), OCIRuntimes: e.runtimes, AllowNets: c.allowNets, Patience: c.patience, PullTimeout: c.pullTimeout,
		Logger: c.logger, TracerProvider: c.tracer,
	})
}

func (e *containerdEngine) environ() []string { return []string{"CONTAINERD_ADDRESS=" + e.socket} }

func (e *containerdEngine) left(ctx context.Context, prefix string) ([]string, error) {
	cs, err := e.api.ContainerService().List(e.in(ctx))
	tags, gerr := filepath.Glob(filepath.Join(e.state, "workspaces/*/owner.json"))
	if err = errors.Join(err, gerr); err != nil {
		return nil, err
	}
	var list []string
	for _, c := range cs {
		if strings.HasPrefix(c.Labels[backend.LabelInstance], prefix) || strings.Contains(c.ID, prefix) {
			list = append(list, "container "+c.ID)
		}
	}
	for _, tag := range tags {
		if text, err := os.ReadFile(tag); err == nil && strings.Contains(string(text), prefix) {
			list = append(list, "workspace "+tag)
		}
	}
	return list, nil
}

func (e *containerdEngine) pid(ctx context.Context, id string) (int, error) {
	ctx = e.in(ctx)
	c, err := e.api.LoadContainer(ctx, machinetest.ContainerID(id))
	if err != nil {
		return 0, err
	}
	task, err := c.Task(ctx, nil)
	if err != nil {
		return 0, err
	}
	status, err := task.Status(ctx)
	if err != nil || status.Status != ctrd.Running {
		return 0, errors.Join(err, fmt.Errorf("it is %s", status.Status))
	}
	return int(task.Pid()), nil
}

func (e *containerdEngine) describe(ctx context.Context, id string) (string, error) {
	c, err := e.api.ContainerService().Get(e.in(ctx), machinetest.ContainerID(id))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	fmt.Fprintf(&all, "%+v\n%s\n", c, c.Spec.GetValue())
	for name, extension := range c.Extensions {
		fmt.Fprintf(&all, "%s: %s\n", name, extension.GetValue())
	}
	return all.String(), nil
}

func (e *containerdEngine) stranger(t testing.TB, image string, labels map[string]string) stranger {
	t.Helper()
	ctx := e.in(context.Background())
	img, err := e.api.GetImage(ctx, "docker.io/"+image)
	must(t, err)
	must(t, img.Unpack(ctx, "overlayfs"))
	id := strangerName()
	c, err := e.api.NewContainer(ctx, id, ctrd.WithImage(img), ctrd.WithSnapshotter("overlayfs"), ctrd.WithNewSnapshot(id, img),
		ctrd.WithNewSpec(oci.WithImageConfig(img), oci.WithProcessArgs("sleep", "6000"), oci.WithCgroup("/workcell-promises/"+id)),
		ctrd.WithAdditionalContainerLabels(labels))
	must(t, err)
	t.Cleanup(func() { must(t, c.Delete(ctx, ctrd.WithSnapshotCleanup)) })
	task, err := c.NewTask(ctx, cio.NullIO)
	must(t, err)
	t.Cleanup(func() {
		_, err := task.Delete(ctx, ctrd.WithProcessKill)
		must(t, err)
		parents, _ := filepath.Glob("/sys/fs/cgroup/*/workcell-promises") // the pattern is valid
		for _, dir := range parents {
			_ = os.Remove(dir) // other containers may still use it
		}
	})
	must(t, task.Start(ctx))
	return stranger{[]string{id}, func() bool { return running(id) }}
}

func (e containerdImages) derive(t testing.TB, c change) string {
	t.Helper()
	ctx, done, err := e.api.WithLease(e.in(context.Background()))
	must(t, err)
	defer func() { must(t, done(ctx)) }()
	cs := e.api.ContentStore()
	img, err := e.api.GetImage(ctx, "docker.io/"+debianImage)
	must(t, err)
	manifest, err := images.Manifest(ctx, cs, img.Target(), img.Platform())
	must(t, err)
	raw, err := content.ReadBlob(ctx, cs, manifest.Config)
	must(t, err)
	var config ocispec.Image
	must(t, json.Unmarshal(raw, &config))
	for name, value := range c.env {
		config.Config.Env = append(config.Config.Env, name+"="+value)
	}
	config.Config.Labels = c.labels
	if c.file != nil {
		layer := c.file.archive(t)
		manifest.Layers = append(manifest.Layers, e.store(ctx, t, ocispec.MediaTypeImageLayer, layer, nil))
		// The layer is not compressed.
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, manifest.Layers[len(manifest.Layers)-1].Digest)
	}
	raw, err = json.Marshal(config)
	must(t, err)
	manifest.Config = e.store(ctx, t, ocispec.MediaTypeImageConfig, raw, nil)
	manifest.Versioned, manifest.MediaType = imagespec.Versioned{SchemaVersion: 2}, ocispec.MediaTypeImageManifest
	keep := map[string]string{"containerd.io/gc.ref.content.config": manifest.Config.Digest.String()}
	for i, l := range manifest.Layers {
		keep[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", i)] = l.Digest.String()
	}
	raw, err = json.Marshal(manifest)
	must(t, err)
	ref := newReference()
	_, err = e.api.ImageService().Create(ctx, images.Image{Name: "docker.io/" + ref, Target: e.store(ctx, t, manifest.MediaType, raw, keep)})
	must(t, err)
	t.Cleanup(func() { must(t, e.forget(context.Background(), ref)) })
	return ref
}

// store stores bytes in containerd as long as they are referenced.
func (e containerdImages) store(ctx context.Context, t testing.TB, kind string, data []byte, labels map[string]string) ocispec.Descriptor {
	t.Helper()
	d := ocispec.Descriptor{MediaType: kind, Digest: ocispec.DescriptorEmptyJSON.Digest.Algorithm().FromBytes(data), Size: int64(len(data))}
	err := content.WriteBlob(ctx, e.api.ContentStore(), "promises-"+record.NewID(), bytes.NewReader(data), d, content.WithLabels(labels))
	if !cerrdefs.IsAlreadyExists(err) {
		must(t, err)
	}
	return d
}

func (e containerdImages) tag(ctx context.Context, image, ref string) error {
	ctx = e.in(ctx)
	img, err := e.api.ImageService().Get(ctx, "docker.io/"+image)
	if err != nil {
		return err
	}
	img.Name = "docker.io/" + ref
	_, err = e.api.ImageService().Create(ctx, img)
	if cerrdefs.IsAlreadyExists(err) {
		_, err = e.api.ImageService().Update(ctx, img)
	}
	return err
}

func (e containerdImages) forget(ctx context.Context, ref string) error {
	full, err := backend.NormalizeImage(ref)
	if err != nil {
		return err
	}
	return e.api.ImageService().Delete(e.in(ctx), full, images.SynchronousDelete())
}

func (e *containerdEngine) proxy(t testing.TB) *proxy {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "e.sock"))
	must(t, err)
	return newProxy(t, l, dialer("unix", e.socket), forwardGRPC)
}

func (e *containerdEngine) creates(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, ".Containers/Create")
}

func (e *containerdEngine) streams() bool { return false }

func (e *containerdEngine) mounts() *regexp.Regexp { return containerMounts() }

const mib = 1 << 20

// inspect compares containerd's spec of a sandbox with the expected spec, field by field. A separate list for the
// system call filter is in backend/internal/seccomp.
func (e *containerdEngine) inspect(t *testing.T, b *testSandbox) {
	t.Helper()
	ctx := e.in(t.Context())
	c, err := e.api.LoadContainer(ctx, machinetest.ContainerID(b.s.Info().EngineID))
	must(t, err)
	labels, err := c.Labels(ctx)
	must(t, err)
	for label, want := range map[string]string{
		backend.LabelInstance: w.instance, backend.LabelRole: backend.RoleSandbox, backend.LabelID: b.s.ID(), backend.LabelRun: b.run.ID,
	} {
		if labels[label] != want {
			t.Errorf("label %s is %q, want %q", label, labels[label], want)
		}
	}
	got, err := c.Spec(ctx)
	must(t, err)
	if f := got.Linux.Seccomp; f == nil || f.DefaultAction != specs.ActErrno || len(f.Flags) != 0 || len(f.Architectures) == 0 || len(f.Syscalls) == 0 {
		t.Errorf("the filter: %+v", f)
	}
	got.Linux.Seccomp = nil
	// Remove the random endings of the names of directories and of the network namespace.
	own := e.state + "/sandboxes/" + c.ID() + "/"
	for i, m := range got.Mounts {
		for _, dir := range []string{own, e.state + "/guest/", e.state + "/workspaces/"} {
			if m.Type == "bind" && strings.HasPrefix(m.Source, dir) {
				got.Mounts[i].Source = dir
			}
		}
	}
	for i, ns := range got.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace && strings.HasPrefix(ns.Path, own) {
			got.Linux.Namespaces[i].Path = ""
		}
	}
	if got.Hooks != nil && gocmp.Diff(&specs.Hooks{}, got.Hooks) == "" {
		got.Hooks = nil
	}
	if diff := gocmp.Diff(goldenSpec(b, e.state, own), got, cmpopts.SortSlices(func(a, b specs.POSIXRlimit) bool { return a.Type < b.Type }),
		cmpopts.SortSlices(func(a, b specs.Mount) bool { return a.Destination < b.Destination }),
		cmpopts.SortSlices(func(a, b specs.LinuxNamespace) bool { return a.Type < b.Type })); diff != "" {
		t.Errorf("the spec (-want +got):\n%s", diff)
	}
}

// goldenSpec returns the guaranteed spec. It is written out, to ensure that a change of the driver is visible as a
// change of the guarantee. own is the sandbox's own directory.
func goldenSpec(b *testSandbox, state, own string) *specs.Spec {
	info := b.s.Info()
	uid := uint32(1000)
	if b == w.root || b == w.bridgedRoot {
		uid = 0
	}
	score := 0
	memory, pids, quota, period := int64(2048+10)*mib, int64(256+20), int64(100_000), uint64(100_000)
	swap := memory
	bind := func(from, at string, more ...string) specs.Mount {
		return specs.Mount{Type: "bind", Source: from, Destination: at, Options: append([]string{"bind", "nosuid", "nodev", "private"}, more...)}
	}
	golden := &specs.Spec{
		Version:  "1.0.2",
		Hostname: "workcell",
		Root:     &specs.Root{Path: "rootfs", Readonly: info.Root == backend.RootReadonly},
		Process: &specs.Process{
			User:            specs.User{UID: uid, GID: uid},
			Args:            append([]string{"/.workcell/workcell-guest"}, guestArguments(b)...),
			Env:             []string{"GODEBUG=", "GOGC=", "GOMAXPROCS=", "GOMEMLIMIT=", "GOTRACEBACK="},
			Cwd:             "/",
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			OOMScoreAdj:     &score,
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_FSIZE", Hard: uint64(fileLimit(b) * mib), Soft: uint64(fileLimit(b) * mib)}, {Type: "RLIMIT_NOFILE", Hard: 16384, Soft: 16384},
			},
		},
		Mounts: []specs.Mount{
			{Type: "proc", Source: "proc", Destination: "/proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/dev", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Type: "devpts", Source: "devpts", Destination: "/dev/pts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=64"}},
			{Type: "sysfs", Source: "sysfs", Destination: "/sys", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
			{Type: "mqueue", Source: "mqueue", Destination: "/dev/mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/dev/shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=536870912"}},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/tmp", Options: []string{
				"rw", "nosuid", "nodev", "exec", "size=268435456", "nr_inodes=65536", "mode=1777", fmt.Sprintf("uid=%d", uid), fmt.Sprintf("gid=%d", uid),
			}},
			bind(own, "/etc/hosts", "ro", "noexec"), bind(own, "/etc/hostname", "ro", "noexec"), bind(own, "/etc/resolv.conf", "ro", "noexec"),
			bind(state+"/guest/", "/.workcell", "ro"), bind(state+"/workspaces/", "/workspace", "rw"),
		},
		Linux: &specs.Linux{
			RootfsPropagation: "private",
			CgroupsPath:       "/workcell/" + machinetest.ContainerID(info.EngineID),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace}, {Type: specs.NetworkNamespace},
			},
			Resources: &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: &memory, Swap: &swap},
				CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
				Pids:   &specs.LinuxPids{Limit: &pids},
				// The runtime adds null, zero, and similar devices.
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
			},
			Sysctl: map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"},
			MaskedPaths: append([]string{
				"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
			}, throttles()...),
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/sys/fs/cgroup"},
		},
	}
	if uid != 0 || golden.Root.Readonly {
		golden.Mounts = append(golden.Mounts, bind(own, "/etc/passwd", "ro", "noexec"), bind(own, "/etc/group", "ro", "noexec"))
	}
	return golden
}

// throttles returns the directory of each processor with a count of thermal throttling, in the order of the processors'
// numbers.
func throttles() (paths []string) {
	for cpu := range runtime.NumCPU() {
		paths = append(paths, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", cpu))
	}
	return paths
}
