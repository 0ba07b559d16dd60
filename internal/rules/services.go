package rules

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// ServiceUse is an HTTP service for code in a sandbox. The operator defines the service; a use can only narrow it.
type ServiceUse struct {
	Name  string   `json:"name" yamlnode:"short" jsonschema_description:"name of the service in the operator's workcell.yaml"`
	Allow []string `json:"allow,omitempty" jsonschema_description:"requests to allow, such as GET /repos/**; default: all requests that the operator allows"`
}

var (
	serviceName   = regexp.MustCompile(`\A[a-z][a-z0-9-]{0,31}\z`)
	serviceMethod = regexp.MustCompile(`\A(\*|[A-Z]{1,20})\z`)
)

// CheckServiceName returns the problem of a service name, nil for none.
func CheckServiceName(name string) *hint.Problem {
	if serviceName.MatchString(name) {
		return nil
	}
	return &hint.Problem{
		Message: fmt.Sprintf("%q is not the name of a service", sanitize.Clip(name)),
		Hint:    "use at most 32 lower case letters, digits, or '-', and begin with a letter",
	}
}

// CheckServiceRules returns the problems of the rules of a service. The fields are allow[N].
func CheckServiceRules(allow []string) (found hint.Problems) {
	for i, text := range allow {
		if _, err := ParseServiceRule(text); err != nil {
			err.Field = fmt.Sprintf("allow[%d]", i)
			found = append(found, err)
		}
	}
	return found
}

// serviceProblems returns the problems of the services of a file.
func serviceProblems(uses []ServiceUse) (found hint.Problems) {
	for i, use := range uses {
		at := fmt.Sprintf("services[%d]", i)
		if p := CheckServiceName(use.Name); p != nil {
			found.Add(at, p.Hint, "%s", p.Message)
		}
		if slices.IndexFunc(uses, func(u ServiceUse) bool { return u.Name == use.Name }) < i {
			found.Add(at, "remove one of the two", "duplicate service %q", sanitize.Clip(use.Name))
		}
		found.AddBelow(at+".", CheckServiceRules(use.Allow))
	}
	return found
}

// ServiceRule allows requests to a service: a method, or * for any except CONNECT and TRACE, and a path. In the path, *
// is one segment, and ** at the end is any number of segments. GET allows HEAD.
type ServiceRule struct {
	text, method string
	path         []string // segments
}

// String returns the rule as it was written.
func (r ServiceRule) String() string { return r.text }

// ParseServiceRule reads a rule.
func ParseServiceRule(text string) (r ServiceRule, _ *hint.Problem) {
	refuse := func(advice string) (ServiceRule, *hint.Problem) {
		return r, &hint.Problem{Message: fmt.Sprintf("%q is not a request rule", sanitize.Clip(text)), Hint: advice}
	}
	method, raw, ok := strings.Cut(text, " ")
	switch {
	case !ok || !strings.HasPrefix(raw, "/"):
		return refuse("write a method and a path, for example GET /repos/**")
	case unsupported(method):
		return refuse("the methods CONNECT and TRACE are not supported")
	case !serviceMethod.MatchString(method):
		return refuse("write the method in upper case, for example GET, or * for all methods")
	}
	path, problem := ServicePath(raw)
	if problem != "" {
		return refuse(problem)
	}
	r = ServiceRule{text, method, segments(path)}
	for i, s := range r.path {
		if s == "**" && i < len(r.path)-1 || strings.Contains(s, "*") && s != "*" && s != "**" {
			return refuse("* stands for one whole segment, and ** for all that follow; for example /repos/acme/*/issues")
		}
	}
	return r, nil
}

// unsupported reports whether servers answer a method with a tunnel, or with the request and its credentials.
func unsupported(method string) bool {
	return slices.Contains([]string{"CONNECT", "TRACE", "TRACK"}, strings.ToUpper(method))
}

func segments(path string) []string { return strings.Split(path[1:], "/") }

// Match reports whether the rule allows a request. The path is as ServicePath returns it.
func (r ServiceRule) Match(method, path string) bool {
	if unsupported(method) || r.method != "*" && r.method != method && (r.method != "GET" || method != "HEAD") {
		return false
	}
	got := segments(path)
	for i, want := range r.path {
		switch {
		case want == "**":
			return true
		case i == len(got), want == "*" && got[i] == "", want != "*" && want != got[i]:
			return false
		}
	}
	return len(got) == len(r.path)
}

// ServicePath returns the only spelling of a path in which it is compared and sent on, or what is wrong with it. It
// accepts no path that a server could read as another path: no dot segments, no empty segments, and no slash,
// backslash, dot, percent sign, semicolon, or control character in encoded form, not even in overlong UTF-8.
func ServicePath(raw string) (path, problem string) {
	if !strings.HasPrefix(raw, "/") {
		return "", "begin the path with /"
	}
	var b strings.Builder
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '%' {
			if !unreserved(c) && !strings.ContainsRune("/.!$&'()*+,=:@", rune(c)) {
				return "", fmt.Sprintf("the path contains %q; encode it, or remove it if it is a backslash or semicolon", c)
			}
			b.WriteByte(c)
			continue
		}
		decoded, err := hex.DecodeString(raw[i+1 : min(i+3, len(raw))])
		if err != nil || len(decoded) != 1 {
			return "", "write two hexadecimal digits after each % in the path"
		}
		c = decoded[0]
		switch i += 2; {
		case unreserved(c):
			b.WriteByte(c)
		case c < 0x20 || c == 0x7f || strings.IndexByte(`/\.%;`, c) >= 0:
			return "", fmt.Sprintf("remove %%%02X from the path", c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	path = b.String()
	if decoded, _ := url.PathUnescape(path); !utf8.ValidString(decoded) { // the loop has checked the encoding
		return "", "encode the path as UTF-8"
	}
	list := segments(path)
	for i, s := range list {
		if s == "." || s == ".." || s == "" && i < len(list)-1 {
			return "", "remove empty segments, . and .. from the path"
		}
	}
	return path, ""
}

// unreserved reports whether a character means the same encoded or not (RFC 3986). A dot is left to the caller.
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '~'
}
