// Package kubernetes runs sandboxes as pods of a cluster.
//
// A sandbox is one pod whose main process is the Workcell guest, under the restricted Pod Security Standard: a numeric
// non-root user, no capabilities, no privilege escalation, the runtime's own system call filter, a read-only root
// (unless the Spec asks for a writable one), no service account token and no service links. Host and guest speak over
// pods/exec; nothing listens on the pod's network, and nothing of what is said lies in the node's logs, as it would
// with pods/attach.
//
// The workspace is a persistent volume where Options.StorageClass names a class, and survives a stop; else it is an
// emptyDir, which goes with the pod. docs/kubernetes.md has the whole list, and the Role that the driver needs.
//
// # Networks
//
// Both network modes are NetworkPolicies, which bind only if the cluster's network plugin enforces them. The driver
// cannot see that, so Create fails with ErrUnsupported without Options.NetworkPolicyEnforced. Backend.TryNetwork tests
// it with pods.
//
// # Spans
//
// kubernetes.Create, kubernetes.Start, kubernetes.Stop, kubernetes.Dial, kubernetes.Remove.
package kubernetes

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const name = "kubernetes"

// Options refine New. The zero value, and nil, mean the defaults named at each field.
type Options struct {
	// Kubeconfig is the file that names the cluster. Empty: the cluster in whose pod the program runs, else the files of
	// the variable KUBECONFIG, else ~/.kube/config.
	Kubeconfig string
	// Context is the one of the kubeconfig; empty is its current one.
	Context string
	// Config replaces Kubeconfig and Context for a program that has a configuration already.
	Config *rest.Config
	// Namespace is where sandboxes are. Empty is that of the context, else "default".
	Namespace string

	// GuestImage is the reference of the image that has the guest, see `workcell guest image`. An init container copies it
	// from there. Empty: every sandbox's own image has it at /.workcell, which is faster by a second.
	GuestImage string
	// GuestVolume mounts GuestImage as a volume instead of copying from it: as fast as an image that has the guest, and
	// needs Kubernetes 1.33 with a container runtime that can.
	GuestVolume bool
	// StorageClass is that of the workspaces' volumes. Empty: a workspace is an emptyDir, which goes when its sandbox
	// stops.
	StorageClass string
	// RuntimeClasses are what a sandbox may name as its OCI runtime.
	RuntimeClasses []string
	// NetworkPolicyEnforced declares that the cluster enforces NetworkPolicies. Without it, no sandbox is created.
	NetworkPolicyEnforced bool
	// NodeSelector, Tolerations, PriorityClass, and ImagePullSecrets are those of every pod.
	NodeSelector     map[string]string
	Tolerations      []corev1.Toleration
	PriorityClass    string
	ImagePullSecrets []string
	// Labels and Annotations are added to every pod. New refuses keys that the driver sets.
	Labels, Annotations map[string]string

	// Images are those that may be used; nil allows all.
	Images *backend.ImagePolicy
	// Limits replace the defaults where not zero.
	Limits backend.Limits
	// AllowNets are addresses that bridged sandboxes may reach although they are private.
	AllowNets []netip.Prefix
	// CallTimeout bounds one call of the API; 0 means 2 minutes.
	CallTimeout time.Duration
	// Patience is how long the API server may answer nothing before a call fails with ErrUnavailable; 0 means 5 s.
	Patience time.Duration
	// PullTimeout bounds the time from a pod's creation to its guest's first answer, in which its node may have to be
	// found and its image to be pulled; 0 means 30 minutes.
	PullTimeout time.Duration
	// Guest replaces the guest that the library carries, of which only the version counts here.
	Guest *backend.Guest
	// TracerProvider makes the spans; nil means that of the span in the caller's context.
	TracerProvider trace.TracerProvider
	// Logger gets what operators may need and callers may not see; nil drops it.
	Logger *slog.Logger
}

// Backend is a [backend.SandboxBackend] on one namespace of a cluster. Its methods may be called concurrently. Streams
// of Dial and Connect outlive Close.
type Backend struct {
	*common
	d *driver
}

type common = kit.Driver // without a name of its own in Backend

// driver is what is the cluster's own.
type driver struct {
	backend.Unsupported

	opts   Options
	config *rest.Config
	http   *http.Client // of api; streams have connections of their own
	api    *clients
	log    *slog.Logger
	calls  *kit.Calls

	first waiting
	// handshakes are the sessions of TLS that streams resume: each is a connection, and a new pod is tried many times. Nil
	// where the client's certificate may change, which a session does not.
	handshakes tls.ClientSessionCache
	isolation  map[string]backend.Isolation // by RuntimeClass; see classes
	env        sync.Map                     // image id -> []string, what an image declares
}

// New connects to a cluster, within the bounds of ctx and Options.Patience. A server that does not answer is
// ErrUnavailable.
func New(ctx context.Context, opts *Options) (*Backend, error) {
	d := new(driver)
	if opts != nil {
		d.opts = *opts
	}
	o := &d.opts
	o.AllowNets, o.RuntimeClasses = slices.Clone(o.AllowNets), slices.Clone(o.RuntimeClasses)
	o.NodeSelector, o.ImagePullSecrets = maps.Clone(o.NodeSelector), slices.Clone(o.ImagePullSecrets)
	o.Tolerations, o.Labels, o.Annotations = slices.Clone(o.Tolerations), maps.Clone(o.Labels), maps.Clone(o.Annotations)
	if err := kit.Defaults(name, o.Limits, &o.Guest, &o.Logger); err != nil {
		return nil, err
	}
	if o.GuestVolume && o.GuestImage == "" {
		return nil, fmt.Errorf("kubernetes: Options.GuestVolume requires Options.GuestImage: %w", backend.ErrInvalid)
	}
	if slices.ContainsFunc(o.AllowNets, func(n netip.Prefix) bool { return !n.IsValid() }) {
		return nil, fmt.Errorf("kubernetes: invalid address in Options.AllowNets: %w", backend.ErrInvalid)
	}
	if err := errors.Join(checkKeys("label", o.Labels), checkKeys("annotation", o.Annotations)); err != nil {
		return nil, err
	}
	kit.Times(&o.CallTimeout, &o.Patience, &o.PullTimeout)
	d.log = o.Logger
	if err := d.configure(); err != nil {
		return nil, err
	}
	d.calls = kit.New(kit.Options{
		Name: name, Log: d.log, Tracer: o.TracerProvider, Limit: o.CallTimeout, Patience: o.Patience, Classify: classify,
		Ping: func(ctx context.Context) error { _, err := d.version(ctx); return err }, // which needs no permission
	})
	if _, err := d.Ping(ctx); err != nil {
		return nil, errors.Join(err, d.calls.Close(d.Release))
	}
	d.classes(ctx)
	return &Backend{kit.NewDriver(d, d.calls, o.Images, o.Limits), d}, nil
}

// configure finds the cluster and makes the clients.
func (d *driver) configure() error {
	config, namespace, err := load(&d.opts)
	if err != nil {
		return err
	}
	d.config, d.opts.Namespace = rest.CopyConfig(config), namespace
	d.config.UserAgent = "workcell"
	if d.config.QPS == 0 { // the client's 5 requests per second are for a command line
		d.config.QPS, d.config.Burst = 100, 200
	}
	if d.config.ExecProvider == nil && d.config.AuthProvider == nil {
		d.handshakes = tls.NewLRUClientSessionCache(1)
	}
	// Certificates that are files are read once: the client would watch them for as long as the process lives.
	if err = rest.LoadTLSFiles(d.config); err != nil {
		return fmt.Errorf("kubernetes: cannot read the cluster's certificates: %.300v: %w", err, backend.ErrInvalid)
	}
	if d.http, err = rest.HTTPClientFor(d.config); err == nil {
		d.api, err = newClients(d.config, d.http, d.opts.Namespace)
	}
	if err != nil {
		return fmt.Errorf("kubernetes: invalid cluster configuration: %.300v: %w", err, backend.ErrInvalid)
	}
	return nil
}

// Locate returns the address of the cluster that options lead to, and the namespace, without asking it.
func Locate(opts *Options) (server, namespace string, err error) {
	config, namespace, err := load(opts)
	if err != nil {
		return "", "", err
	}
	return config.Host, namespace, nil
}

// load returns the configuration of options, which is read as kubectl finds it, and the namespace.
func load(o *Options) (*rest.Config, string, error) {
	if o.Config != nil {
		return o.Config, cmp.Or(o.Namespace, "default"), nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
	config, err := loader.ClientConfig()
	switch {
	case err == nil:
	case clientcmd.IsEmptyConfig(err) && o.Kubeconfig == "":
		return nil, "", fmt.Errorf("kubernetes: no kubeconfig found, and the program does not run in a pod: %w", backend.ErrUnavailable)
	default: // with the path, because the user set it
		return nil, "", fmt.Errorf("kubernetes: invalid kubeconfig: %.300v: %w", err, backend.ErrInvalid)
	}
	if config.ExecProvider != nil {
		if err := startInRoot(config.ExecProvider); err != nil {
			return nil, "", err
		}
	}
	namespace, _, _ := loader.Namespace() // empty where it fails
	return config, cmp.Or(o.Namespace, namespace, "default"), nil
}

// startInRoot starts a kubeconfig's credential program in the root directory. The client would start it in the working
// directory, which may be a hostile repository with a module for python -m.
func startInRoot(plugin *api.ExecConfig) error {
	command, err := exec.LookPath(plugin.Command)
	if err != nil {
		return nil // the client reports it
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		return fmt.Errorf("kubernetes: the credential program of the kubeconfig requires sh;"+
			" install it, or use a token or a certificate: %w", backend.ErrUnsupported)
	}
	plugin.Command, plugin.Args = shell, append([]string{"-c", `cd / && exec "$0" "$@"`, command}, plugin.Args...)
	return nil
}

// version is ServerVersion of the client's, which takes no context.
func (d *driver) version(ctx context.Context) (v version.Info, err error) {
	text, err := d.api.core.Get().AbsPath("/version").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	return v, err
}

// Ping asks the server what it is.
func (d *driver) Ping(ctx context.Context) (backend.EngineInfo, error) {
	return kit.Call(ctx, d.calls, "version", func(ctx context.Context) (backend.EngineInfo, error) {
		v, err := d.version(ctx)
		if err != nil {
			return backend.EngineInfo{}, err
		}
		return backend.EngineInfo{
			Name: name, Version: v.GitVersion, API: v.Major + "." + v.Minor, OS: "linux", OCIRuntimes: d.opts.RuntimeClasses,
			Details: map[string]string{"namespace": d.opts.Namespace},
		}, nil
	})
}

// Identity returns what tells the namespace from all others, of all clusters and whatever its address is: its UID.
func (b *Backend) Identity(ctx context.Context) (string, error) {
	return kit.Admit(ctx, b.d.calls, "", func(ctx context.Context) (string, error) {
		ns, err := kit.Call(ctx, b.d.calls, "get namespace", kit.With(b.d.api.namespaces.Get, b.d.opts.Namespace))
		if err != nil {
			return "", err
		}
		return string(ns.UID), nil
	})
}

// Capabilities are those of every cluster: what bounds processes is a setting of its nodes.
func (d *driver) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Memory: true, CPU: true, Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkBridge},
		OCIRuntimes: d.opts.RuntimeClasses, WritableRoot: true, RootEnforcement: backend.WorkspaceWatched, Isolation: d.isolation,
		Persistent: d.opts.StorageClass != "", Forgeable: true,
	}
}

// classes determines the isolation of the RuntimeClasses by their handlers, which never change. A class that cannot be
// read counts as a container. The default runtime does too, because each node has its own.
func (d *driver) classes(ctx context.Context) {
	d.isolation = map[string]backend.Isolation{"": backend.IsolationContainer}
	for _, name := range d.opts.RuntimeClasses {
		class, err := kit.Call(ctx, d.calls, "get RuntimeClass", kit.With(d.api.classes.Get, name))
		if err != nil {
			d.log.WarnContext(ctx, "kubernetes: the isolation of a RuntimeClass is unknown; allow `get` of runtimeclasses",
				"class", name, "error", err)
			class = &nodev1.RuntimeClass{}
		}
		d.isolation[name] = backend.RuntimeIsolation(class.Handler)
	}
}

// Enforcement returns what holds a workspace to its limit: the guest. Most classes of volumes are directories.
func (d *driver) Enforcement(context.Context) (backend.Enforcement, error) {
	return backend.WorkspaceWatched, nil
}

// Release ends idle connections, and streams that wait.
func (d *driver) Release() error {
	d.first.end()
	d.http.CloseIdleConnections()
	return nil
}

// CommitEnvironment fails: a pod's files cannot be kept for other pods.
func (d *driver) CommitEnvironment(context.Context, string) error {
	return fmt.Errorf("kubernetes: shared package environments are not supported;"+
		" use an image that includes the packages: %w", backend.ErrUnsupported)
}

var _ backend.SandboxBackend = (*Backend)(nil)
