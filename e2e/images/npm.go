package images

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// maxTarball is the maximum size of a download. The largest tarball, Claude Code, has about 175 MB.
const maxTarball = 200 << 20

// ErrIntegrity means that a downloaded tarball does not match its pinned digest.
var ErrIntegrity = errors.New("images: tarball does not match its pinned digest")

// fetchNPM downloads a pinned tarball to dir and returns the path. It uses the npm command, which knows the user's
// registry and credentials. If npm is not installed, it downloads the tarball from registry, which is as safe because
// of the pinned digest.
func fetchNPM(ctx context.Context, p NPMPackage, dir, registry string) (string, error) {
	// npm uses the same name for the tarball of a scoped package.
	base := strings.ReplaceAll(strings.TrimPrefix(p.Name, "@"), "/", "-")
	file := filepath.Join(dir, fmt.Sprintf("%s-%s.tgz", base, p.Version))
	var err error
	if _, lerr := exec.LookPath("npm"); lerr == nil {
		err = npmPack(ctx, p, dir)
	} else {
		err = download(ctx, tarballURL(registry, p), file)
	}
	if err != nil {
		return "", err
	}
	if err := checkIntegrity(file, p.Integrity); err != nil {
		return "", err
	}
	return file, nil
}

func npmPack(ctx context.Context, p NPMPackage, dir string) error {
	cmd := exec.CommandContext(ctx, "npm", "pack", "--silent", "--ignore-scripts",
		"--pack-destination", dir, p.Name+"@"+p.Version)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("images: npm pack %s@%s: %v: %s", p.Name, p.Version, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// npmView returns a field of a package from the registry, for a version or for "latest".
func npmView(ctx context.Context, name, version, field string) (string, error) {
	cmd := exec.CommandContext(ctx, "npm", "view", name+"@"+version, field)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("images: npm view %s@%s %s: %v: %s", name, version, field, err, bytes.TrimSpace(stderr.Bytes()))
	}
	if text := strings.TrimSpace(string(out)); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("images: npm view %s@%s: there is no %s", name, version, field)
}

func tarballURL(registry string, p NPMPackage) string {
	return fmt.Sprintf("%s/%s/-/%s-%s.tgz", strings.TrimRight(registry, "/"), p.Name, path.Base(p.Name), p.Version)
}

func download(ctx context.Context, url, file string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("images: download: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("images: download: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("images: download %s: %s", url, resp.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("images: download: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := io.Copy(f, io.LimitReader(resp.Body, maxTarball+1))
	if err != nil {
		return fmt.Errorf("images: download %s: %w", url, err)
	}
	if n > maxTarball {
		return fmt.Errorf("images: download %s: more than %d bytes", url, maxTarball)
	}
	return nil
}

func checkIntegrity(file, want string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("images: read %s: %w", filepath.Base(file), err)
	}
	got := "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil))
	if got != want {
		return fmt.Errorf("%w: %s has %s", ErrIntegrity, filepath.Base(file), got)
	}
	return nil
}

// place returns the destination of a file in the tarball, and whether the file is used.
func (p NPMPackage) place(name string) (string, bool) {
	// The registry's tarballs have one top-level directory, usually "package".
	_, rel, ok := strings.Cut(path.Clean(name), "/")
	if !ok {
		return "", false
	}
	if to, ok := p.Files[rel]; ok {
		return to, true
	}
	if to, ok := p.Files["./"]; ok {
		return to + rel, true
	}
	return "", false
}
