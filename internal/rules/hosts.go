package rules

import (
	_ "embed"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// presetPrefix is the prefix of preset names.
const presetPrefix = "registry:"

// Limits for lists.
const (
	maxHosts = 256
	maxHost  = 253
)

//go:embed presets.txt
var presetText string

// Hosts lists the reachable hosts. A host is an exact name such as example.com, or *.name for all subdomains of name.
// By default, ports 80 and 443 can be reached. An entry with :port permits only that port. registry:NAME stands for the
// hosts of a preset. Deny takes precedence over Allow.
type Hosts struct {
	Allow []string `json:"allow,omitempty" jsonschema_description:"hosts: names, *.name, name:port, or presets such as registry:pypi"`
	Deny  []string `json:"deny,omitempty" jsonschema_description:"exceptions to allow"`
	// Services are reached as http://NAME.workcell. Files name them outside of their lists of hosts.
	Services []ServiceUse `json:"services,omitempty" yaml:"-" jsonschema:"-"`
}

// IsZero reports whether the list allows nothing.
func (l Hosts) IsZero() bool { return len(l.Allow) == 0 && len(l.Services) == 0 }

// Equal reports whether two lists contain the same entries in the same order.
func (l Hosts) Equal(o Hosts) bool {
	same := func(a, b ServiceUse) bool { return a.Name == b.Name && slices.Equal(a.Allow, b.Allow) }
	return slices.Equal(l.Allow, o.Allow) && slices.Equal(l.Deny, o.Deny) &&
		slices.EqualFunc(l.Services, o.Services, same)
}

// Problems returns the problems with the list.
func (l Hosts) Problems() (found hint.Problems) {
	for _, part := range []struct {
		name  string
		rules []string
	}{{"allow", l.Allow}, {"deny", l.Deny}} {
		if len(part.rules) > maxHosts {
			found.Add(part.name, "", "%s has %d hosts, the limit is %d", part.name, len(part.rules), maxHosts)
		}
		for i, text := range part.rules {
			if _, err := ParseHost(text); err != nil {
				err.Field = fmt.Sprintf("%s[%d]", part.name, i)
				found = append(found, err)
			}
		}
	}
	if len(l.Deny) > 0 && len(l.Allow) == 0 {
		found.Add("deny", "add allow", "deny requires allow, because nothing is allowed")
	}
	return append(found, serviceProblems(l.Services)...)
}

// HostRule is an entry of a list.
type HostRule struct {
	text  string
	hosts []hostPattern
}

// String returns the rule as the user wrote it.
func (r HostRule) String() string { return r.text }

// hostPattern matches hosts.
type hostPattern struct {
	name string // lower case, without the leading "*." of a wildcard
	wild bool
	port uint16 // zero means 80 and 443
}

// HostMatch describes how a rule matches a host.
type HostMatch struct {
	Rule  string
	Named bool // the rule names the port
}

// presetNames returns the names of the presets, with their prefix.
func presetNames() []string {
	var names []string
	for name := range hostPresets() {
		names = append(names, presetPrefix+name)
	}
	slices.Sort(names)
	return names
}

// hostPresets parses presets.txt.
func hostPresets() map[string][]string {
	out, name := map[string][]string{}, ""
	for line := range strings.Lines(presetText) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			name = strings.Trim(line, "[]")
		default:
			out[name] = append(out[name], line)
		}
	}
	return out
}

// ParseHost parses a rule.
func ParseHost(text string) (HostRule, *hint.Problem) {
	r := HostRule{text: text}
	if name, ok := strings.CutPrefix(text, presetPrefix); ok {
		hosts := hostPresets()[name]
		if hosts == nil {
			todo := "available: " + strings.Join(presetNames(), ", ")
			if near, ok := suggest.Closest(name, slices.Sorted(maps.Keys(hostPresets()))); ok { // compared without the prefix
				todo = fmt.Sprintf("did you mean %q?", presetPrefix+near)
			}
			return r, &hint.Problem{Message: fmt.Sprintf("unknown preset %q", sanitize.Clip(text)), Hint: todo}
		}
		for _, h := range hosts {
			p, _ := parseHostPattern(h) // a test parses all of them
			r.hosts = append(r.hosts, p)
		}
		return r, nil
	}
	p, err := parseHostPattern(text)
	r.hosts = []hostPattern{p}
	return r, err
}

func parseHostPattern(text string) (p hostPattern, _ *hint.Problem) {
	refuse := func(advice string) (hostPattern, *hint.Problem) {
		return hostPattern{}, &hint.Problem{Message: fmt.Sprintf("%q is not a host", sanitize.Clip(text)), Hint: advice}
	}
	if _, err := netip.ParsePrefix(text); err == nil {
		return refuse("list hosts, not networks; the operator allows private networks with --egress-allow-private")
	}
	if strings.Contains(text, "/") {
		return refuse("use the host name without scheme and path")
	}
	host, port, hasPort := cutPort(text)
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		switch {
		case err == nil && n > 0:
		case hostPresets()[port] != nil:
			return refuse("did you mean " + presetPrefix + port + "?")
		default:
			return refuse("a port is a number, 1 to 65535")
		}
		p.port = uint16(n)
	}
	host, p.wild = strings.CutPrefix(host, "*.")
	name, ok := Host(host)
	switch _, err := netip.ParseAddr(name); {
	case host == "*":
		return refuse("list the hosts, or use network: {enabled: true} to allow all public hosts")
	case strings.ContainsFunc(host, func(r rune) bool { return r > 0x7e }):
		return refuse("use the encoded form of an international name, for example xn--…")
	case strings.Contains(host, "*"):
		return refuse("* is only allowed at the beginning, for example *.example.org")
	case !ok:
		return refuse("")
	case p.wild && err == nil:
		return refuse("* cannot be used with an IP address")
	case p.wild && !strings.Contains(name, "."):
		return refuse("* cannot match all names of a top-level domain")
	}
	p.name = name
	return p, nil
}

// cutPort removes the port from the end of a host. A port after an IPv6 address requires brackets around the address.
func cutPort(text string) (host, port string, ok bool) {
	if !strings.HasPrefix(text, "[") && strings.Count(text, ":") != 1 {
		return text, "", false
	}
	i := strings.LastIndex(text, ":")
	if i <= strings.LastIndex(text, "]") { // or if the text contains neither
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

// Host returns a name or address in the form that rules compare: in lower case, without brackets, and without a
// trailing dot. It also reports whether the name or address is valid.
func Host(text string) (string, bool) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		return addr.Unmap().String(), ok && err == nil && addr.Is6() && addr.Zone() == ""
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Unmap().String(), addr.Zone() == ""
	}
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	return name, len(name) <= maxHost && hostName.MatchString(name)
}

// hostName matches names of labels with at most 63 characters. If the last label began with a digit, resolvers could
// treat the name as an address in an old notation.
var hostName = regexp.MustCompile(`\A(?:[a-z0-9_]` + labelEnd + `\.)*[a-z_]` + labelEnd + `\z`)

const labelEnd = `(?:[a-z0-9_-]{0,61}[a-z0-9_])?`

// match reports whether the rule allows a port of a host. The host must have the form from Host.
func (r HostRule) match(host string, port uint16) (named, ok bool) {
	for _, p := range r.hosts {
		switch {
		case !p.about(host):
		case p.port == port:
			return true, true
		case p.port == 0 && (port == 80 || port == 443):
			return false, true
		}
	}
	return false, false
}

// about reports whether the rule matches a host, regardless of the port.
func (r HostRule) about(host string) bool {
	return slices.ContainsFunc(r.hosts, func(p hostPattern) bool { return p.about(host) })
}

func (p hostPattern) about(host string) bool {
	if p.wild {
		return strings.HasSuffix(host, "."+p.name)
	}
	return host == p.name
}

// denies reports whether the rule denies a port of a host. A rule without a port denies all ports.
func (r HostRule) denies(host string, port uint16) bool {
	return slices.ContainsFunc(r.hosts, func(p hostPattern) bool {
		return (p.port == 0 || p.port == port) && p.about(host)
	})
}

// HostSet is a parsed list.
type HostSet struct{ allow, deny []HostRule }

// Compile parses a list. If it has problems, the error is the first problem.
func (l Hosts) Compile() (*HostSet, error) {
	if problems := l.Problems(); problems != nil {
		return nil, problems[0]
	}
	parsed := func(list []string) (rules []HostRule) {
		for _, text := range list {
			r, _ := ParseHost(text)
			rules = append(rules, r)
		}
		return rules
	}
	return &HostSet{allow: parsed(l.Allow), deny: parsed(l.Deny)}, nil
}

// Match returns the allowing rule for a connection to a host, which must have the form from Host. If there is no such
// rule, why is the reason for the refusal. more contains additional rules for allowed hosts.
func (s *HostSet) Match(host string, port uint16, more ...HostRule) (m HostMatch, why string) {
	for _, r := range s.deny {
		if r.denies(host, port) {
			return HostMatch{}, "network.deny: " + r.text
		}
	}
	about := false
	for _, r := range slices.Concat(s.allow, more) {
		if named, ok := r.match(host, port); ok {
			return HostMatch{Rule: r.text, Named: named}, ""
		}
		about = about || r.about(host)
	}
	if about {
		return HostMatch{}, fmt.Sprintf("network.allow does not name port %d of it", port)
	}
	return HostMatch{}, "network.allow does not name it"
}
