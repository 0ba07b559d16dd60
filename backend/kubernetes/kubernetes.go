// Package kubernetes runs sandboxes as pods of a cluster.
//
// A sandbox is one pod and conforms to the restricted Pod Security Standard. The main process is the Workcell guest
// agent. The pod has a numeric non-root user, no capabilities, no privilege escalation, the runtime's system call
// filter, a read-only root (unless the Spec requests a writable root), no service account token, and no service links.
// Host and guest agent communicate over pods/exec. Therefore no process listens on the pod's network, and the
// communication is not in the node's logs, as it would be with pods/attach.
//
// If Options.StorageClass is set, the workspace is a persistent volume and survives a stop. Otherwise it is an
// emptyDir, which is deleted with the pod. docs/operations/kubernetes.md has the complete list of settings and the
// driver's Role.
//
// # Networks
//
// Both network modes use NetworkPolicies, which only have an effect if the cluster's network plugin enforces them. The
// driver cannot detect this, so Create fails with ErrUnsupported unless Options.NetworkPolicyEnforced is set.
// Backend.TryNetwork tests the enforcement with pods.
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
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const name = "kubernetes"

// Options configure New. A nil *Options and the zero value select the defaults.
type Options struct {
	// Kubeconfig is the path of the kubeconfig file. If empty, it defaults to the files in the variable KUBECONFIG, then
	// to ~/.kube/config, then to the in-cluster configuration if the program runs in a pod.
	Kubeconfig string
	// Context is the kubeconfig context. If empty, it defaults to the current context.
	Context string
	// Config replaces Kubeconfig and Context, for programs with an existing configuration.
	Config *rest.Config
	// Namespace is the namespace of sandboxes. If empty, it defaults to the namespace of the context, or to "default".
	Namespace string

	// GuestImage is the reference of an image with the guest agent, see `workcell guest image`. An init container
	// copies the guest agent from this image. If empty, every sandbox image must contain the guest agent at /.workcell,
	// which makes the start one second faster.
	GuestImage string
	// GuestVolume mounts GuestImage as a volume instead of copying the guest agent. This is as fast as an image with an
	// included guest agent. It requires Kubernetes 1.33 and a container runtime with support for image volumes.
	GuestVolume bool
	// StorageClass is the storage class of workspace volumes. If empty, a workspace is an emptyDir, which is deleted
	// when the sandbox stops.
	StorageClass string
	// RuntimeClasses are the RuntimeClasses allowed as a sandbox's OCI runtime.
	RuntimeClasses []string
	// NetworkPolicyEnforced declares that the cluster enforces NetworkPolicies. If false, Create always fails.
	NetworkPolicyEnforced bool
	// NodeSelector, Tolerations, PriorityClass, and ImagePullSecrets apply to every pod.
	NodeSelector     map[string]string
	Tolerations      []corev1.Toleration
	PriorityClass    string
	ImagePullSecrets []string
	// Labels and Annotations are added to every pod. New rejects the driver's own keys.
	Labels, Annotations map[string]string

	// Images is the policy for images. If nil, all images are allowed.
	Images *backend.ImagePolicy
	// Limits override the defaults if they are not zero.
	Limits backend.Limits
	// AllowNets lists private addresses to which bridged sandboxes may connect. DenyNets lists public addresses to which
	// they may not connect, for example of pods. If both contain an address, the longer prefix counts.
	AllowNets, DenyNets []netip.Prefix
	// DNSNamespace, DNSLabels, and DNSPort select the pods and the port of the cluster's resolver for bridged sandboxes.
	// If empty, they default to "kube-system", "k8s-app=kube-dns", and 53.
	DNSNamespace string
	DNSLabels    map[string]string
	DNSPort      int32
	// CallTimeout bounds one call of the API. If zero, it defaults to 2 minutes.
	CallTimeout time.Duration
	// Patience is how long the API server may leave a call unanswered before the call fails with ErrUnavailable. If
	// zero, it defaults to 5 seconds.
	Patience time.Duration
	// PullTimeout bounds the time from a pod's creation to the first response of the guest agent. This includes
	// scheduling and image pulls. If zero, it defaults to 30 minutes.
	PullTimeout time.Duration
	// NodeTimeout is how long a pod may wait for a node with room or for its volume, for example until an autoscaler adds
	// a node. If zero, it defaults to 30 seconds.
	NodeTimeout time.Duration
	// Guest replaces the embedded guest agent. This driver only uses the version.
	Guest *backend.Guest
	// TracerProvider creates the spans. If nil, the driver uses the provider of the span in the caller's context.
	TracerProvider trace.TracerProvider
	// Logger receives information only for operators, not for callers. If nil, log messages are discarded.
	Logger *slog.Logger
}

// Backend is a [backend.SandboxBackend] in one namespace of a cluster. It is safe for concurrent use. Streams of Dial
// stay open after Close.
type Backend struct {
	*common
	d *driver
}

type common = kit.Driver // alias to avoid an exported field name in Backend

// driver implements the engine-specific methods for Kubernetes.
type driver struct {
	backend.Unsupported

	opts   Options
	config *rest.Config
	http   *http.Client // HTTP client of api; streams use other connections
	api    *clients
	calls  *kit.Calls

	first waiting
	// handshakes caches the TLS sessions for streams to resume, because each stream is a connection and a new pod is
	// tried many times. It is nil if the client's certificate may change, because a resumed session would keep the old
	// certificate.
	handshakes tls.ClientSessionCache
	isolation  sync.Map // RuntimeClass -> backend.Isolation, see classes
	env        sync.Map // image or sandbox ID -> []string, see keepEnv
}

// New connects to a cluster. ctx and Options.Patience bound the connection attempt. If the server does not respond, New
// returns ErrUnavailable.
func New(ctx context.Context, opts *Options) (*Backend, error) {
	d := &driver{opts: *cmp.Or(opts, &Options{})}
	o := &d.opts
	o.AllowNets, o.DenyNets, o.DNSLabels = slices.Clone(o.AllowNets), slices.Clone(o.DenyNets), maps.Clone(o.DNSLabels)
	o.RuntimeClasses = slices.Clone(o.RuntimeClasses)
	o.NodeSelector, o.ImagePullSecrets = maps.Clone(o.NodeSelector), slices.Clone(o.ImagePullSecrets)
	o.Tolerations, o.Labels, o.Annotations = slices.Clone(o.Tolerations), maps.Clone(o.Labels), maps.Clone(o.Annotations)
	if err := kit.Defaults(name, o.Limits, &o.Guest, &o.Logger); err != nil {
		return nil, err
	}
	if o.GuestVolume && o.GuestImage == "" {
		return nil, fmt.Errorf("kubernetes: Options.GuestVolume requires Options.GuestImage: %w", backend.ErrInvalid)
	}
	keys := errors.Join(checkKeys("label", o.Labels), checkKeys("annotation", o.Annotations))
	if err := errors.Join(o.checkBridge(), keys); err != nil {
		return nil, err
	}
	kit.Times(&o.CallTimeout, &o.Patience, &o.PullTimeout)
	o.NodeTimeout = cmp.Or(max(o.NodeTimeout, 0), crowded)
	if err := d.configure(); err != nil {
		return nil, err
	}
	d.calls = kit.New(kit.Options{
		Name: name, Log: o.Logger, Tracer: o.TracerProvider, Limit: o.CallTimeout, Patience: o.Patience, Classify: classify,
		Ping: func(ctx context.Context) error { _, err := d.version(ctx); return err }, // needs no permission
	})
	if _, err := d.Ping(ctx); err != nil {
		return nil, errors.Join(err, d.calls.Close(d.Release))
	}
	if err := d.classes(ctx, o.RuntimeClasses...); err != nil {
		return nil, errors.Join(err, d.calls.Close(d.Release))
	}
	return &Backend{kit.NewDriver(d, d.calls, o.Images, o.Limits), d}, nil
}

// configure locates the cluster and creates the clients.
func (d *driver) configure() error {
	config, namespace, err := load(&d.opts)
	if err != nil {
		return err
	}
	d.config, d.opts.Namespace = rest.CopyConfig(config), namespace
	d.config.UserAgent = "workcell"
	if d.config.QPS == 0 { // the client's default of 5 requests per second is for command-line tools
		d.config.QPS, d.config.Burst = 100, 200
	}
	if d.config.ExecProvider == nil && d.config.AuthProvider == nil {
		d.handshakes = tls.NewLRUClientSessionCache(1)
	}
	// Certificate files are read once. Otherwise the client would watch them for the lifetime of the process.
	if err = rest.LoadTLSFiles(d.config); err != nil {
		return fmt.Errorf("kubernetes: cannot read the cluster's certificates: %.300v: %w", err, backend.ErrInvalid)
	}
	if config.CAFile != "" { // the client reads this file again every five minutes, unless CAData is set
		d.config.CAData = config.CAData
	}
	if d.http, err = rest.HTTPClientFor(d.config); err == nil {
		d.api, err = newClients(d.config, d.http, d.opts.Namespace)
	}
	if err != nil {
		return fmt.Errorf("kubernetes: invalid cluster configuration: %.300v: %w", err, backend.ErrInvalid)
	}
	return nil
}

// Locate returns the cluster's address and the namespace selected by the options. It sends no request.
func Locate(opts *Options) (server, namespace string, err error) {
	config, namespace, err := load(opts)
	if err != nil {
		return "", "", err
	}
	return config.Host, namespace, nil
}

// load returns the configuration and the namespace of the options. It finds the configuration like kubectl does.
func load(o *Options) (*rest.Config, string, error) {
	if o.Config != nil {
		return o.Config, cmp.Or(o.Namespace, "default"), nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.Context}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	switch {
	case err == nil:
	case clientcmd.IsEmptyConfig(err) && o.Kubeconfig == "":
		return nil, "", fmt.Errorf("kubernetes: no kubeconfig found, and the program does not run in a pod: %w",
			backend.ErrUnavailable)
	default: // with the path, because the user specified it
		return nil, "", fmt.Errorf("kubernetes: invalid kubeconfig: %.300v: %w", err, backend.ErrInvalid)
	}
	if config.ExecProvider != nil {
		if err := startInRoot(config.ExecProvider); err != nil {
			return nil, "", err
		}
	}
	namespace, _, _ := loader.Namespace() // empty if it fails
	return config, cmp.Or(o.Namespace, namespace, "default"), nil
}

// startInRoot makes a kubeconfig's credential program start in the root directory. The client would start it in the
// working directory, which may be a hostile repository with a module for python -m.
func startInRoot(plugin *api.ExecConfig) error {
	command, err := exec.LookPath(plugin.Command)
	if err != nil {
		return nil // the client reports the error
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		return fmt.Errorf("kubernetes: the credential program of the kubeconfig requires sh;"+
			" install it, or use a token or a certificate: %w", backend.ErrUnsupported)
	}
	plugin.Command, plugin.Args = shell, append([]string{"-c", `cd / && exec "$0" "$@"`, command}, plugin.Args...)
	return nil
}

// version is like the client's ServerVersion, which does not take a context.
func (d *driver) version(ctx context.Context) (v version.Info, err error) {
	text, err := d.api.core.Get().AbsPath("/version").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	return v, err
}

// Ping returns information about the server.
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

// Identity returns the UID of the namespace. The UID identifies the namespace among all namespaces of all clusters,
// regardless of the cluster's address.
func (b *Backend) Identity(ctx context.Context) (string, error) {
	return kit.Admit(ctx, b.d.calls, "", func(ctx context.Context) (string, error) {
		ns, err := kit.Call(ctx, b.d.calls, "get namespace", kit.With(b.d.api.namespaces.Get, b.d.opts.Namespace))
		if err != nil {
			return "", err
		}
		return string(ns.UID), nil
	})
}

// Capabilities returns the capabilities of every cluster. Process limits are not included, because they are a setting
// of the nodes. Isolation omits RuntimeClasses that could not be read yet.
func (d *driver) Capabilities() backend.Capabilities {
	isolation := map[string]backend.Isolation{"": backend.IsolationContainer} // the default differs between nodes
	for name, i := range d.isolation.Range {
		isolation[name.(string)] = i.(backend.Isolation)
	}
	return backend.Capabilities{
		Memory: true, CPU: true, Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkBridge},
		OCIRuntimes: d.opts.RuntimeClasses, Isolation: isolation, Persistent: d.opts.StorageClass != "", Forgeable: true,
		WritableRoot: true, RootEnforcement: backend.WorkspaceWatched,
	}
}

// classes determines the isolation of RuntimeClasses by their handlers, which never change. It ignores a missing class
// and a class without the permission to read it.
func (d *driver) classes(ctx context.Context, names ...string) error {
	for _, name := range names {
		class, err := kit.Call(ctx, d.calls, "get RuntimeClass", kit.With(d.api.classes.Get, name))
		switch {
		case err == nil:
			d.isolation.Store(name, backend.RuntimeIsolation(class.Handler))
		case kit.Ignore(err, backend.ErrNotFound, backend.ErrPermission) != nil:
			return err
		default:
			d.opts.Logger.WarnContext(ctx,
				"kubernetes: the isolation of a RuntimeClass is unknown; allow `get` of runtimeclasses",
				"class", name, "error", err)
		}
	}
	return nil
}

// Enforcement returns WorkspaceWatched, because volumes of most storage classes are directories without a size limit.
func (d *driver) Enforcement(context.Context) (backend.Enforcement, error) {
	return backend.WorkspaceWatched, nil
}

// Release closes idle connections and waiting streams.
func (d *driver) Release() error {
	d.first.end()
	d.http.CloseIdleConnections()
	return nil
}

// CommitEnvironment returns ErrUnsupported, because a pod's files cannot be saved for other pods.
func (d *driver) CommitEnvironment(context.Context, string) error {
	return fmt.Errorf("kubernetes: shared package environments are not supported;"+
		" use an image that includes the packages: %w", backend.ErrUnsupported)
}

var _ backend.SandboxBackend = (*Backend)(nil)
