package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
)

// Names of backends.
const (
	backendAuto       = "auto"
	backendDocker     = "docker"
	backendContainerd = "containerd"
	backendLocal      = "local"
)

// Where engines are when nothing else is said.
const (
	dockerSocket     = "/var/run/docker.sock"
	containerdSocket = "/run/containerd/containerd.sock"
)

// driver is a kind of engine that this build knows. It is opened only when it is asked for.
type driver struct {
	name   string
	open   func(context.Context) (backend.SandboxBackend, error)
	absent func(context.Context) string // why the engine does not answer, in words for people; empty when not known
	fix    func(error) string           // how to get such an engine, given why it cannot be used
	at     func() string                // where it is looked for and who says so; nil when it is nowhere else
}

// connect opens the engine. Where that fails, the error says what was tried and the hint what to do.
func (d driver) connect(ctx context.Context) (backend.SandboxBackend, error) {
	b, err := d.open(ctx)
	wrong := errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrInvalid)
	if !wrong || d.at == nil || ctx.Err() != nil {
		return b, err
	}
	hint := "`workcell doctor` says what is missing"
	if fix := d.fix(err); fix != "" {
		hint = fix + "\n" + hint
	}
	return nil, fail(exitUnavailable, fmt.Errorf("%w; tried %s", err, d.at()), hint)
}

// drivers are the engines this build knows, in the order in which doctor shows them.
func (a *app) drivers() []driver {
	return []driver{a.dockerDriver(), a.containerdDriver(), a.localDriver()}
}

// driver gives the driver of a name.
func (a *app) driver(name string) (driver, error) {
	names := []string{backendAuto}
	for _, d := range a.drivers() {
		if d.name == name {
			return d, nil
		}
		names = append(names, d.name)
	}
	return driver{}, usageError(fmt.Errorf("there is no backend %q", name), "backends: "+strings.Join(names, ", "))
}

func (a *app) dockerDriver() driver {
	return driver{
		name: backendDocker,
		open: func(ctx context.Context) (backend.SandboxBackend, error) {
			opts, err := dockerOptions(a.env)
			if err != nil {
				return nil, err
			}
			opts.Logger, opts.Patience = a.logger(), enginePatience
			return asBackend(docker.New(ctx, opts))
		},
		absent: a.dockerAbsent,
		fix: func(error) string {
			return "start Docker (Docker Desktop, `systemctl start docker`, or `dockerd`), let this user use it, " +
				"or point DOCKER_HOST at an engine"
		},
		at: func() string { return dockerAddress(a.env) },
	}
}

// asBackend keeps a nil driver from becoming an interface that is not nil.
func asBackend[B backend.SandboxBackend](b B, err error) (backend.SandboxBackend, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// engineDir is where an engine that has no store of its own, or none for everything, keeps what belongs to its sandboxes:
// one place for all commands of root, and one for each other user.
func (a *app) engineDir(name string) (string, error) {
	if os.Geteuid() == 0 {
		return filepath.Join("/var/lib/workcell", name), nil
	}
	base, err := a.xdgState()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, "workcell", name), nil
}

func (a *app) dockerAbsent(ctx context.Context) string {
	opts, err := dockerOptions(a.env)
	if err != nil {
		return ""
	}
	if opts.Host == "" && runtime.GOOS != "windows" {
		opts.Host = "unix://" + dockerSocket
	}
	if path, ok := strings.CutPrefix(opts.Host, "unix://"); ok {
		return socketProblem(ctx, path)
	}
	return ""
}

// socketProblem says why nobody answers on a Unix socket.
func socketProblem(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		conn.Close()
		return "something listens on " + path + " but gives no proper answer"
	case errors.Is(err, fs.ErrNotExist):
		return "it is not here: there is no socket " + path
	case errors.Is(err, fs.ErrPermission):
		return "this user may not use the socket " + path
	case errors.Is(err, syscall.ECONNREFUSED):
		return "it does not run: nobody listens on " + path
	default:
		return ""
	}
}
