//go:build !no_docker

package engines

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/client"
	"github.com/docker/go-connections/tlsconfig"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/hint"
)

func (s Set) docker() Engine {
	return Engine{
		Name: Docker,
		open: func(ctx context.Context) (backend.SandboxBackend, error) {
			opts, err := s.dockerOptions()
			if err != nil {
				return nil, err
			}
			opts.Logger, opts.Patience = s.Logger, patience
			return asBackend(docker.New(ctx, opts))
		},
		id:     s.dockerID,
		absent: s.dockerAbsent,
		Fix: func(error) string {
			if strings.HasPrefix(s.dockerAbsent(context.Background()), socketDenied) {
				return "run `sudo usermod -aG docker $USER`, then log in again"
			}
			return "start Docker (Docker Desktop, `systemctl start docker`, or `dockerd`), give this user access to it, " +
				"or set DOCKER_HOST to an engine's address"
		},
		at: s.dockerAddress,
	}
}

// dockerID returns the address of the engine.
func (s Set) dockerID(context.Context) (string, error) {
	opts, err := s.dockerOptions()
	return cmp.Or(opts.Host, client.DefaultDockerHost), err
}

// dockerAbsent returns the reason why nothing answers on the engine's Unix socket. It is empty if the engine has
// another type of address.
func (s Set) dockerAbsent(ctx context.Context) string {
	opts, err := s.dockerOptions()
	if path, ok := strings.CutPrefix(cmp.Or(opts.Host, client.DefaultDockerHost), "unix://"); ok && err == nil {
		return socketProblem(ctx, path)
	}
	return ""
}

// dockerOptions finds the engine like the docker command: DOCKER_HOST with DOCKER_TLS_VERIFY and DOCKER_CERT_PATH, or
// the context of DOCKER_CONTEXT or `docker context use`, or the platform's default.
func (s Set) dockerOptions() (*docker.Options, error) {
	dir := s.dockerConfigDir()
	opts := &docker.Options{ConfigDir: dir, Host: s.Env.Get("DOCKER_HOST")}
	if opts.Host != "" {
		var err error
		if s.Env.Get("DOCKER_TLS_VERIFY") != "" {
			certs := cmp.Or(s.Env.Get("DOCKER_CERT_PATH"), dir)
			opts.TLS, err = dockerTLS(tlsconfig.Options{
				CAFile: filepath.Join(certs, "ca.pem"), CertFile: filepath.Join(certs, "cert.pem"),
				KeyFile: filepath.Join(certs, "key.pem"),
			})
		}
		return opts, err
	}
	name, err := s.dockerContext()
	if err != nil || name == "" || name == "default" {
		return opts, err
	}
	return opts, useContext(opts, dir, name)
}

// dockerAddress returns the address of the engine and the source of the address, without passwords.
func (s Set) dockerAddress() string {
	opts, err := s.dockerOptions()
	if err != nil {
		return "unknown address"
	}
	host, source := cmp.Or(opts.Host, client.DefaultDockerHost), "DOCKER_HOST is not set"
	switch {
	case s.Env.Get("DOCKER_HOST") != "":
		source = "DOCKER_HOST"
	case opts.Host != "" && s.Env.Get("DOCKER_CONTEXT") != "":
		source = "DOCKER_CONTEXT"
	case opts.Host != "":
		source = "current Docker context"
	}
	u, err := url.Parse(host)
	switch {
	case err == nil:
		host = u.Redacted()
	case strings.Contains(host, "@"):
		host = "hidden address"
	}
	return fmt.Sprintf("%s (%s)", host, source)
}

// useContext sets the engine's address and certificates from a context of the docker command.
func useContext(opts *docker.Options, dir, name string) error {
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	err := readJSON(&meta, dir, "contexts", "meta", id, "meta.json")
	if err != nil {
		return hint.New(hint.Unavailable, fmt.Errorf("cannot read the Docker context %q: %w", name, err),
			"run `docker context ls` to list contexts, or set DOCKER_HOST")
	}
	endpoint := meta.Endpoints["docker"]
	opts.Host = endpoint.Host
	if scheme, _, _ := strings.Cut(opts.Host, "://"); scheme == "unix" || scheme == "npipe" {
		return nil // the docker command also ignores certificates for sockets
	}
	certs := filepath.Join(dir, "contexts", "tls", id, "docker")
	file := func(name string) string {
		path := filepath.Join(certs, name)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return ""
		}
		return path
	}
	files := tlsconfig.Options{CAFile: file("ca.pem"), CertFile: file("cert.pem"), KeyFile: file("key.pem")}
	files.InsecureSkipVerify = endpoint.SkipTLSVerify
	if cmp.Or(files.CAFile, files.CertFile, files.KeyFile) != "" || endpoint.SkipTLSVerify {
		opts.TLS, err = dockerTLS(files)
	}
	return err
}

// dockerTLS loads the files of an engine's certificates.
func dockerTLS(files tlsconfig.Options) (*tls.Config, error) {
	files.ExclusiveRootPools = true
	config, err := tlsconfig.Client(files)
	if err != nil {
		return nil, hint.New(hint.Unavailable, fmt.Errorf("cannot load the engine certificates: %w", err),
			"the directory must contain ca.pem, cert.pem, and key.pem (see DOCKER_CERT_PATH)")
	}
	return config, nil
}
