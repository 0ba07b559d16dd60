package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/httpconn"
)

// serviceFile is a service in the file.
type serviceFile struct {
	URL     string            `yaml:"url"`
	Headers map[string]string `yaml:"headers"`
	Allow   []string          `yaml:"allow"`
}

// String returns the URL alone: headers can contain secrets.
func (f serviceFile) String() string { return f.URL }

// MarshalText returns the URL.
func (f serviceFile) MarshalText() ([]byte, error) { return []byte(f.URL), nil }

var (
	reference  = regexp.MustCompile(`\$\{[^}]*\}?`)
	variable   = regexp.MustCompile(`\A\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}\z`)
	credential = regexp.MustCompile(`(?i)auth|cookie|token|key|secret|password`)
)

// serviceReader reads services from the file.
type serviceReader struct {
	*reader
	env   environ.Lookup
	found hint.Problems
}

// secretHeader is a header with a credential, or the reason why the credential is missing.
type secretHeader struct {
	value string
	parts []string // values of variables
	err   error
}

// readServices converts the services of the file, and adds their problems.
func (c *Config) readServices(r *reader, env environ.Lookup, files map[string]serviceFile) {
	x := serviceReader{reader: r, env: env}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s := services.Service{Name: name, Allow: files[name].Allow, Headers: http.Header{}}
		s.URL, _ = url.Parse(files[name].URL) // Problems reports a nil URL
		secrets := map[string]secretHeader{}
		for header, text := range files[name].Headers {
			if same := http.CanonicalHeaderKey(header); s.Headers[same] != nil {
				x.found.Add(keyServices+"."+name+".headers", "keep one of them", "the header %q is set twice", same)
			}
			s.Headers.Set(header, text)
			if reference.MatchString(text) || credential.MatchString(header) {
				secrets[header] = x.expand(keyServices+"."+name+".headers."+header, text)
			}
		}
		x.found.AddBelow(keyServices+"."+name+".", s.Problems())
		for header, secret := range secrets {
			s.Secrets = append(s.Secrets, secret.parts...)
			s.Headers.Del(header)
			s.Auth = func(h http.Header) error {
				for header, secret := range secrets {
					if secret.err != nil {
						return secret.err
					}
					h.Set(header, secret.value)
				}
				return nil
			}
		}
		c.Services = append(c.Services, s)
	}
	r.AddBelow("", x.found)
}

// expand replaces the variables in the text of a header. An unset variable is a problem of the sandboxes that
// use the service, not of the file.
func (x *serviceReader) expand(field, text string) (secret secretHeader) {
	at := cmp.Or(x.At[field], x.At[keyServices]) // the name of a header can be too long to have a place
	secret.value = reference.ReplaceAllStringFunc(text, func(ref string) string {
		m := variable.FindStringSubmatch(ref)
		if m == nil {
			x.found.Add(field, "write ${env.NAME} for an environment variable", "invalid variable in a header")
			return ""
		}
		value := x.env.Get(m[1])
		problem := &hint.Problem{File: x.File, Line: at.Line, Column: at.Column}
		switch {
		case value == "":
			problem.Message, problem.Hint = "the variable "+m[1]+" is not set", "set it in the environment of workcell"
			secret.err = problem
		case len(value) < httpconn.MinSecret:
			problem.Message = fmt.Sprintf("the value of %s is too short to be found in answers", m[1])
			problem.Hint = fmt.Sprintf("use a secret of at least %d characters", httpconn.MinSecret)
			secret.err = problem
		}
		secret.parts = append(secret.parts, value)
		return value
	})
	return secret
}
