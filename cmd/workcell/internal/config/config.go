// Package config reads workcell.yaml, which contains the operator's defaults and policy for all commands on a host or
// in a shell. docs/reference/configuration.md describes the file.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/internal/hint"
)

// fileName is the name of the file in the user's configuration directory.
const fileName = "workcell.yaml"

// Variable is the environment variable with the file path. --config overrides it.
const Variable = "WORKCELL_CONFIG"

// notSet is the Origin of an unset value.
const notSet = "default"

// ApprovalsWait is a value of Config.Approvals. Calls wait for the approvals command or the page.
const ApprovalsWait = "wait"

// Options are the sources of a configuration.
type Options struct {
	Env      environ.Lookup
	File     string              // --config; may be empty
	Flags    map[string][]string // flag values by name
	Backends []string            // valid values of backend
}

// Value is a setting with an origin.
type Value struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`            // a string, number, bool, time.Duration, or list of strings
	Origin string `json:"origin,omitempty"` // "--flag", "$VARIABLE", the path of the file, or notSet
}

// Config is a configuration. It is immutable and safe for concurrent use. Unset limits and times are zero.
type Config struct {
	File          string // path of the file; empty for none
	Backend       string
	OCIRuntime    string
	Isolation     backend.Isolation // minimum for sandboxes
	Images        map[string]string // of sandboxes without an image, by runtime
	MapImages     map[string]string // replacements of images, by reference in the form of backend.NormalizeImage
	Pool          map[string]int    // number of ready sandboxes of servers, by image
	Caches        map[string]string // the operator's caches by name, with the variable of each
	Mounts        []backend.Mount
	Services      []services.Service
	Limits        backend.Limits
	IdleTimeout   time.Duration
	ExecTimeout   time.Duration
	Kubernetes    Kubernetes
	Variables     map[string]string // OpenTelemetry variables set in the file
	TraceContent  bool
	KeepRuns      time.Duration // retention period of the journals of finished runs
	KeepSandboxes time.Duration // retention period of sandboxes with --keep

	KeepTranscripts time.Duration // retention period of agents' conversations after their steps; 0 for none
	Approvals       string        // for calls without an available approver: refuse, or ApprovalsWait

	allowed *backend.ImagePolicy // nil allows all images
	pool    pairs
	values  []Value
}

// Kubernetes configures the use of a cluster.
type Kubernetes struct {
	Context, Namespace, GuestImage, StorageClass, NetworkPolicy, PriorityClass string

	RuntimeClasses, ImagePullSecrets  []string
	NodeSelector, Labels, Annotations []string // KEY=VALUE, sorted
	Tolerations                       []Toleration
	AllowNets, DenyNets               []string // of bridged sandboxes, checked
	DNSNamespace                      string
	DNSLabels                         []string // KEY=VALUE, sorted
	DNSPort                           int32
	NodeTimeout                       time.Duration
}

// Toleration is a toleration of pods, with the keys of Kubernetes.
type Toleration struct {
	Key      string `json:"key,omitempty"`
	Operator string `json:"operator,omitempty"`
	Value    string `json:"value,omitempty"`
	Effect   string `json:"effect,omitempty"`
	Seconds  int64  `json:"tolerationSeconds,omitempty"`
}

// String returns the toleration in the format of `kubectl taint`.
func (t Toleration) String() string {
	return strings.TrimSuffix(strings.TrimSuffix(cmp.Or(t.Key, "*")+"="+t.Value, "=")+":"+t.Effect, ":")
}

// Load returns the configuration. Flags override environment variables, which override the file, which overrides the
// defaults. The file is --config, or $WORKCELL_CONFIG, or workcell.yaml in the user's configuration directory. Load
// never reads a file in the working directory, because it may come from a repository. The error lists all problems of
// the file with line and column.
func Load(o Options) (*Config, error) {
	if o.Env.Get("WORKCELL_KUBE_CLAIMS") != "" {
		return nil, errors.New("unknown variable WORKCELL_KUBE_CLAIMS: " + removed[keyKubernetes+"claims"])
	}
	c := &Config{
		Backend: "auto", KeepRuns: 30 * 24 * time.Hour, KeepSandboxes: 7 * 24 * time.Hour,
		KeepTranscripts: 7 * 24 * time.Hour, Approvals: "refuse",
		Images: map[string]string{}, MapImages: map[string]string{}, Pool: map[string]int{}, Caches: map[string]string{},
		Variables: map[string]string{},
	}
	table := c.settings(o.Env, o.Backends)
	if err := c.readFile(o, table); err != nil {
		return nil, err
	}
	for _, s := range table {
		if text := o.Env.Get(s.variable); s.variable != "" && text != "" {
			texts := []string{text}
			switch s.to.(type) {
			case *pairs, *[]string:
				texts = strings.Split(text, ",")
			}
			if err := s.assign("$"+s.variable, texts); err != nil {
				return nil, err
			}
		}
		if texts := o.Flags[s.flag]; len(texts) > 0 {
			if err := s.assign("--"+s.flag, texts); err != nil {
				return nil, err
			}
		}
		c.values = append(c.values, s.shown())
	}
	if len(o.Flags["allow-image"]) > 0 {
		return c, nil // the flag replaces the file's list
	}
	return c, c.checkImages(table)
}

// readFile reads the configuration file, if it exists.
func (c *Config) readFile(o Options, table []*setting) (err error) {
	c.File = cmp.Or(o.File, o.Env.Get(Variable))
	if c.File != "" {
		if err = read(table, c.File); err != nil && !errors.As(err, new(*hint.Problem)) {
			by := "$" + Variable
			if o.File != "" {
				by = "--config"
			}
			err = fmt.Errorf("%s: %w", by, err)
		}
		return err
	}
	home, err := o.Env.ConfigHome()
	if err != nil {
		return nil // a user without a home directory has no file there
	}
	path := filepath.Join(home, "workcell", fileName)
	if _, err = os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		c.File, err = path, read(table, path)
	}
	return err
}

// checkImages returns an error for forbidden default images.
func (c *Config) checkImages(table []*setting) error {
	var errs []error
	for _, s := range table {
		if s.node == nil || !strings.HasPrefix(s.key, keyImages) {
			continue
		}
		if err := c.CheckImage(s.node.Value); err != nil {
			errs = append(errs, &hint.Problem{
				File: c.File, Line: s.node.Line, Column: s.node.Column, Message: s.key + ": " + err.Error(),
			})
		}
	}
	return errors.Join(errs...)
}

// Values returns all settings in the order of the table.
func (c *Config) Values() []Value { return append([]Value(nil), c.values...) }

// Image returns the default image of sandboxes for a runtime.
func (c *Config) Image(runtime string) string {
	return cmp.Or(c.Images[runtime], frontmatter.DefaultImage(frontmatter.Runtime(runtime)))
}

// CheckImage returns nil if the image is allowed. Otherwise, it returns an error wrapping backend.ErrPermission, with
// the origin of the list.
func (c *Config) CheckImage(image string) error {
	if err := c.allowed.Check(image); err != nil {
		i := slices.IndexFunc(c.values, func(v Value) bool { return v.Key == keyAllowImages })
		return fmt.Errorf("%w; the list is %s", err, c.values[i].Origin)
	}
	return nil
}
