package main

import (
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

	"github.com/workcell-dev/workcell/backend/docker"
)

// dockerOptions finds the engine where the docker command would: DOCKER_HOST with DOCKER_TLS_VERIFY and
// DOCKER_CERT_PATH, else the context that DOCKER_CONTEXT or `docker context use` names, else the platform's default.
func dockerOptions(e env) (*docker.Options, error) {
	dir := dockerConfigDir(e)
	opts := &docker.Options{ConfigDir: dir}
	if host := e.get("DOCKER_HOST"); host != "" {
		opts.Host = host
		if e.get("DOCKER_TLS_VERIFY") == "" {
			return opts, nil
		}
		certs := e.get("DOCKER_CERT_PATH")
		if certs == "" {
			certs = dir
		}
		var err error
		opts.TLS, err = dockerTLS(certs)
		return opts, err
	}
	name := e.get("DOCKER_CONTEXT")
	if name == "" {
		var err error
		if name, err = currentContext(dir); err != nil {
			return nil, err
		}
	}
	if name == "" || name == "default" {
		return opts, nil
	}
	return opts, useContext(opts, dir, name)
}

// dockerAddress says where the engine is looked for, and who says so. Passwords in it are not shown.
func dockerAddress(e env) string {
	opts, err := dockerOptions(e)
	if err != nil {
		return "nothing"
	}
	host, source := opts.Host, "DOCKER_HOST"
	if e.get("DOCKER_HOST") == "" {
		source = "the docker command's context"
		if e.get("DOCKER_CONTEXT") != "" {
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

// dockerConfigDir is the directory of config.json, which also holds the registries' credentials; empty when there is none.
func dockerConfigDir(e env) string {
	if dir := e.get("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// currentContext reads which context `docker context use` chose, empty for none.
func currentContext(dir string) (string, error) {
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
		return "", fail(exitUnavailable, fmt.Errorf("cannot read Docker's config.json: %w", err),
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
		return fail(exitUnavailable, fmt.Errorf("cannot read the Docker context %q: %w", name, err),
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
	hint := "the directory must hold ca.pem, cert.pem and key.pem, see DOCKER_CERT_PATH"
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, fail(exitUnavailable, fmt.Errorf("engine certificates: %w", err), hint)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fail(exitUnavailable, errors.New("engine certificates: ca.pem holds no certificate"), hint)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, fail(exitUnavailable, fmt.Errorf("engine certificates: %w", err), hint)
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}
