// Package cache keeps what sandboxes would download again and again: directories of this machine, by name, which
// sandboxes read and cannot write to. They are what session.Options.Caches takes; see docs/caches.md.
//
//	store, err := cache.Open(dir)
//	manager, err := session.NewManager(driver, &session.Options{Instance: "mine", Caches: store.Caches()})
//	_, err = store.Fill(ctx, manager, cache.FillOptions{Name: "pip", Request: image, Argv: []string{"pip", "download", "requests"}})
//	s, _, err := manager.Open(ctx, key, session.Request{Image: "python:3.11-slim", Caches: []string{"pip"}})
//
// Only Fill changes a cache, and nothing that a sandbox does that reads one comes back into it.
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

// DefaultMaxBytes bounds a cache that says nothing else.
const DefaultMaxBytes = 2 << 30

// Volume is a cache as data.
type Volume struct {
	Name     string
	Env      map[string]string // of commands that read it; a star stands for its directory
	Begin    string            // session.Cache.Begin
	Fill     map[string]string // variables of the command that fills it, likewise
	Keep     string            // what is kept of the directory that is filled; empty is all of it
	Hosts    []string          // that filling reaches
	MaxBytes int64
}

// Known returns the caches that there are without anybody's doing.
func Known() []Volume {
	return []Volume{{
		// pip does not use a cache directory that it cannot write to; a directory of wheels it does.
		Name: "pip", MaxBytes: DefaultMaxBytes, Hosts: []string{"registry:pypi"},
		Env: map[string]string{"PIP_FIND_LINKS": "*"},
		// Without wheels a setup.py would run, and could change what others get.
		Fill: map[string]string{"PIP_DEST": "*", "PIP_WHEEL_DIR": "*", "PIP_FIND_LINKS": "*", "PIP_ONLY_BINARY": ":all:"},
	}, {
		// npm writes to its cache whatever it does: each sandbox gets its own index over the files of all.
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

// Own returns a cache whose directory programs find by a variable.
func Own(name, variable string) Volume {
	env := map[string]string{variable: "*"}
	return Volume{Name: name, Env: env, Fill: env, MaxBytes: DefaultMaxBytes}
}

// Store is the caches in a directory of this machine. Processes may share it.
type Store struct {
	dir     string
	volumes []Volume
}

var (
	namePattern     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Open returns the caches in dir, which need not be there: those of Known and own.
func Open(dir string, own ...Volume) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	s := &Store{dir: dir, volumes: Known()}
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
				return nil, fmt.Errorf("cache: %s: %.100q is not the name of an environment variable: %w", v.Name, name, backend.ErrInvalid)
			}
		}
		v.MaxBytes = cmp.Or(v.MaxBytes, DefaultMaxBytes)
		s.volumes = append(s.volumes, v)
	}
	return s, nil
}

// volume returns a cache by its name.
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

// Caches returns what sandboxes need to know.
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

// A directory of a cache, named after it, has:
//
//	files           what sandboxes read; it is replaced whole, under its name
//	old-RANDOM      what it was before, for sandboxes that have it
//	new-RANDOM      what it will be
//	lock            held by who changes anything of this

const (
	oldPrefix, newPrefix = "old-", "new-"
	// oldAge is how long what was replaced is left to sandboxes that have it.
	oldAge = 24 * time.Hour
)

func (s *Store) files(name string) string { return filepath.Join(s.dir, name, "files") }

// lock makes this process the only one that changes a cache.
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
	return func() { _ = f.Unlock() }, nil // it ends with the process at the latest
}

// Info describes a cache.
type Info struct {
	Name     string    `json:"name"`
	Dir      string    `json:"dir"` // in sandboxes
	Files    int64     `json:"files"`
	Bytes    int64     `json:"bytes"`
	MaxBytes int64     `json:"max_bytes"`
	Filled   time.Time `json:"filled,omitzero"` // zero: it has nothing
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
		in.Filled = st.ModTime()
	}
	if err != nil {
		err = fmt.Errorf("cache: %s: %w", v.Name, err)
	}
	return in, err
}

// measure counts the files below a directory, and their bytes. What is removed meanwhile counts nothing.
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

// Remove empties a cache. Sandboxes that have it go on with it for a day.
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

// begin makes a directory for what a cache will be; the lock is held.
func (s *Store) begin(name string) (dir string, err error) {
	dir = filepath.Join(s.dir, name, newPrefix+rand.Text())
	if err = os.Mkdir(dir, 0o700); err == nil {
		err = os.Chmod(dir, 0o755) // #nosec G302 -- the users of sandboxes read it; what it lies in is this user's alone
	}
	return dir, err
}

// publish has sandboxes read a directory from now on; the lock is held. One that was stopped finds it when it starts
// again, so that there is always one. Leftovers go.
func (s *Store) publish(name, dir string) error {
	now, files := time.Now(), s.files(name)
	err := os.Chtimes(dir, now, now)
	if err == nil {
		err = os.Chtimes(files, now, now) // what is replaced stays for a while from now on
	}
	if errors.Is(err, fs.ErrNotExist) { // the first one
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

// replace puts a directory in the place of files, which gets the name old. There is one at any moment where the system
// can do that.
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

// Leftover is what nobody needs of a cache.
type Leftover struct {
	Cache string
	Name  string    // of the directory
	Since time.Time // when it was replaced, or given up
}

// Leftovers returns directories that were replaced more than a day ago, and those of fills that did not end. It skips
// caches that another process is changing.
func (s *Store) Leftovers() ([]Leftover, error) {
	var list []Leftover
	dirs, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, d := range dirs { // also of caches that are not configured any more
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

// leftovers returns the leftovers of one cache; the lock is held.
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

// RemoveLeftover deletes what Leftovers returned. While a process changes the cache that is backend.ErrExists, and
// nothing is deleted.
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
