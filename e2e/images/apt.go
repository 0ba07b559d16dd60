package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// packageSource resolves and downloads Debian packages without changing the host's installed packages.
type packageSource struct {
	dir     string // private state; removed by the creator
	private bool   // use separate package lists instead of the host's lists
	log     io.Writer
	fetched map[string][]string // results of fetch, by wanted packages
}

// CanBuild returns an error if the host lacks build requirements: apt and dpkg of Debian 12. The error names the
// missing requirement.
func CanBuild() error {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("images: %s is not installed", tool)
		}
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return fmt.Errorf("images: which system this is: %w", err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(release)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		fields[k] = strings.Trim(v, `"`)
	}
	if fields["ID"] != "debian" || fields["VERSION_ID"] != "12" {
		return fmt.Errorf("images: packages are taken from Debian 12, this is %q", fields["PRETTY_NAME"])
	}
	return nil
}

func newPackageSource(dir string, log io.Writer) (*packageSource, error) {
	s := &packageSource{dir: dir, log: log, fetched: map[string][]string{}}
	for _, d := range []string{"lists/partial", "cache", "none/partial", "debs/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("images: private package state: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return nil, fmt.Errorf("images: private package state: %w", err)
	}
	return s, nil
}

// fetch downloads the packages in want and all their dependencies, and returns the files, sorted by name.
func (s *packageSource) fetch(ctx context.Context, want []string) ([]string, error) {
	key := strings.Join(want, " ")
	if files, ok := s.fetched[key]; ok {
		return files, nil
	}
	files, err := s.tryFetch(ctx, want)
	if err != nil && !s.private && ctx.Err() == nil {
		// The host has no package lists, or they contain versions since removed from the archive.
		fmt.Fprintln(s.log, "the host's package lists are missing or old: fetching current ones")
		s.private = true
		if _, uerr := s.aptGet(ctx, "update"); uerr != nil {
			return nil, errors.Join(err, uerr)
		}
		files, err = s.tryFetch(ctx, want)
	}
	if err == nil {
		s.fetched[key] = files
	}
	return files, err
}

func (s *packageSource) tryFetch(ctx context.Context, want []string) ([]string, error) {
	args := append([]string{"install", "--no-install-recommends"}, want...)
	// Use an empty archive directory, because apt omits files in a filled archive directory from the list.
	none := "Dir::Cache::archives=" + filepath.Join(s.dir, "none") + "/"
	out, err := s.aptGet(ctx, append([]string{"-o", none, "--print-uris"}, args...)...)
	if err != nil {
		return nil, err
	}
	if _, err := s.aptGet(ctx, append([]string{"--download-only"}, args...)...); err != nil {
		return nil, err
	}
	names, err := parseURIs(out)
	if err != nil {
		return nil, err
	}
	files := make([]string, 0, len(names))
	for _, n := range names {
		f := filepath.Join(s.dir, "debs", n)
		if _, err := os.Stat(f); err != nil {
			return nil, fmt.Errorf("images: apt did not download %s: %w", n, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// parseURIs parses the output of --print-uris: 'URI' FILE SIZE HASH per line.
func parseURIs(out []byte) ([]string, error) {
	var names []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasPrefix(f[0], "'") {
			continue
		}
		if f[1] != filepath.Base(f[1]) || !strings.HasSuffix(f[1], ".deb") {
			return nil, fmt.Errorf("images: apt names an odd file %q", f[1])
		}
		names = append(names, f[1])
	}
	if len(names) == 0 {
		return nil, errors.New("images: apt resolved to no packages")
	}
	slices.Sort(names)
	return names, nil
}

// aptGet runs apt-get with the private state and returns the standard output.
func (s *packageSource) aptGet(ctx context.Context, args ...string) ([]byte, error) {
	user := "_apt"
	if os.Geteuid() == 0 {
		user = "root"
	}
	opts := []string{
		"-qq", "-y",
		"-o", "Dir::State::status=" + filepath.Join(s.dir, "status"),
		"-o", "Dir::Cache=" + filepath.Join(s.dir, "cache"),
		"-o", "Debug::NoLocking=1",
		"-o", "Acquire::Retries=3",
		"-o", "APT::Get::AllowUnauthenticated=false",
		// The private directories are not readable for apt's own user.
		"-o", "APT::Sandbox::User=" + user,
	}
	if s.private {
		opts = append(opts, "-o", "Dir::State::lists="+filepath.Join(s.dir, "lists"))
	}
	if !strings.Contains(strings.Join(args, " "), "Dir::Cache::archives=") {
		opts = append(opts, "-o", "Dir::Cache::archives="+filepath.Join(s.dir, "debs")+"/")
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(opts, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("images: apt-get %s: %v: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// packageFiles passes the files of a package to fn as a tar archive.
func packageFiles(ctx context.Context, deb string, fn func(io.Reader) error) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("images: unpack %s: %w", filepath.Base(deb), err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("images: unpack %s: %w", filepath.Base(deb), err)
	}
	err = fn(out)
	_, _ = io.Copy(io.Discard, out) // read the padding after the end of the archive, because dpkg-deb would die of SIGPIPE
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("images: unpack %s: %w: %s", filepath.Base(deb), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}
