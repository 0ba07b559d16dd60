// Package cache maintains caches, to prevent sandboxes from downloading the same files again and again. A cache is a
// named directory on the host. Sandboxes can read it but cannot write to it. Pass the caches to session.Options.Caches.
// See docs/guides/packages-and-caches.md.
//
//	store, err := cache.Open(dir)
//	manager, err := session.NewManager(driver, &session.Options{
//		Instance: "mine", Caches: store.Caches(), Egress: gateway, // Fill may download from the package's registry
//	})
//	download := []string{"pip", "download", "requests"}
//	_, err = store.Fill(ctx, manager, cache.FillOptions{Name: "pip", Request: image, Argv: download})
//	s, _, err := manager.Open(ctx, key, session.Request{Image: "python:3.11-slim", Caches: []string{"pip"}})
//
// Only Fill and Remove change a cache. Sandboxes can read a cache but not change it.
package cache

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// DefaultMaxBytes is the default maximum size of a cache in bytes, 2 GiB.
const DefaultMaxBytes = 2 << 30

// Volume is the definition of a cache.
type Volume struct {
	Name     string
	Env      map[string]string // variables of readers; a star stands for the directory
	Begin    string            // session.Cache.Begin
	Fill     map[string]string // variables of the fill command; a star stands for the directory
	Keep     string            // path in the filled directory to keep; if empty, the whole directory
	Hosts    []string          // allowed hosts for the fill command
	MaxBytes int64
}

// known returns the predefined caches.
func known() []Volume {
	return []Volume{{
		// pip ignores a read-only cache directory, but it reads a directory of wheels.
		Name: "pip", MaxBytes: DefaultMaxBytes, Hosts: []string{"registry:pypi"},
		Env: map[string]string{"PIP_FIND_LINKS": "*"},
		// To keep pip from running setup.py, which could change packages for other sandboxes.
		Fill: map[string]string{"PIP_DEST": "*", "PIP_WHEEL_DIR": "*", "PIP_FIND_LINKS": "*", "PIP_ONLY_BINARY": ":all:"},
	}, {
		// npm always writes to the cache, so each sandbox gets a private index with links to the shared files.
		Name: "npm", MaxBytes: DefaultMaxBytes, Hosts: []string{"registry:npm"}, Keep: "_cacache",
		Env: map[string]string{"npm_config_prefer_offline": "true"},
		Begin: `to="${npm_config_cache:-$HOME/.npm}/_cacache"; [ -e "$to" ] || ! [ -e ` + npmFiles + ` ] || ` +
			`{ mkdir -p "$to" && cp -R ` + npmFiles + `/index-v5 "$to/" && cp -Rs ` + npmFiles + `/content-v2 "$to/"; }`,
		Fill: map[string]string{"npm_config_cache": "*", "npm_config_ignore_scripts": "true"},
	}, {
		Name: "go", MaxBytes: DefaultMaxBytes, Hosts: []string{"registry:go"}, Keep: "cache/download",
		Env:  map[string]string{"GOPROXY": "file://*/cache/download,https://proxy.golang.org,direct"},
		Fill: map[string]string{"GOMODCACHE": "*", "GOFLAGS": "-modcacherw"},
	}}
}

const npmFiles = session.CacheDir + "/npm/_cacache"

// Own returns a cache whose directory programs find through an environment variable.
func Own(name, variable string) Volume {
	env := map[string]string{variable: "*"}
	return Volume{Name: name, Env: env, Fill: env, MaxBytes: DefaultMaxBytes}
}

// Store manages the caches in a directory on the host. Several processes may share the directory.
type Store struct {
	dir     string
	volumes []Volume
}

var (
	namePattern     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Open returns a Store for dir with the caches pip, npm, and go, and the caches in own. A cache in own needs a name of
// 1 to 32 lower case letters, digits, and dashes. Fill creates dir if it does not exist.
func Open(dir string, own ...Volume) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	s := &Store{dir: dir, volumes: known()}
	for _, v := range own {
		if !namePattern.MatchString(v.Name) {
			return nil, fmt.Errorf("cache: invalid name %.100q: must be at most 32 lower case letters, digits, or '-': %w",
				v.Name, backend.ErrInvalid)
		}
		if _, err := s.volume(v.Name); err == nil {
			return nil, fmt.Errorf("cache: duplicate cache %q: %w", v.Name, backend.ErrInvalid)
		}
		for name := range v.Env {
			if !variablePattern.MatchString(name) {
				return nil, fmt.Errorf("cache: %s: %.100q is not the name of an environment variable: %w",
					v.Name, name, backend.ErrInvalid)
			}
		}
		v.MaxBytes = cmp.Or(v.MaxBytes, DefaultMaxBytes)
		s.volumes = append(s.volumes, v)
	}
	return s, nil
}

// volume returns the definition of a cache by name.
func (s *Store) volume(name string) (Volume, error) {
	var known []string
	for _, v := range s.volumes {
		if v.Name == name {
			return v, nil
		}
		known = append(known, v.Name)
	}
	return Volume{}, fmt.Errorf("cache: unknown cache %.100q, available: %s: %w",
		name, strings.Join(known, ", "), backend.ErrNotFound)
}

// Caches returns the caches for session.Options.Caches.
func (s *Store) Caches() []session.Cache {
	var list []session.Cache
	for _, v := range s.volumes {
		list = append(list, s.cache(v))
	}
	return list
}

func (s *Store) cache(v Volume) session.Cache {
	return session.Cache{Name: v.Name, Source: s.files(v.Name), Env: v.Env, Begin: v.Begin}
}

// Each cache has a directory with the cache's name, which contains:
//
//	files           the directory for sandboxes; it is replaced as a whole
//	old-RANDOM      a replaced directory, possibly still in use
//	new-RANDOM      a directory during a fill
//	lock            the lock file, held while a process changes the cache

const (
	oldPrefix, newPrefix = "old-", "new-"
	// oldAge is how long a replaced directory is kept for existing sandboxes.
	oldAge = 24 * time.Hour
)

func (s *Store) files(name string) string { return filepath.Join(s.dir, name, "files") }

// lock prevents other processes from changing a cache.
func (s *Store) lock(name string) (unlock func(), err error) {
	dir := filepath.Join(s.dir, name)
	f := flock.New(filepath.Join(dir, "lock"), flock.SetPermissions(0o600))
	held := false
	if err = os.MkdirAll(dir, 0o700); err == nil {
		held, err = f.TryLock()
	}
	if err == nil && !held {
		err = fmt.Errorf("another process is changing the cache %s: %w", name, backend.ErrExists)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cache: %w", err), f.Close())
	}
	return func() { _ = f.Unlock() }, nil // the lock ends at the latest when the process exits
}

// Info describes a cache.
type Info struct {
	Name     string    `json:"name"`
	Dir      string    `json:"dir"` // path in sandboxes
	Files    int64     `json:"files"`
	Bytes    int64     `json:"bytes"`
	MaxBytes int64     `json:"max_bytes"`
	Filled   time.Time `json:"filled,omitzero"` // zero means empty
}

// List describes all caches.
func (s *Store) List() ([]Info, error) {
	var list []Info
	for _, v := range s.volumes {
		in, err := s.info(v)
		if err != nil {
			return nil, err
		}
		list = append(list, in)
	}
	return list, nil
}

// Info describes one cache.
func (s *Store) Info(name string) (Info, error) {
	v, err := s.volume(name)
	if err != nil {
		return Info{}, err
	}
	return s.info(v)
}

func (s *Store) info(v Volume) (Info, error) {
	in := Info{Name: v.Name, Dir: s.cache(v).Dir(), MaxBytes: v.MaxBytes}
	st, err := os.Stat(s.files(v.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return in, nil
	}
	if err == nil {
		in.Files, in.Bytes, err = measure(s.files(v.Name))
	}
	if in.Files > 0 {
		in.Filled = st.ModTime().UTC()
	}
	if err != nil {
		err = fmt.Errorf("cache: %s: %w", v.Name, err)
	}
	return in, err
}

// measure returns the number and total size of the files below a directory. It skips files during removal.
func measure(dir string) (files, bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				files, bytes = files+1, bytes+info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return files, bytes, err
}

// Remove empties a cache. Existing sandboxes can read the old files of the cache for a day.
func (s *Store) Remove(name string) error {
	v, err := s.volume(name)
	if err != nil {
		return err
	}
	unlock, err := s.lock(v.Name)
	if err != nil {
		return err
	}
	defer unlock()
	empty, err := s.begin(v.Name)
	if err == nil {
		err = s.publish(v.Name, empty)
	}
	if err != nil {
		return fmt.Errorf("cache: %s: %w", v.Name, err)
	}
	return nil
}

// begin creates a directory for the new contents of a cache. The caller must hold the lock.
func (s *Store) begin(name string) (dir string, err error) {
	dir = filepath.Join(s.dir, name, newPrefix+rand.Text())
	if err = os.Mkdir(dir, 0o700); err == nil {
		err = os.Chmod(dir, 0o755) // #nosec G302 -- users of sandboxes read it; the parent is private
	}
	return dir, err
}

// publish makes a directory the current contents of a cache and removes leftovers. A stopped sandbox mounts the new
// directory when it starts again, so the path must always exist. The caller must hold the lock.
func (s *Store) publish(name, dir string) error {
	now, files := time.Now(), s.files(name)
	err := os.Chtimes(dir, now, now)
	if err == nil {
		err = os.Chtimes(files, now, now) // the replaced directory is kept for oldAge from now
	}
	if errors.Is(err, fs.ErrNotExist) { // first fill
		err = os.Rename(dir, files)
	} else if err == nil {
		err = replace(dir, files, filepath.Join(s.dir, name, oldPrefix+rand.Text()))
	}
	if err != nil {
		return err
	}
	left, err := s.leftovers(name)
	for _, l := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, name, l.Name)))
	}
	return err
}

// replace renames dir to files and the previous files to old. If the system supports it, the exchange is atomic, to
// keep files available at any time.
func replace(dir, files, old string) error {
	if err := os.Rename(dir, old); err != nil {
		return err
	}
	if exchange(old, files) == nil {
		return nil
	}
	if err := os.Rename(files, dir); err != nil {
		return err
	}
	return errors.Join(os.Rename(old, files), os.Rename(dir, old))
}

// Leftover is an unused directory of a cache.
type Leftover struct {
	Cache string
	Name  string    // name of the directory
	Since time.Time // when it was replaced, or when the fill was abandoned
}

// Leftovers returns directories replaced more than a day ago and directories of unfinished fills. It skips caches
// during a change by another process.
func (s *Store) Leftovers() ([]Leftover, error) {
	var list []Leftover
	dirs, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, d := range dirs { // includes caches without a configuration
		if !namePattern.MatchString(d.Name()) {
			continue
		}
		if unlock, lockErr := s.lock(d.Name()); lockErr == nil {
			found, readErr := s.leftovers(d.Name())
			list, err = append(list, found...), errors.Join(err, readErr)
			unlock()
		}
	}
	if err != nil {
		err = fmt.Errorf("cache: %w", err)
	}
	return list, err
}

// leftovers returns the leftovers of one cache. The caller must hold the lock.
func (s *Store) leftovers(name string) (list []Leftover, err error) {
	found, err := os.ReadDir(filepath.Join(s.dir, name))
	for _, f := range found {
		st, err := f.Info()
		if err != nil || !f.IsDir() {
			continue
		}
		old := strings.HasPrefix(f.Name(), oldPrefix) && time.Since(st.ModTime()) > oldAge
		if old || strings.HasPrefix(f.Name(), newPrefix) {
			list = append(list, Leftover{name, f.Name(), st.ModTime()})
		}
	}
	return list, err
}

// RemoveLeftover deletes a directory from Leftovers. If a process is changing the cache, RemoveLeftover deletes nothing
// and returns an error wrapping backend.ErrExists.
func (s *Store) RemoveLeftover(l Leftover) error {
	unlock, err := s.lock(l.Cache)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.RemoveAll(filepath.Join(s.dir, filepath.Base(l.Cache), filepath.Base(l.Name))); err != nil {
		return fmt.Errorf("cache: %s: %w", l.Cache, err)
	}
	return nil
}
