package engines

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

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
		Absent: s.dockerAbsent,
		Fix: func(error) string {
			return "start Docker (Docker Desktop, `systemctl start docker`, or `dockerd`), let this user use it, " +
				"or point DOCKER_HOST at an engine"
		},
		at: s.dockerAddress,
	}
}

func (s Set) dockerAbsent(ctx context.Context) string {
	opts, err := s.dockerOptions()
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

// dockerOptions finds the engine where the docker command would: DOCKER_HOST with DOCKER_TLS_VERIFY and
// DOCKER_CERT_PATH, else the context that DOCKER_CONTEXT or `docker context use` names, else the platform's default.
func (s Set) dockerOptions() (*docker.Options, error) {
	dir := s.dockerConfigDir()
	opts := &docker.Options{ConfigDir: dir}
	if host := s.Env.Get("DOCKER_HOST"); host != "" {
		opts.Host = host
		if s.Env.Get("DOCKER_TLS_VERIFY") == "" {
			return opts, nil
		}
		certs := s.Env.Get("DOCKER_CERT_PATH")
		if certs == "" {
			certs = dir
		}
		var err error
		opts.TLS, err = dockerTLS(certs)
		return opts, err
	}
	name, err := s.dockerContext()
	if err != nil || name == "" || name == "default" {
		return opts, err
	}
	return opts, useContext(opts, dir, name)
}

// dockerAddress returns where the engine is looked for, and what says so, without passwords.
func (s Set) dockerAddress() string {
	opts, err := s.dockerOptions()
	if err != nil {
		return "nothing"
	}
	host, source := opts.Host, "DOCKER_HOST"
	if s.Env.Get("DOCKER_HOST") == "" {
		source = "the docker command's context"
		if s.Env.Get("DOCKER_CONTEXT") != "" {
			source = "DOCKER_CONTEXT"
		}
	}
	if host == "" {
		host, source = "the platform's own address", "DOCKER_HOST is not set"
		if runtime.GOOS != "windows" {
			host = "unix://" + dockerSocket
		}
	}
	u, err := url.Parse(host)
	switch {
	case err == nil && u.User != nil:
		host = u.Redacted()
	case err != nil && strings.Contains(host, "@"):
		host = "an address that is not shown"
	}
	return fmt.Sprintf("%s (%s)", host, source)
}

// dockerConfigDir returns the directory of config.json, which also holds the registries' credentials; empty when there is none.
func (s Set) dockerConfigDir() string {
	if dir := s.Env.Get("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// dockerContext returns the context that DOCKER_CONTEXT names or `docker context use` chose, empty for none.
func (s Set) dockerContext() (string, error) {
	if name := s.Env.Get("DOCKER_CONTEXT"); name != "" {
		return name, nil
	}
	dir := s.dockerConfigDir()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) || dir == "" {
		return "", nil
	}
	var config struct {
		CurrentContext string `json:"currentContext"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &config)
	}
	if err != nil {
		return "", hint.New(hint.Unavailable, fmt.Errorf("cannot read Docker's config.json: %w", err),
			"mend the file, or set DOCKER_HOST")
	}
	return config.CurrentContext, nil
}

// useContext takes the engine's address and its certificates from a context of the docker command.
func useContext(opts *docker.Options, dir, name string) error {
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	raw, err := os.ReadFile(filepath.Join(dir, "contexts", "meta", id, "meta.json"))
	var meta struct {
		Endpoints map[string]struct{ Host string }
	}
	if err == nil {
		err = json.Unmarshal(raw, &meta)
	}
	if err != nil {
		return hint.New(hint.Unavailable, fmt.Errorf("cannot read the Docker context %q: %w", name, err),
			"`docker context ls` lists the contexts; or set DOCKER_HOST")
	}
	opts.Host = meta.Endpoints["docker"].Host
	certs := filepath.Join(dir, "contexts", "tls", id, "docker")
	if _, err := os.Stat(filepath.Join(certs, "cert.pem")); err != nil {
		return nil // most contexts have no certificates
	}
	opts.TLS, err = dockerTLS(certs)
	return err
}

// dockerTLS loads ca.pem, cert.pem and key.pem.
func dockerTLS(dir string) (*tls.Config, error) {
	todo := "the directory must hold ca.pem, cert.pem and key.pem, see DOCKER_CERT_PATH"
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, hint.New(hint.Unavailable, fmt.Errorf("engine certificates: %w", err), todo)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, hint.New(hint.Unavailable, errors.New("engine certificates: ca.pem holds no certificate"), todo)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, hint.New(hint.Unavailable, fmt.Errorf("engine certificates: %w", err), todo)
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}
