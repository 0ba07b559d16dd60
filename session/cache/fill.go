package cache

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

const (
	fillDir    = backend.Workdir + "/.cache/fill" // directory in the sandbox for the command to fill
	hadDir     = session.CacheDir + "-had"        // directory in the sandbox with the cache's previous contents
	maxEntries = 1 << 19                          // maximum number of files and directories in a cache
	maxPath    = 4096                             // maximum length of a path in bytes, as in the kernel
	maxLinks   = 64 << 20                         // maximum total length of the paths and targets of symbolic links
	maxHops    = 40                               // maximum length of a chain of symbolic links, as in Linux
)

// FillOptions are options for Fill.
type FillOptions struct {
	Name string
	// Request describes the sandbox for the command. If Request has no network and no hosts, the command can reach the
	// cache's hosts. If Request sets no workspace limit, the limit is twice the cache's maximum size.
	Request session.Request
	Argv    []string // command; it gets the variables of Volume.Fill and the directory to fill in CACHE_DIR
	// Fresh discards the previous contents. Otherwise the command adds to them.
	Fresh          bool
	MaxBytes       int64 // maximum size of the cache in bytes; if zero, the volume's
	Stdout, Stderr io.Writer
}

// Fill runs a command in a temporary sandbox and adds the resulting files to a cache. Fill is atomic: if it fails, the
// cache does not change. It takes regular files and directories and makes them readable for all sandboxes. Relative
// symbolic links to files of the cache become hard links. It skips other symbolic links. The image needs sh, cp, and
// tar. If another process is filling the cache, Fill returns an error wrapping backend.ErrExists. If the cache exceeds
// the maximum size, the error wraps backend.ErrTooLarge.
func (s *Store) Fill(ctx context.Context, m *session.Manager, o FillOptions) (in Info, err error) {
	v, err := s.volume(o.Name)
	if err != nil {
		return in, err
	}
	if o.MaxBytes != 0 {
		v.MaxBytes = o.MaxBytes
	}
	unlock, err := s.lock(v.Name)
	if err != nil {
		return in, err
	}
	defer unlock()
	run := session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()}
	defer func() { err = errors.Join(err, m.CloseScope(context.WithoutCancel(ctx), run.Scope())) }()
	box, _, err := m.Open(ctx, run.Key(record.DefaultName), s.request(v, o))
	if err != nil {
		return in, err
	}
	if err := v.run(ctx, box, o); err != nil {
		return in, err
	}
	dir, err := s.begin(v.Name)
	if err == nil {
		if err = v.collect(ctx, box, dir); err == nil {
			err = s.publish(v.Name, dir)
		}
		err = errors.Join(err, os.RemoveAll(dir)) // does nothing after success, because publish has renamed the directory
	}
	if err != nil {
		return in, err
	}
	return s.info(v)
}

// request returns the request for a sandbox to fill a cache.
func (s *Store) request(v Volume, o FillOptions) session.Request {
	req := o.Request
	env := session.Cache{Env: v.Fill}.Variables(fillDir)
	env["CACHE_DIR"] = fillDir
	maps.Copy(env, req.Env)
	req.Env = env
	if _, err := os.Stat(s.files(v.Name)); err == nil && !o.Fresh {
		req.Mounts = append(slices.Clone(req.Mounts), backend.Mount{Source: s.files(v.Name), Target: hadDir})
	}
	if req.Network == "" && req.Egress.IsZero() && len(v.Hosts) > 0 {
		req.Egress = sandbox.Egress{Allow: v.Hosts}
	}
	if size := backend.LimitNamed("workspace_mb"); req.Limits.WorkspaceBytes == 0 {
		_, most := size.Bounds()
		req.Limits.WorkspaceBytes = min(2*v.MaxBytes, most*size.Scale)
	}
	return req
}

// run runs the command on a copy of the cache's previous contents.
func (v Volume) run(ctx context.Context, box *session.Session, o FillOptions) error {
	out := sandbox.Streams{Stdout: o.Stdout, Stderr: o.Stderr}
	const copyOld = "mkdir -p " + fillDir + "; [ ! -d " + hadDir + " ] || cp -R " + hadDir + "/. " + fillDir
	if err := succeed(ctx, box, out, "sh", "-c", copyOld); err != nil {
		return err
	}
	return succeed(ctx, box, out, o.Argv...)
}

// succeed runs a command and returns an error if the exit code is not zero.
func succeed(ctx context.Context, box *session.Session, out sandbox.Streams, argv ...string) error {
	res, err := box.Stream(ctx, sandbox.ExecRequest{Argv: argv, Timeout: sandbox.MaxExecTimeout}, out)
	if err == nil && (res.Status != sandbox.ExecCompleted || res.ExitCode != 0) {
		err = fmt.Errorf("cache: %s: %s, exit code %d; the cache is unchanged", argv[0], res.Status, res.ExitCode)
	}
	return err
}

// collect copies the command's resulting files to the host.
func (v Volume) collect(ctx context.Context, box *session.Session, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	r, w := io.Pipe()
	extracted := make(chan error, 1)
	go func() { // returns when the stream ends; after an error, it stops the stream
		err := extract(root, r, v.MaxBytes, maxEntries)
		r.CloseWithError(err)
		extracted <- err
	}()
	err = succeed(ctx, box, sandbox.Streams{Stdout: w}, "tar", "-C", fillDir, "-cf", "-", cmp.Or(v.Keep, "."))
	w.CloseWithError(err) // nil means end of file
	if extractErr := <-extracted; extractErr != nil && (err == nil || errors.Is(err, extractErr)) {
		err = fmt.Errorf("cache: %s: %w", v.Name, extractErr)
	}
	if err == nil {
		err = readable(root)
	}
	return errors.Join(err, root.Close())
}

// readable makes all directories below root readable for all users, independently of the umask.
func readable(root *os.Root) error {
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = root.Chmod(path, 0o755)
		}
		return err
	})
}

// extract writes only the files and directories of an untrusted archive below root. A symbolic link to an extracted
// file, also through other links, becomes a hard link. most is the maximum number of bytes, and files is the maximum
// number of entries.
func extract(root *os.Root, r io.Reader, most, files int64) error {
	var entries, bytes, linked int64
	links := map[string]string{} // targets of symbolic links by path; a target may be a later entry
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20)) // the padding, which tar must be able to write
			for name, target := range links {
				for hops := 0; links[target] != "" && hops < maxHops; hops++ {
					target = links[target]
				}
				if st, missing := root.Lstat(target); err == nil && missing == nil && st.Mode().IsRegular() {
					err = root.Link(target, name)
				}
			}
			return err
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(filepath.FromSlash(h.Name))
		if len(name) >= maxPath {
			return fmt.Errorf("a file name has more than %d bytes: %w", maxPath, backend.ErrTooLarge)
		}
		entries++
		if _, err := root.Lstat(filepath.Dir(name)); err != nil { // parent directories are created and count as well
			entries += int64(strings.Count(name, "/"))
		}
		if entries > files {
			return fmt.Errorf("more than %d files: %w", files, backend.ErrTooLarge)
		}
		if !filepath.IsLocal(name) {
			return fmt.Errorf("a file name leads outside the cache: %w", backend.ErrPermission)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			if bytes += h.Size; bytes > most {
				return fmt.Errorf("more than %d MiB: %w", most>>20, backend.ErrTooLarge)
			}
			err = write(root, name, in, h.FileInfo().Mode())
		case tar.TypeLink: // another name of an earlier file
			err = root.Link(filepath.Clean(filepath.FromSlash(h.Linkname)), name)
		case tar.TypeSymlink:
			if linked += int64(len(name) + len(h.Linkname)); linked > maxLinks {
				return fmt.Errorf("more than %d MiB of symbolic links: %w", maxLinks>>20, backend.ErrTooLarge)
			}
			if !strings.HasPrefix(h.Linkname, "/") {
				links[name] = filepath.Join(filepath.Dir(name), filepath.FromSlash(h.Linkname))
			}
		}
		if err != nil {
			return err
		}
	}
}

// write creates a file with read permission for all users.
func write(root *os.Root, name string, r io.Reader, mode fs.FileMode) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode = 0o644 | mode&0o100 | mode&0o100>>3 | mode&0o100>>6
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Chmod(mode), f.Close())
}
