// Package serverfile reads the operator's file of host tools: the MCP servers whose tools agents may be granted, and the
// policy over all of them. Only this file names programs, so that a prompt cannot start one on the host.
package serverfile

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/toolrule"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Config is what the file says.
type Config struct {
	Servers []Server // sorted by name
	Policy  hosttools.Policy
}

// Server is an MCP server: a program, or one at an address.
type Server struct {
	Name    string
	Command []string
	Dir     string            // where the program starts, an absolute path; empty is /
	Env     map[string]Secret // beside PATH, HOME and LANG
	Eager   bool              // start it with the program, not when it is first needed
	URL     string
	Headers map[string]Secret
	Timeout time.Duration // of one request; zero is 30 seconds
	Pin     string        // "sha256:…", the digest of its tools; empty: any
}

// Secret is text that is not shown: whatever prints, logs or marshals it gets a placeholder.
type Secret struct{ text string }

// NewSecret returns text as a secret.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text.
func (s Secret) Reveal() string { return s.text }

func (Secret) String() string               { return redacted }
func (Secret) Format(s fmt.State, _ rune)   { fmt.Fprint(s, redacted) } // for every verb
func (Secret) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

const redacted = "[redacted]"

// Redactor returns a function that replaces the secrets of the server in a text. Short ones, which are in many texts, stay.
func (s Server) Redactor() func(string) string {
	var found []string
	for _, m := range []map[string]Secret{s.Env, s.Headers} {
		for _, secret := range m {
			words := append(strings.Fields(secret.text), secret.text)
			for _, word := range words {
				if len(word) >= 8 {
					found = append(found, word)
				}
			}
		}
	}
	return sanitize.NewSecrets(redacted, found...).Replace
}

// Bounds of the operator's file.
const (
	maxConfigBytes = 1 << 20
	maxServers     = 100
)

// Read reads the operator's file. lookup is asked for the variables that `env:` and `headers:` name. The error has
// every problem, by line and column, and no secret. Programs start in the directory of the file, with links resolved,
// or in the root directory if the file is a pipe. The working directory or the directory of a link may be a hostile
// repository, and npx, python -m, and make run code from the directory where they start.
func Read(file string, lookup func(name string) (string, bool)) (*Config, error) {
	src, err := yamlnode.ReadFile(file, maxConfigBytes)
	if err != nil {
		return nil, err
	}
	c, err := Parse(file, src, lookup)
	if err != nil {
		return nil, err
	}
	dir := ""
	if file, err = filepath.EvalSymlinks(file); err == nil {
		if dir, err = filepath.Abs(filepath.Dir(file)); err != nil {
			return nil, err
		}
	}
	for i := range c.Servers {
		c.Servers[i].Dir = dir
	}
	return c, nil
}

// Parse is Read for a file's contents; file is used in errors only.
func Parse(file string, src []byte, lookup func(name string) (string, bool)) (*Config, error) {
	text, problem := yamlnode.Text(src, maxConfigBytes)
	format := yamlnode.Format{Name: "the file", Single: "remove the second one", FirstLine: 1, MaxDepth: 16, MaxValues: 20_000}
	var root *yaml.Node
	if problem == nil {
		root, problem = format.Parse(text)
	}
	if problem != nil {
		problem.File = file
		return nil, problem
	}
	c := &configReader{file: file, lookup: lookup, config: &Config{}}
	if root != nil && format.Check(root, c.fail) && len(c.errs) == 0 {
		c.root(root)
	}
	return c.config, errors.Join(c.errs...)
}

type configReader struct {
	file   string
	lookup func(string) (string, bool)
	config *Config
	errs   []error
}

// maxConfigErrors is how many problems of a file are reported.
const maxConfigErrors = 50

func (c *configReader) fail(n *yaml.Node, advice, format string, args ...any) {
	if len(c.errs) < maxConfigErrors {
		c.errs = append(c.errs, &hint.Problem{File: c.file, Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...), Hint: advice})
	}
}

// fields reads a mapping of known keys.
func (c *configReader) fields(n *yaml.Node, what string, known map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		c.fail(n, "", "%s must be a mapping, not %s", what, yamlnode.Kind(n))
		return
	}
	for key, value := range yamlnode.Pairs(n) {
		set, ok := known[key.Value]
		switch {
		case !ok:
			c.fail(key, suggest.Hint(key.Value, slices.Sorted(maps.Keys(known))), "unknown key %q in %s", sanitize.Clip(key.Value), what)
		case yamlnode.IsNull(value):
			c.fail(value, "set a value or remove the key", "%s is empty", key.Value)
		default:
			set(value)
		}
	}
}

func (c *configReader) root(n *yaml.Node) {
	c.fields(n, "the file", map[string]func(*yaml.Node){
		"servers": c.servers,
		"policy": func(n *yaml.Node) {
			p := &c.config.Policy
			c.fields(n, "policy", map[string]func(*yaml.Node){
				"deny":   func(n *yaml.Node) { p.Deny = c.patterns(n, "deny") },
				"ask":    func(n *yaml.Node) { p.Ask = c.patterns(n, "ask") },
				"limits": func(n *yaml.Node) { c.limits(n, &p.Limits) },
			})
		},
	})
}

func (c *configReader) servers(n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		c.fail(n, "", "servers must be a mapping of names to servers, not %s", yamlnode.Kind(n))
		return
	}
	for key, value := range yamlnode.Pairs(n) {
		if problem := toolrule.ServerProblem(key.Value); problem != "" {
			c.fail(key, "", "invalid server name %q: %s", sanitize.Clip(key.Value), problem)
		}
		if key.Value == hosttools.AppServer {
			c.fail(key, "use another name", "%q is reserved for the program's own tools", hosttools.AppServer)
		}
		c.config.Servers = append(c.config.Servers, c.server(key, value))
	}
	if len(c.config.Servers) > maxServers {
		c.fail(n, "", "%d servers, the limit is %d", len(c.config.Servers), maxServers)
	}
	slices.SortFunc(c.config.Servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
}

var pinPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (c *configReader) server(key, n *yaml.Node) Server {
	s := Server{Name: key.Value}
	c.fields(n, "server "+sanitize.Clip(key.Value), map[string]func(*yaml.Node){
		"command": func(n *yaml.Node) { s.Command = c.texts(n, "command") },
		"env":     func(n *yaml.Node) { s.Env = c.secrets(n, "env", envName) },
		"url":     func(n *yaml.Node) { s.URL = c.url(n) },
		"headers": func(n *yaml.Node) { s.Headers = c.secrets(n, "headers", headerName) },
		"start": func(n *yaml.Node) {
			start := c.text(n, "start")
			if s.Eager = start == "eager"; !s.Eager && start != "lazy" {
				c.fail(n, suggest.Hint(start, []string{"lazy", "eager"}), "unknown start %q", sanitize.Clip(start))
			}
		},
		"timeout_seconds": func(n *yaml.Node) {
			s.Timeout = time.Duration(c.number(n, "timeout_seconds", 1, 3600)) * time.Second
		},
		"pin": func(n *yaml.Node) {
			if s.Pin = c.text(n, "pin"); !pinPattern.MatchString(s.Pin) {
				c.fail(n, "write sha256: and 64 hexadecimal digits", "%q is not a digest", sanitize.Clip(s.Pin))
			}
		},
	})
	switch {
	case len(s.Command) == 0 && s.URL == "":
		c.fail(key, "set command or url", "server %s has neither a command nor a url", sanitize.Clip(key.Value))
	case len(s.Command) > 0 && s.URL != "":
		c.fail(key, "remove one of the two", "server %s has a command and a url", sanitize.Clip(key.Value))
	case s.URL != "" && s.Env != nil, len(s.Command) > 0 && s.Headers != nil:
		c.fail(key, "use env with command, and headers with url", "server %s has keys that it cannot use", sanitize.Clip(key.Value))
	}
	return s
}

func (c *configReader) url(n *yaml.Node) string {
	text := c.text(n, "url")
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		c.fail(n, "for example https://tools.example/mcp", "url is not an http or https URL")
	case u.User != nil:
		c.fail(n, "use headers", "url contains a password")
	}
	return text
}

func (c *configReader) text(n *yaml.Node, name string) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || n.Value == "" {
		c.fail(n, "", "%s must be text, not %s", name, yamlnode.Kind(n))
		return ""
	}
	if strings.ContainsRune(n.Value, 0) {
		c.fail(n, "", "%s contains a NUL byte", name)
	}
	if strings.Contains(n.Value, "${") {
		c.fail(n, "use variables only in env and headers", "%s cannot contain variables", name)
	}
	return n.Value
}

func (c *configReader) texts(n *yaml.Node, name string) []string {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		c.fail(n, "", "%s must be a list of strings, not %s", name, yamlnode.Kind(n))
		return nil
	}
	var list []string
	for item := range yamlnode.Items(n) {
		list = append(list, c.text(item, name))
	}
	return list
}

func (c *configReader) number(n *yaml.Node, name string, least, most int64) (v int64) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || n.Decode(&v) != nil {
		c.fail(n, "", "%s must be a whole number, not %s", name, yamlnode.Kind(n))
	} else if v < least || v > most {
		c.fail(n, "", "%s must be %d to %d, not %d", name, least, most, v)
	}
	return v
}

func (c *configReader) patterns(n *yaml.Node, name string) []string {
	list := c.texts(n, name)
	for i, p := range list {
		if problem := toolrule.Pattern(p).Check(); problem != nil && p != "" {
			c.fail(yamlnode.Follow(n.Content[i]), problem.Hint, "%s", problem.Message)
		}
	}
	return list
}

func (c *configReader) limits(n *yaml.Node, l *hosttools.Limits) {
	known := map[string]func(*yaml.Node){}
	for _, b := range l.Bounds() {
		known[b.Name] = func(n *yaml.Node) { *b.Value = c.number(n, b.Name, b.Least, b.Most) }
	}
	c.fields(n, "limits", known)
}

var (
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	variable   = regexp.MustCompile(`\$\{[^}]*\}?|\$\$\{`)
)

// secrets reads names with values, in which ${NAME} stands for a variable of the host; $${ stands for ${.
func (c *configReader) secrets(n *yaml.Node, what string, name *regexp.Regexp) map[string]Secret {
	if n.Kind != yaml.MappingNode {
		c.fail(n, "", "%s must be a mapping of names to text, not %s", what, yamlnode.Kind(n))
		return nil
	}
	out := map[string]Secret{}
	for key, value := range yamlnode.Pairs(n) {
		switch {
		case !name.MatchString(key.Value):
			c.fail(key, "", "invalid name %q in %s", sanitize.Clip(key.Value), what)
			continue
		case value.Kind != yaml.ScalarNode || yamlnode.IsNull(value):
			c.fail(value, `write "" for an empty value`, "%s.%s must be text", what, key.Value)
			continue
		}
		text := variable.ReplaceAllStringFunc(value.Value, func(ref string) string { return c.expand(value, ref) })
		if strings.ContainsAny(text, "\x00\r\n") {
			c.fail(value, "", "the value of %s.%s contains a newline or a NUL byte", what, key.Value)
		}
		out[key.Value] = Secret{text}
	}
	return out
}

func (c *configReader) expand(n *yaml.Node, ref string) string {
	if ref == "$${" {
		return "${"
	}
	name := strings.TrimSuffix(strings.TrimPrefix(ref, "${"), "}")
	if !envName.MatchString(name) || !strings.HasSuffix(ref, "}") {
		c.fail(n, "write ${NAME}, and $${ for ${ itself", "invalid variable")
		return ""
	}
	text, ok := c.lookup(name)
	if !ok {
		c.fail(n, "set it, or remove it from the file", "the variable %s is not set", name)
	}
	return text
}
