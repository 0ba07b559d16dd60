// Package config reads workcell.yaml: what an operator sets for all commands of a machine, a project or a shell, with the
// place that each value comes from. docs/configuration.md describes the file.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Name is the name of the file in the working directory and in the user's configuration directory.
const Name = "workcell.yaml"

// Variable names the file, as --config does.
const Variable = "WORKCELL_CONFIG"

// Default is the Origin of a value that nobody set.
const Default = "default"

// Options say where configuration is looked for.
type Options struct {
	Env      environ.Lookup
	File     string         // --config; empty when it was not given
	Dir      string         // the working directory
	Flags    map[string]any // values that flags set, by the flag's name
	Backends []string       // the names that backend may have
}

// Value is a setting's value and where it comes from.
type Value struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`            // a string, number, bool or list of strings
	Origin string `json:"origin,omitempty"` // "--flag", "$VARIABLE", "file:line:column" or Default
}

// List is a list of allowed images. An image must be on all lists that there are.
type List struct {
	Patterns []string
	Origin   string
	policy   *backend.ImagePolicy
}

// Check returns nil for an image that the list allows; else an error that wraps backend.ErrPermission and names the list's
// origin.
func (l List) Check(image string) error {
	if err := l.policy.Check(image); err != nil {
		return fmt.Errorf("%w; the list is %s", err, l.Origin)
	}
	return nil
}

// Config is what holds: each setting with its value. It never changes and may be used concurrently.
type Config struct {
	// Files are the files that were read, the one that counts first.
	Files  []string
	values []Value // in the order of the table; a second list of images stands behind the first
}

// Load reads the files and returns what holds: flags go before the environment, that before files, and files before the
// defaults. The file is that of --config, else that of $WORKCELL_CONFIG. When neither is given it is the one in the
// user's configuration directory, and over it the one in the working directory, of which nobody knows who wrote it: that may
// only set what makes nothing looser. The error names every problem with file, line and column.
func Load(o Options) (*Config, error) {
	if o.Env.Get("WORKCELL_KUBE_CLAIMS") != "" {
		return nil, errors.New("unknown variable WORKCELL_KUBE_CLAIMS: " + removed[keyKubernetes+"claims"])
	}
	table := settings(o.Backends)
	trusted, project, err := o.files(table)
	if err != nil {
		return nil, err
	}
	c := &Config{}
	for _, f := range []*file{project, trusted} {
		if f != nil {
			c.Files = append(c.Files, f.shown)
		}
	}
	var problems []error
	for _, s := range table {
		problems = append(problems, c.base(o, s, trusted))
	}
	for _, s := range table { // what the operator allows is known by now
		if set, ok := project.get(s.key); ok && !o.given(s) {
			problems = append(problems, c.narrow(s, project, set))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if _, ok := o.Flags["allow-image"]; ok {
		return c, nil // the file and its list fit together, and this is another one
	}
	return c, c.checkImages()
}

// given reports whether a flag or a variable sets s.
func (o Options) given(s setting) bool {
	_, flag := o.Flags[s.flag]
	return flag && s.flag != "" || s.variable != "" && o.Env.Get(s.variable) != ""
}

// base adds the value of s that holds without a file in the working directory. A mapping is what all sources say, the
// others are what the first source says.
func (c *Config) base(o Options, s setting, trusted *file) error {
	v := Value{Key: s.key, Value: s.fallback, Origin: Default}
	put := func(value any, origin string) {
		if more, ok := value.(pairs); ok && v.Origin != Default {
			value, origin = slices.Concat(v.Value.(pairs), more), v.Origin+", "+origin
		}
		v.Value, v.Origin = value, origin
	}
	if set, ok := trusted.get(s.key); ok {
		put(set.value, trusted.place(set))
	}
	if text := o.Env.Get(s.variable); s.variable != "" && text != "" {
		if _, ok := s.fallback.(pairs); ok {
			put(pairs(strings.Split(text, ",")), "$"+s.variable)
		} else {
			put(text, "$"+s.variable)
		}
	}
	if value, ok := o.Flags[s.flag]; s.flag != "" && ok {
		if list, isList := value.([]string); isList {
			if _, isPairs := s.fallback.(pairs); isPairs {
				value = pairs(list)
			}
		}
		put(value, "--"+s.flag)
	}
	c.values = append(c.values, v)
	if s.counts { // flags and variables are not checked yet
		if problem, hint := s.check(v.Value); problem != "" {
			return fmt.Errorf("%s: %s: %s, %s", v.Origin, s.key, problem, hint)
		}
	}
	if _, err := c.list(v); err != nil {
		return fmt.Errorf("%s: %w", v.Origin, err)
	}
	return nil
}

// narrow puts in what the file in the working directory sets, unless that makes something looser.
func (c *Config) narrow(s setting, project *file, set entry) error {
	at := slices.IndexFunc(c.values, func(v Value) bool { return v.Key == s.key })
	why := "cannot be set here"
	if s.project != nil {
		why = s.project(c, set.value, c.values[at])
	}
	if why != "" {
		return &yamlnode.Problem{File: project.shown, Line: set.line, Column: set.column, Message: s.key + " " + why,
			Hint: "this file is in the working directory and may come from another author; use --config " + project.shown + " to trust it"}
	}
	if limit, ok := set.value.(int64); ok && c.values[at].Value == limit {
		return nil // to ask for the default would set it aside, or be refused
	}
	v := Value{Key: s.key, Value: set.value, Origin: project.place(set)}
	if _, isList := set.value.([]string); isList && c.values[at].Origin != Default {
		c.values = slices.Insert(c.values, at+1, v)
		return nil
	}
	c.values[at] = v
	return nil
}

// checkImages refuses images by runtime that could never be used.
func (c *Config) checkImages() error {
	var errs []error
	for _, v := range c.values {
		image, isText := v.Value.(string)
		if !isText || !strings.HasPrefix(v.Key, keyImages) || v.Origin == Default {
			continue
		}
		if err := c.CheckImage(image); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", v.Origin, v.Key, err))
		}
	}
	return errors.Join(errs...)
}

// Values returns all settings in the order of the table.
func (c *Config) Values() []Value { return slices.Clone(c.values) }

// get returns the value of a key, and whether anybody set it.
func (c *Config) get(key string) (value any, set bool) {
	for _, v := range c.values {
		if v.Key == key {
			return v.Value, v.Origin != Default
		}
	}
	panic("config: unknown setting " + key) // a bug of the caller
}

// Backend returns the name of the backend.
func (c *Config) Backend() string {
	v, _ := c.get(keyBackend)
	return v.(string)
}

// OCIRuntime returns the OCI runtime of sandboxes; empty when nobody set one.
func (c *Config) OCIRuntime() string {
	v, _ := c.get(keyOCIRuntime)
	return v.(string)
}

// Image returns the image of sandboxes for a runtime that name none.
func (c *Config) Image(runtime string) string {
	v, _ := c.get(keyImages + runtime)
	return v.(string)
}

// Images returns those of Image that somebody set, by runtime.
func (c *Config) Images() map[string]string {
	set := map[string]string{}
	for _, v := range c.values {
		if runtime, ok := strings.CutPrefix(v.Key, keyImages); ok && v.Origin != Default {
			set[runtime] = v.Value.(string)
		}
	}
	return set
}

// MapImages returns FROM=TO for images to use in place of others; later ones win.
func (c *Config) MapImages() []string {
	v, _ := c.get(keyMapImages)
	return v.(pairs)
}

// Pool returns how many sandboxes of an image servers keep ready.
func (c *Config) Pool() map[string]int {
	v, _ := c.get(keyPool)
	counts, _ := v.(pairs)
	pool := map[string]int{}
	for _, pair := range counts {
		image, n, _ := strings.Cut(pair, "=")
		pool[image], _ = strconv.Atoi(n) // checked
	}
	maps.DeleteFunc(pool, func(_ string, n int) bool { return n == 0 })
	return pool
}

// Caches returns the caches of the operator's own, by name, with the variable by which programs find each.
func (c *Config) Caches() map[string]string {
	v, _ := c.get(keyCaches)
	own, _ := v.(pairs)
	caches := map[string]string{}
	for _, pair := range own {
		name, variable, _ := strings.Cut(pair, "=")
		caches[name] = variable
	}
	return caches
}

// Mounts returns the directories of the machine that sandboxes see.
func (c *Config) Mounts() ([]backend.Mount, error) {
	v, _ := c.get(keyMounts)
	var list []backend.Mount
	for _, text := range v.([]string) {
		m, err := parseMount(text) // a flag was not checked yet
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyMounts, err)
		}
		list = append(list, m)
	}
	return list, nil
}

// Limits returns the limits that somebody set; the others are zero.
func (c *Config) Limits() backend.Limits {
	var l backend.Limits
	for _, row := range backend.LimitTable() {
		if v, set := c.get(keyLimits + row.Name); set {
			*row.Of(&l) = v.(int64) * row.Scale
		}
	}
	return l
}

// IdleTimeout returns the idle time that somebody set; zero when nobody did.
func (c *Config) IdleTimeout() time.Duration { return c.duration(keyIdleTimeout) }

// ExecTimeout returns the time limit of commands that somebody set; zero when nobody did.
func (c *Config) ExecTimeout() time.Duration { return c.duration(keyExecTimeout) }

func (c *Config) duration(key string) time.Duration {
	if v, set := c.get(key); set {
		return v.(time.Duration)
	}
	return 0
}

// Kubernetes is how a cluster is used.
type Kubernetes struct {
	Context, Namespace, GuestImage, StorageClass, NetworkPolicy string
	RuntimeClasses                                              []string
}

// Kubernetes returns how a cluster is used.
func (c *Config) Kubernetes() (k Kubernetes) {
	for name, to := range map[string]*string{
		"context": &k.Context, "namespace": &k.Namespace, "guest_image": &k.GuestImage, "storage_class": &k.StorageClass,
		"network_policy": &k.NetworkPolicy,
	} {
		v, _ := c.get(keyKubernetes + name)
		*to = v.(string)
	}
	v, _ := c.get(keyKubernetes + "runtime_classes")
	k.RuntimeClasses = v.([]string)
	return k
}

// TraceContent reports whether traces are to hold contents.
func (c *Config) TraceContent() bool {
	v, _ := c.get(keyContent)
	return v.(bool)
}

// KeepRuns returns how long journals of finished runs are kept, KeepSandboxes how long what --keep keeps.
func (c *Config) KeepRuns() time.Duration {
	v, _ := c.get(keyRetentionRuns)
	return v.(time.Duration)
}

// KeepSandboxes is documented with KeepRuns.
func (c *Config) KeepSandboxes() time.Duration {
	v, _ := c.get(keyRetentionKept)
	return v.(time.Duration)
}

// Variables returns the standard variables of OpenTelemetry that somebody set, by name.
func (c *Config) Variables() map[string]string {
	vars := map[string]string{}
	for _, s := range settings(nil) {
		if v, set := c.get(s.key); set && s.variable != "" && strings.HasPrefix(s.key, keyTelemetry) {
			vars[s.variable] = v.(string)
		}
	}
	return vars
}

// Allowed returns the lists of allowed images; none allows every image.
func (c *Config) Allowed() []List {
	var lists []List
	for _, v := range c.values {
		if l, err := c.list(v); err == nil && l.policy != nil {
			lists = append(lists, l)
		}
	}
	return lists
}

// list returns the list of images that v is, with a nil policy when it is none.
func (c *Config) list(v Value) (List, error) {
	patterns, isList := v.Value.([]string)
	if !isList || v.Key != keyAllowImages || v.Origin == Default {
		return List{}, nil
	}
	policy, err := backend.NewImagePolicy(patterns...)
	return List{Patterns: patterns, Origin: v.Origin, policy: policy}, err
}

// CheckImage returns nil for an image that all lists allow, else the error of the first that does not.
func (c *Config) CheckImage(image string) error {
	for _, l := range c.Allowed() {
		if err := l.Check(image); err != nil {
			return err
		}
	}
	return nil
}

// files returns the file that the operator vouches for and the one in the working directory, nil for those that are not
// there.
func (o Options) files(table []setting) (trusted, project *file, err error) {
	for _, named := range []struct{ path, by string }{{o.File, "--config"}, {o.Env.Get(Variable), "$" + Variable}} {
		if named.path != "" {
			if trusted, err = read(table, named.path, named.path); err != nil && !errors.As(err, new(*yamlnode.Problem)) {
				err = fmt.Errorf("%s: %w", named.by, err)
			}
			return trusted, nil, err
		}
	}
	var own fs.FileInfo
	if home, homeErr := o.Env.ConfigHome(); homeErr == nil { // a user without a home has no file there
		path := filepath.Join(home, "workcell", Name)
		if own, err = os.Stat(path); err == nil {
			trusted, err = read(table, path, path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
	}
	path := filepath.Join(o.Dir, Name)
	here, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && own != nil && os.SameFile(own, here):
		return trusted, nil, nil
	case err != nil:
		return nil, nil, err
	case !here.Mode().IsRegular(): // a pipe would be waited for, and a link may lead anywhere
		return nil, nil, &yamlnode.Problem{File: Name, Message: "it must be a regular file", Hint: "--config " + Name + " reads it anyway"}
	}
	project, err = read(table, path, Name)
	return trusted, project, err
}
