package mcpsource

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Config is the content of the operator's host tools file: MCP servers, and the policy for all their tools. Only this
// file can list programs, to prevent prompts from starting programs on the host.
type Config struct {
	Servers []Server // sorted by name
	Policy  hosttools.Policy
}

// Server is an MCP server: a program to start, or a URL.
type Server struct {
	Name    string
	Command []string          `yaml:"command"`
	Dir     string            // absolute working directory of the program; default /
	Env     map[string]Secret `yaml:"env"` // added to Options.Environ, and overrides it
	Eager   bool              // the host process should call Tools when it starts; New ignores it
	URL     string            `yaml:"url"`
	Headers map[string]Secret `yaml:"headers"`
	Timeout time.Duration     // per request; default 30 seconds
	Pin     string            `yaml:"pin"` // "sha256:…", digest of the tools; if empty, any tools are accepted
}

// Secret is a hidden text. Printing, logging, and marshaling it return a placeholder.
type Secret struct{ text string }

// NewSecret returns text as a secret.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the secret text.
func (s Secret) Reveal() string { return s.text }

func (Secret) String() string               { return redacted }
func (Secret) Format(s fmt.State, _ rune)   { fmt.Fprint(s, redacted) } // for every verb
func (Secret) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

const redacted = "[redacted]"

// Redactor returns a function to remove the server's secrets from a text. It keeps short secrets, because they occur in
// many texts.
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

// Limits of the operator's file.
const (
	maxConfigBytes = 1 << 20
	maxServers     = 100
)

// ReadConfig reads the operator's file. lookup returns the variables used in `env:` and `headers:`. The error lists all
// problems with line and column, and contains no secrets. Programs start in the file's directory, with links resolved,
// or in the root directory if the file is a pipe. They never start in the working directory or in a link's directory,
// because these may be a hostile repository, and npx, python -m, and make run code from the current directory.
func ReadConfig(path string, lookup func(name string) (string, bool)) (*Config, error) {
	src, err := yamlnode.ReadFile(path, maxConfigBytes)
	if err != nil {
		return nil, err
	}
	c, err := ParseConfig(path, src, lookup)
	if err != nil {
		return nil, err
	}
	dir := ""
	if path, err = filepath.EvalSymlinks(path); err == nil {
		if dir, err = filepath.Abs(filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	for i := range c.Servers {
		c.Servers[i].Dir = dir
	}
	return c, nil
}

// file is the YAML format of the file.
type file struct {
	Servers map[string]server `yaml:"servers"`
	Policy  hosttools.Policy  `yaml:"policy"`
}

type server struct {
	Server
	Start          string `yaml:"start"`
	TimeoutSeconds int64  `yaml:"timeout_seconds"`
}

// ParseConfig is like ReadConfig, but parses src. name is used only in errors.
func ParseConfig(name string, src []byte, lookup func(name string) (string, bool)) (*Config, error) {
	format := yamlnode.Format{Single: "remove the second one", MaxBytes: maxConfigBytes, MaxDepth: 16, MaxValues: 20_000}
	d, root := format.Read(name, src)
	r := &reader{d, lookup}
	d.Hook = r.text
	var f file
	if root != nil {
		d.Decode(root, "the file", &f)
	}
	c := &Config{Policy: f.Policy}
	var wrong hint.Problems
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		c.Servers = append(c.Servers, check(&wrong, name, f.Servers[name]))
	}
	if len(c.Servers) > maxServers {
		wrong.Add("servers", "", "%d servers, the limit is %d", len(c.Servers), maxServers)
	}
	wrong.AddBelow("policy.limits.", f.Policy.Limits.Problems())
	for field, patterns := range map[string][]string{"deny": f.Policy.Deny, "ask": f.Policy.Ask} {
		for i, pattern := range patterns {
			if p := rules.ToolPattern(pattern).Check(); p != nil {
				wrong.Add(fmt.Sprintf("policy.%s[%d]", field, i), p.Hint, "%s", p.Message)
			}
		}
	}
	d.AddBelow("", wrong)
	return c, d.Err()
}

var (
	pinPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	variable   = regexp.MustCompile(`\$\{[^}]*\}?|\$\$\{`)
)

// check returns a server of the file and adds the problems to wrong.
func check(wrong *hint.Problems, name string, f server) Server {
	s, at := f.Server, "servers."+name
	if s.Name = name; name == hosttools.AppServer {
		wrong.Add(at, "use another name", "%q is reserved for the program's own tools", name)
	} else if problem := rules.ServerProblem(name); problem != "" {
		wrong.Add(at, "", "invalid server name %q: %s", sanitize.Clip(name), problem)
	}
	switch {
	case len(s.Command) == 0 && s.URL == "":
		wrong.Add(at, "set command or url", "server %s has neither a command nor a url", sanitize.Clip(name))
	case len(s.Command) > 0 && s.URL != "":
		wrong.Add(at, "remove one of the two", "server %s has a command and a url", sanitize.Clip(name))
	case s.URL != "" && s.Env != nil, len(s.Command) > 0 && s.Headers != nil:
		wrong.Add(at, "use env with command, and headers with url", "server %s has keys that it cannot use",
			sanitize.Clip(name))
	}
	switch u, err := url.Parse(s.URL); {
	case s.URL == "":
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		wrong.Add(at+".url", "for example https://tools.example/mcp", "url is not an http or https URL")
	case u.User != nil:
		wrong.Add(at+".url", "use headers", "url contains a password")
	}
	if s.Eager = f.Start == "eager"; !s.Eager && f.Start != "lazy" && f.Start != "" {
		wrong.Add(at+".start", suggest.Hint(f.Start, []string{"lazy", "eager"}), "unknown start %q", sanitize.Clip(f.Start))
	}
	if s.Timeout = time.Duration(f.TimeoutSeconds) * time.Second; f.TimeoutSeconds < 0 || f.TimeoutSeconds > 3600 {
		wrong.Add(at+".timeout_seconds", "", "timeout_seconds must be 1 to 3600, not %d", f.TimeoutSeconds)
	}
	if s.Pin != "" && !pinPattern.MatchString(s.Pin) {
		wrong.Add(at+".pin", "write sha256: and 64 hexadecimal digits", "%q is not a digest", sanitize.Clip(s.Pin))
	}
	for name := range s.Env {
		if !envName.MatchString(name) {
			wrong.Add(at+".env."+name, "", "invalid name %q in env", sanitize.Clip(name))
		}
	}
	known := map[string]bool{"Host": true}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		key := http.CanonicalHeaderKey(name)
		if !httpguts.ValidHeaderFieldName(name) || known[key] {
			wrong.Add(at+".headers."+name, "", "invalid or repeated name %q in headers", sanitize.Clip(name))
		}
		known[key] = true
	}
	return s
}

type reader struct {
	*yamlnode.Decoder
	lookup func(string) (string, bool)
}

// text parses a text value. In a secret, it replaces ${NAME} with a host variable, and $${ with ${. Other texts must
// not contain variables.
func (r *reader) text(n *yamlnode.Node, path string, to any) bool {
	secret, ok := to.(*Secret)
	if !ok {
		if _, ok := to.(*string); ok && strings.Contains(n.Value, "${") {
			r.Fail(n, "use variables only in env and headers", "%s cannot contain variables", path)
		} else if ok && strings.ContainsRune(n.Value, 0) {
			r.Fail(n, "", "%s contains a NUL byte", path)
		}
		return false
	}
	if n.Kind != yamlnode.Scalar || yamlnode.IsNull(n) {
		r.Refuse(n, path, `write "" for an empty value`, "%s must be text, not %s", path, yamlnode.Kind(n))
		return true
	}
	secret.text = variable.ReplaceAllStringFunc(n.Value, func(ref string) string { return r.expand(n, ref) })
	if strings.ContainsAny(secret.text, "\x00\r\n") {
		r.Fail(n, "", "the value of %s contains a newline or a NUL byte", path)
	}
	return true
}

func (r *reader) expand(n *yamlnode.Node, ref string) string {
	if ref == "$${" {
		return "${"
	}
	name := strings.TrimSuffix(strings.TrimPrefix(ref, "${"), "}")
	if !envName.MatchString(name) || !strings.HasSuffix(ref, "}") {
		r.Fail(n, "write ${NAME}, and $${ for ${ itself", "invalid variable")
		return ""
	}
	text, ok := r.lookup(name)
	if !ok {
		r.Fail(n, "set it, or remove it from the file", "the variable %s is not set", name)
	}
	return text
}
