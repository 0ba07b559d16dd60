// Package engines is the one list of what can run sandboxes here: where each engine is found by the environment, as its
// own commands find it, how it is opened, and what to say when it cannot be used.
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

// patience is how long an engine may say nothing before it is given up: with starting and reporting a command stays
// below 5 s.
const patience = 4 * time.Second

// Set is the engines that an environment leads to.
type Set struct {
	Env environ.Lookup
	// Machine tells this machine from others whose state is in the same place; empty where it is of one machine alone.
	Machine string
	Logger  *slog.Logger
	Notice  func(text string) // is called when auto does not take Docker

	Cluster config.Kubernetes
}

// Engine is a kind of engine that this build knows. It is opened only when it is asked for.
type Engine struct {
	Name   string
	open   func(context.Context) (backend.SandboxBackend, error)
	Absent func(context.Context) string // why it does not answer, in words for people; empty when that is not known
	Fix    func(error) string           // how to get such an engine, given why it cannot be used
	at     func() string                // where it is looked for and who says so; nil when it is nowhere else
	// TryNetwork tests whether the engine isolates a sandbox without a network, and returns the targets that such a
	// sandbox does not reach; nil if the engine isolates them itself.
	TryNetwork func(ctx context.Context, image string) ([]string, error)
}

// Open opens the engine. When that fails, the error names what was tried and its hint what to do.
func (e Engine) Open(ctx context.Context) (backend.SandboxBackend, error) {
	b, err := e.open(ctx)
	wrong := errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrInvalid)
	if !wrong || e.at == nil || ctx.Err() != nil {
		return b, err
	}
	todo := "run `workcell doctor` to check your setup"
	if fix := e.Fix(err); fix != "" {
		todo = fix + "\n" + todo
	}
	return nil, hint.New(hint.Unavailable, fmt.Errorf("%w; tried %s", err, e.at()), todo)
}

// leftOut returns an engine that this build was made without, by the tag no_NAME.
func leftOut(name string) Engine {
	why := fmt.Sprintf("not included in this build (build tag no_%s)", name)
	todo := "use a workcell build that includes " + name
	return Engine{
		Name: name,
		open: func(context.Context) (backend.SandboxBackend, error) {
			return nil, hint.New(hint.Unavailable, fmt.Errorf("%s: %w: %s", name, backend.ErrUnavailable, why), todo)
		},
		Absent: func(context.Context) string { return why },
		Fix:    func(error) string { return todo },
	}
}

// All returns the engines that this build knows, in the order in which doctor shows them.
func (s Set) All() []Engine { return []Engine{s.docker(), s.containerd(), s.local(), s.kubernetes()} }

// Named returns the engine of a name, which is not Auto.
func (s Set) Named(name string) (Engine, error) {
	names := []string{Auto}
	for _, e := range s.All() {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return Engine{}, hint.New(hint.Usage, fmt.Errorf("unknown backend %q", name), "backends: "+strings.Join(names, ", "))
}

// Open opens the engine of a name, or the one that Auto chooses.
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

// ID returns what tells the engine of a name from the others whose sandboxes are in the same state file or database. It
// shows no address, which may hold a password. A cluster is asked for it.
func (s Set) ID(ctx context.Context, name string) (string, error) {
	address := ""
	switch name {
	case Kubernetes:
		id, err := s.kubernetesID(ctx)
		return idOf(name, id), err
	case Docker:
		address = s.dockerID()
	case Containerd:
		address = s.containerdID()
	case Local:
		address, _ = s.stateDir(name) // the driver found it
	}
	if s.Machine != "" && isHere(address) {
		address = s.Machine + " " + address
	}
	return idOf(name, address), nil
}

func idOf(name, address string) string {
	sum := sha256.Sum256([]byte(address))
	return name + "-" + hex.EncodeToString(sum[:6])
}

// isHere reports whether an address means another engine on another machine: a socket or a directory, not a host.
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

// Environ returns the variables by which another process finds the same engines. Relative directories are made
// absolute, and the Docker context is the one of now: somebody may choose another one meanwhile.
func (s Set) Environ() ([]string, error) {
	var vars []string
	for _, name := range []string{
		"PATH", "HOME", "TMPDIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION",
		"CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE", "CONTAINERD_SNAPSHOTTER",
		"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSH_AUTH_SOCK",
	} {
		if v, ok := s.Env(name); ok {
			vars = append(vars, name+"="+v)
		}
	}
	for name, v := range map[string]string{
		"WORKCELL_KUBE_CONTEXT": s.Cluster.Context, "WORKCELL_KUBE_NAMESPACE": s.Cluster.Namespace,
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
	for _, name := range []string{"DOCKER_CONFIG", "DOCKER_CERT_PATH"} {
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

// stateDir returns the directory where an engine that has no store of its own, or none for everything, keeps what
// belongs to its sandboxes: one place for all commands of root, and one for each other user.
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

// asBackend keeps a nil driver from becoming an interface that is not nil.
func asBackend[B backend.SandboxBackend](b B, err error) (backend.SandboxBackend, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// socketProblem returns why nobody answers on a Unix socket.
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
		return "permission denied: " + path
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: " + path + "; is it running?"
	default:
		return ""
	}
}
