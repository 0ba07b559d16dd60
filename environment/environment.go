// Package environment installs what sandboxes are to find in them: packages of Python and npm, and what lines of shell
// make. It is what session.Options.Environments takes; see docs/packages.md.
//
//	gateway, err := egress.New(nil)
//	builder, err := environment.New(&environment.Options{Dir: dir})
//	manager, err := session.NewManager(driver, &session.Options{Instance: "mine", Egress: gateway, Environments: builder})
//	s, _, err := manager.Open(ctx, key, session.Request{Image: "python:3.11-slim", Environment: session.Environment{Pip: []string{"requests"}}})
//
// Wheels alone are installed of Python's packages, and no script of an npm package runs.
package environment

import (
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
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
)

// version is part of every recipe: environments that another version installed differently are not these.
const version = "1"

// DefaultTimeout bounds an installation.
const DefaultTimeout = 20 * time.Minute

// lockPause is how often a lock that another process has is tried.
const lockPause = 100 * time.Millisecond

// Options configure a Builder. Zero fields are defaults.
type Options struct {
	// Dir keeps processes that have it in common from installing the same twice, and has the times when environments were
	// used. Empty: each process is by itself.
	Dir string
	// PipIndex and NpmRegistry are http and https addresses in place of pypi.org's and npm's own. Empty leaves that to the
	// image.
	PipIndex, NpmRegistry string
	// Timeout bounds an installation; zero is DefaultTimeout.
	Timeout time.Duration
}

// Builder installs environments. It may be used concurrently.
type Builder struct {
	o     Options
	index map[string]source // by the name of the registry's preset

	turns sync.Map // by recipe: a chan struct{} of one place, for who installs it
}

var _ session.EnvironmentBuilder = (*Builder)(nil)

// New returns a builder. Nil options are defaults.
func New(o *Options) (*Builder, error) {
	b := &Builder{index: map[string]source{}}
	if o != nil {
		b.o = *o
	}
	if b.o.Timeout == 0 {
		b.o.Timeout = DefaultTimeout
	}
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

// source is where packages come from.
type source struct {
	address string // empty is what the image has
	rule    string // by which it is reached
	plain   string // host and port of an address without TLS
}

// parseSource reads the address of a registry.
func parseSource(preset, address string) (source, error) {
	if address == "" {
		return source{rule: preset}, nil
	}
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return source{}, fmt.Errorf("environment: the address of %s is not an http or https URL: %w", preset, backend.ErrInvalid)
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

// Recipe returns what identifies an environment, and the hosts that its installation reaches.
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
		panic("environment: a recipe that cannot be encoded: " + err.Error()) // only strings: a bug in this file
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), hosts
}

// Lock waits until nobody else installs a recipe: neither in this process, nor in another one with the same directory.
// The lock ends with its process.
func (b *Builder) Lock(ctx context.Context, recipe string) (unlock func(), err error) {
	turn, _ := b.turns.LoadOrStore(recipe, make(chan struct{}, 1))
	install := turn.(chan struct{})
	select {
	case install <- struct{}{}:
		return b.lockFile(ctx, recipe, func() { <-install })
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// lockFile adds the lock between processes to that within this one, which release ends.
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
		_ = f.Unlock() // it ends with the process at the latest
		release()
	}, nil
}

// file is whose time of change is when a recipe was used last.
func (b *Builder) file(recipe string) string { return filepath.Join(b.o.Dir, filepath.Base(recipe)) }

// Used notes that a sandbox has an environment. Where that fails, it only seems older than it is.
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

// LastUsed returns when a sandbox last got an environment; zero when that is unknown.
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

// Reclaim returns those of environments, as admin.Environments returns them, that are not worth their room: older ones
// of the same recipe, those that nobody used for age, and of the others those unused for longest until the rest takes
// no more than most bytes.
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
