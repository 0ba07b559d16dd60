// Package environment installs software for sandboxes: Python and npm packages, and the files created by shell
// commands. Pass a Builder to session.Options.Environments. See docs/guides/packages-and-caches.md.
//
//	gateway, err := egress.New(nil)
//	builder, err := environment.New(&environment.Options{Dir: dir})
//	manager, err := session.NewManager(driver, &session.Options{Instance: "mine", Egress: gateway, Environments: builder})
//	s, _, err := manager.Open(ctx, key, session.Request{Image: "python:3.11-slim", Environment: session.Environment{Pip: []string{"requests"}}})
//
// Python packages are only installed from wheels. Scripts of npm packages do not run.
package environment

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
)

// version is part of every recipe, to avoid the reuse of environments of a version with other installation steps.
const version = "1"

// DefaultTimeout is the default timeout of an installation.
const DefaultTimeout = 20 * time.Minute

// lockPause is the polling interval for a lock of another process.
const lockPause = 100 * time.Millisecond

// Options configure a Builder. Zero fields have defaults.
type Options struct {
	// Dir is a directory for locks and for the times of last use. Processes with the same Dir do not install the same
	// environment twice. If empty, processes do not coordinate.
	Dir string
	// PipIndex and NpmRegistry are http or https addresses of replacements for pypi.org's index and npm's registry, for
	// example https://pypi.example.com/simple. If empty, the image's settings apply.
	PipIndex, NpmRegistry string
	// Timeout is the timeout of an installation. If zero, it is DefaultTimeout.
	Timeout time.Duration
}

// Builder installs environments. It is safe for concurrent use.
type Builder struct {
	o     Options
	index map[string]source // by the name of the registry's preset

	turns sync.Map // by recipe: a chan struct{} with capacity 1, held by the installing caller
}

var _ session.EnvironmentBuilder = (*Builder)(nil)

// New returns a builder. o may be nil.
func New(o *Options) (*Builder, error) {
	b := &Builder{o: *cmp.Or(o, &Options{}), index: map[string]source{}}
	b.o.Timeout = cmp.Or(b.o.Timeout, DefaultTimeout)
	if b.o.Timeout < 0 {
		return nil, fmt.Errorf("environment: timeout %v: %w", b.o.Timeout, backend.ErrInvalid)
	}
	for preset, address := range map[string]string{pypi: b.o.PipIndex, npmjs: b.o.NpmRegistry} {
		s, err := parseSource(preset, address)
		if err != nil {
			return nil, err
		}
		b.index[preset] = s
	}
	return b, nil
}

// Presets of the registries.
const (
	pypi  = "registry:pypi"
	npmjs = "registry:npm"
)

// source is a package registry.
type source struct {
	address string // if empty, the image's setting applies
	rule    string // egress rule for access to it
	plain   string // host and port of an address without TLS
}

// parseSource parses the address of a registry.
func parseSource(preset, address string) (source, error) {
	if address == "" {
		return source{rule: preset}, nil
	}
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return source{}, fmt.Errorf("environment: the address of %s is not an http or https URL: %w", preset,
			backend.ErrInvalid)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return source{}, fmt.Errorf("environment: the address of %s must not contain a user, query, or fragment, which sandboxes could read: %w", preset, backend.ErrInvalid)
	}
	s := source{address: address, rule: u.Host}
	if u.Scheme == "http" {
		s.plain = u.Host
	}
	if problems := (rules.Hosts{Allow: []string{s.rule}}).Problems(); problems != nil {
		return source{}, fmt.Errorf("environment: the address of %s: %w: %w", preset, problems[0], backend.ErrInvalid)
	}
	return s, nil
}

// Recipe returns the id of an environment and the hosts needed for the installation.
func (b *Builder) Recipe(e session.Environment, user string) (recipe string, hosts sandbox.Egress) {
	hosts = sandbox.Egress{Allow: slices.Clone(e.Network.Allow), Deny: slices.Clone(e.Network.Deny)}
	var from []string
	for _, registry := range []struct {
		preset   string
		packages []string
	}{{pypi, e.Pip}, {npmjs, e.Npm}} {
		if len(registry.packages) > 0 {
			s := b.index[registry.preset]
			from = append(from, registry.preset, s.address)
			hosts.Allow = append(hosts.Allow, s.rule)
		}
	}
	text, err := json.Marshal([]any{version, user, e, from})
	if err != nil {
		panic("environment: a recipe that cannot be encoded: " + err.Error()) // only strings, so this is a bug here
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), hosts
}

// Lock waits until no other caller installs the recipe, in this process or in a process with the same directory. The
// lock is released at the latest when the process exits.
func (b *Builder) Lock(ctx context.Context, recipe string) (unlock func(), err error) {
	turn, _ := b.turns.LoadOrStore(recipe, make(chan struct{}, 1))
	install := turn.(chan struct{})
	if err := bound.Enter(ctx, install); err != nil {
		return nil, err
	}
	return b.lockFile(ctx, recipe, func() { <-install })
}

// lockFile adds the lock between processes to the lock within this process. release releases the latter.
func (b *Builder) lockFile(ctx context.Context, recipe string, release func()) (unlock func(), err error) {
	if b.o.Dir == "" {
		return release, nil
	}
	f := flock.New(b.file(recipe)+".lock", flock.SetPermissions(0o600))
	if err = os.MkdirAll(b.o.Dir, 0o700); err == nil {
		_, err = f.TryLockContext(ctx, lockPause)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		release()
		return nil, fmt.Errorf("environment: waiting for another process that installs the same packages: %w", err)
	}
	return func() {
		_ = f.Unlock() // it ends at the latest with the process
		release()
	}, nil
}

// file returns the file whose modification time is the time of the recipe's last use.
func (b *Builder) file(recipe string) string { return filepath.Join(b.o.Dir, filepath.Base(recipe)) }

// Used records the use of an environment by a sandbox. If that fails, the environment only seems to be older.
func (b *Builder) Used(recipe string) {
	if b.o.Dir == "" {
		return
	}
	now := time.Now()
	if os.Chtimes(b.file(recipe), now, now) != nil {
		if f, err := os.OpenFile(b.file(recipe), os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_ = f.Close() // nothing was written
		}
	}
}

// LastUsed returns the time when a sandbox last used an environment. If unknown, it returns zero.
func (b *Builder) LastUsed(recipe string) time.Time {
	if b.o.Dir == "" {
		return time.Time{}
	}
	st, err := os.Lstat(b.file(recipe))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// Reclaim selects environments from admin.Environments to delete. It selects superseded environments and environments
// whose last use is longer ago than age. It keeps each of the others, from the latest use to the earliest, if the kept
// environments together need at most most bytes. Otherwise, it selects the environment. Reclaim does not change list.
func Reclaim(list []admin.Environment, now time.Time, age time.Duration, most int64) (reclaim []admin.Environment) {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b admin.Environment) int { return b.LastUsed.Compare(a.LastUsed) })
	var kept int64
	for _, e := range list {
		if e.Superseded || now.Sub(e.LastUsed) > age || kept+e.Bytes > most {
			reclaim = append(reclaim, e)
			continue
		}
		kept += e.Bytes
	}
	return reclaim
}
