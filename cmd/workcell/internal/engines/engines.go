// Package engines lists the available backends. It finds each engine like the engine's own commands, for example in
// environment variables, and opens it. If an engine is not usable, it returns the reason and a remedy.
package engines

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/hint"
)

// Names of engines.
const (
	Auto       = "auto"
	Docker     = "docker"
	Containerd = "containerd"
	Local      = "local"
	Kubernetes = "kubernetes"
)

// Names are the names of Auto and of all engines, in the order of Set.All.
var Names = []string{Auto, Docker, Containerd, Local, Kubernetes}

// patience is the maximum time without an answer of an engine. With startup and error report, a command takes less than
// 5 s.
const patience = 4 * time.Second

// Set is the set of engines for an environment.
type Set struct {
	Env environ.Lookup
	// Machine distinguishes this host from other hosts with the same state database. It is empty if the state belongs to a
	// single host.
	Machine string
	Logger  *slog.Logger
	Notice  func(text string) // called if auto does not select Docker
	Waits   bool              // in a pod, Open waits for the API server

	Cluster config.Kubernetes
}

// Engine is a type of engine in this build. It is opened only on request.
type Engine struct {
	Name   string
	open   func(context.Context) (backend.SandboxBackend, error)
	id     func(context.Context) (string, error) // returns what distinguishes it from other engines of this type
	absent func(context.Context) string          // returns why it does not answer, as text; empty if unknown
	Fix    func(error) string                    // returns a remedy for the error of Open
	at     func() string                         // returns the address and its source; nil if only one address is possible
	// TryNetwork tests whether the engine isolates a sandbox without a network. It returns the unreachable targets of such
	// a sandbox. It is nil if the engine itself guarantees the isolation. images are the replacements of MapImages.
	TryNetwork func(ctx context.Context, image string, images map[string]string) ([]string, error)
}

// Open opens the engine. If this fails, the error contains the address, and the error's hint contains a remedy.
func (e Engine) Open(ctx context.Context) (backend.SandboxBackend, error) {
	b, err := e.open(ctx)
	unsupported := errors.Is(err, backend.ErrUnsupported)
	wrong := unsupported || e.at != nil && (errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrInvalid))
	if !wrong || ctx.Err() != nil {
		return b, err
	}
	todo := "run `workcell doctor` to check your setup"
	if fix := e.Fix(err); fix != "" && (e.at == nil || !unsupported) { // with an address, fixes are about connections
		todo = fix + "\n" + todo
	}
	if e.at != nil {
		err = fmt.Errorf("%w; tried %s", err, e.at())
	}
	return nil, hint.New(hint.Unavailable, err, todo)
}

// leftOut returns an engine outside of this build, because of the build tag no_NAME.
func leftOut(name string) Engine {
	why := fmt.Sprintf("not included in this build (build tag no_%s)", name)
	todo := "use a workcell build that includes " + name
	err := hint.New(hint.Unavailable, fmt.Errorf("%s: %w: %s", name, backend.ErrUnavailable, why), todo)
	return Engine{
		Name:   name,
		open:   func(context.Context) (backend.SandboxBackend, error) { return nil, err },
		id:     func(context.Context) (string, error) { return "", err },
		absent: func(context.Context) string { return why },
		Fix:    func(error) string { return todo },
	}
}

// All returns the engines of this build, in the order of doctor's output.
func (s Set) All() []Engine { return []Engine{s.docker(), s.containerd(), s.local(), s.kubernetes()} }

// Named returns the engine with a name. It does not accept Auto.
func (s Set) Named(name string) (Engine, error) {
	for _, e := range s.All() {
		if e.Name == name {
			return e, nil
		}
	}
	return Engine{}, hint.New(hint.Usage, fmt.Errorf("unknown backend %q", name), "backends: "+strings.Join(Names, ", "))
}

// Open opens the engine with a name. For Auto, it selects the engine.
func (s Set) Open(ctx context.Context, name string) (backend.SandboxBackend, error) {
	if name == Auto {
		return s.openAuto(ctx)
	}
	e, err := s.Named(name)
	if err != nil {
		return nil, err
	}
	return e.Open(ctx)
}

// ID returns an identifier of an engine. It distinguishes all engines whose sandboxes are in the same state file or
// database. It does not contain the address, which may contain a password. For a cluster, ID sends a request to it.
func (s Set) ID(ctx context.Context, name string) (string, error) {
	e, err := s.Named(name)
	if err != nil {
		return "", err
	}
	id, err := e.id(ctx)
	if s.Machine != "" && name != Kubernetes && isHere(id) { // a cluster has the same identity on all hosts
		id = s.Machine + " " + id
	}
	sum := sha256.Sum256([]byte(id))
	return name + "-" + hex.EncodeToString(sum[:6]), err
}

// isHere reports whether an address refers to a different engine on each host. This is true for a socket or a
// directory, and false for a host name.
func isHere(address string) bool {
	scheme, host, ok := strings.Cut(address, "://")
	if !ok || scheme == "unix" || scheme == "npipe" {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// Environ returns the environment variables with which another process finds the same engines. It makes relative
// directories absolute. It includes the current contexts of Docker and kubectl, because the user may select other
// contexts later. The other process reads no configuration file.
func (s Set) Environ() ([]string, error) {
	vars := []string{config.Variable + "=" + os.DevNull}
	for _, name := range []string{
		"PATH", "HOME", "TMPDIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
		"DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION",
		"CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE", "CONTAINERD_SNAPSHOTTER",
		"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSH_AUTH_SOCK",
		// For credential programs of a kubeconfig:
		"SSL_CERT_DIR", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ROLE_ARN", "AZURE_TENANT_ID",
		"AZURE_CLIENT_ID", "AAD_LOGIN_METHOD", "CLOUDSDK_ACTIVE_CONFIG_NAME",
	} {
		if v, ok := s.Env(name); ok {
			vars = append(vars, name+"="+v)
		}
	}
	kubeContext, namespace := s.kubernetesContext()
	for name, v := range map[string]string{
		"WORKCELL_KUBE_CONTEXT": kubeContext, "WORKCELL_KUBE_NAMESPACE": namespace,
		"WORKCELL_KUBE_GUEST_IMAGE": s.Cluster.GuestImage, "WORKCELL_KUBE_STORAGE_CLASS": s.Cluster.StorageClass,
	} {
		if v != "" {
			vars = append(vars, name+"="+v)
		}
	}
	if files := filepath.SplitList(s.Env.Get("KUBECONFIG")); len(files) > 0 {
		for i, file := range files {
			var err error
			if files[i], err = filepath.Abs(file); err != nil {
				return nil, err
			}
		}
		vars = append(vars, "KUBECONFIG="+strings.Join(files, string(filepath.ListSeparator)))
	}
	for _, name := range []string{
		"DOCKER_CONFIG", "DOCKER_CERT_PATH", "SSL_CERT_FILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_CONFIG_DIR", "CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS",
	} {
		if dir := s.Env.Get(name); dir != "" {
			dir, err := filepath.Abs(dir)
			if err != nil {
				return nil, err
			}
			vars = append(vars, name+"="+dir)
		}
	}
	if s.Env.Get("DOCKER_HOST") != "" {
		return vars, nil
	}
	name, err := s.dockerContext()
	return append(vars, "DOCKER_CONTEXT="+cmp.Or(name, "default")), err
}

// stateDir returns the directory for the sandbox data of an engine without a complete store. All commands of root share
// one directory, and each other user has a separate directory.
func (s Set) stateDir(name string) (string, error) {
	if os.Geteuid() == 0 {
		return filepath.Join("/var/lib/workcell", name), nil
	}
	base, err := s.Env.StateHome()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, "workcell", name), nil
}

// asBackend prevents a nil driver from becoming a non-nil interface.
func asBackend[B backend.SandboxBackend](b B, err error) (backend.SandboxBackend, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

const socketDenied = "permission denied: "

// socketProblem returns the reason why a Unix socket does not answer.
func socketProblem(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		conn.Close()
		return "unexpected response from socket " + path
	case errors.Is(err, fs.ErrNotExist):
		return "socket " + path + " not found; is it installed?"
	case errors.Is(err, fs.ErrPermission):
		return socketDenied + path
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: " + path + "; is it running?"
	default:
		return ""
	}
}
