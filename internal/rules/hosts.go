package rules

import (
	_ "embed"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// presetPrefix begins the name of a preset.
const presetPrefix = "registry:"

// Bounds of lists.
const (
	maxHosts = 256
	maxHost  = 253
	maxLabel = 63
)

//go:embed presets.txt
var presetText string

// Hosts lists hosts that can be reached. A host is an exact name, or *.name for all names below that; with :port it is
// that port alone, else 80 and 443. registry:NAME stands for the hosts of a preset. Deny goes before Allow.
type Hosts struct {
	Allow []string `json:"allow,omitempty" jsonschema_description:"hosts: names, *.name, name:port, or presets such as registry:pypi"`
	Deny  []string `json:"deny,omitempty" jsonschema_description:"exceptions to allow"`
	// Services are reached as http://NAME.workcell. Files name them outside of their lists of hosts.
	Services []ServiceUse `json:"services,omitempty" yaml:"-" jsonschema:"-"`
}

// IsZero reports whether the list allows nothing.
func (l Hosts) IsZero() bool { return len(l.Allow) == 0 && len(l.Services) == 0 }

// Equal reports whether two lists say the same in the same order.
func (l Hosts) Equal(o Hosts) bool {
	same := func(a, b ServiceUse) bool { return a.Name == b.Name && slices.Equal(a.Allow, b.Allow) }
	return slices.Equal(l.Allow, o.Allow) && slices.Equal(l.Deny, o.Deny) &&
		slices.EqualFunc(l.Services, o.Services, same)
}

// Problems returns what is wrong with the list.
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

// HostRule is one entry of a list.
type HostRule struct {
	text  string
	hosts []hostPattern
}

// String returns the rule as it was written.
func (r HostRule) String() string { return r.text }

// hostPattern matches hosts.
type hostPattern struct {
	name string // without the leading "*." of a wildcard, lower case
	wild bool
	port uint16 // zero is 80 and 443
}

// HostMatch is how a rule matches a host.
type HostMatch struct {
	Rule  string
	Named bool // the rule names the port
}

// HostPresets returns the names of the presets, as rules write them.
func HostPresets() []string {
	var names []string
	for name := range hostPresets() {
		names = append(names, presetPrefix+name)
	}
	slices.Sort(names)
	return names
}

// hostPresets reads presets.txt.
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

// ParseHost reads a rule.
func ParseHost(text string) (HostRule, *hint.Problem) {
	r := HostRule{text: text}
	if name, ok := strings.CutPrefix(text, presetPrefix); ok {
		hosts := hostPresets()[name]
		if hosts == nil {
			todo := "available: " + strings.Join(HostPresets(), ", ")
			if near, ok := suggest.Closest(name, slices.Sorted(maps.Keys(hostPresets()))); ok { // without the prefix
				todo = fmt.Sprintf("did you mean %q?", presetPrefix+near)
			}
			return r, &hint.Problem{Message: fmt.Sprintf("unknown preset %q", sanitize.Clip(text)), Hint: todo}
		}
		for _, h := range hosts {
			p, _ := parseHostPattern(h) // a test reads them all
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

// cutPort cuts a port off the end. An address of IPv6 has one only when it is in brackets.
func cutPort(text string) (host, port string, ok bool) {
	if !strings.HasPrefix(text, "[") && strings.Count(text, ":") != 1 {
		return text, "", false
	}
	i := strings.LastIndex(text, ":")
	if i <= strings.LastIndex(text, "]") { // also where there is neither
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

// Host returns a name or address as rules compare it: lower case, without brackets and the dot at the end. It reports
// whether it is one.
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
	if name == "" || len(name) > maxHost {
		return name, false
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > maxLabel || l[0] == '-' || l[len(l)-1] == '-' || strings.ContainsFunc(l, func(r rune) bool { return !labelRune(r) }) {
			return name, false
		}
	}
	// What resolvers might take for an address in one of its older notations is no name.
	last := labels[len(labels)-1]
	return name, !(last[0] >= '0' && last[0] <= '9')
}

func labelRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

// match reports whether the rule is about a host, which is as Host returns it.
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

// about reports whether the rule names a host, whatever the port.
func (r HostRule) about(host string) bool {
	return slices.ContainsFunc(r.hosts, func(p hostPattern) bool { return p.about(host) })
}

func (p hostPattern) about(host string) bool {
	if p.wild {
		return strings.HasSuffix(host, "."+p.name)
	}
	return host == p.name
}

// denies reports whether a rule of deny is about a host and a port: one without a port is about all.
func (r HostRule) denies(host string, port uint16) bool {
	return slices.ContainsFunc(r.hosts, func(p hostPattern) bool {
		return (p.port == 0 || p.port == port) && p.about(host)
	})
}

// HostSet is a list that was read.
type HostSet struct{ allow, deny []HostRule }

// Compile reads a list; its first problem is the error.
func (l Hosts) Compile() (*HostSet, error) {
	if problems := l.Problems(); problems != nil {
		return nil, problems[0]
	}
	s := &HostSet{}
	for _, text := range l.Allow {
		r, _ := ParseHost(text)
		s.allow = append(s.allow, r)
	}
	for _, text := range l.Deny {
		r, _ := ParseHost(text)
		s.deny = append(s.deny, r)
	}
	return s, nil
}

// Match looks for the rule by which a host, as Host returns it, may be reached. Without one, why says which rule
// refuses it; more are further rules that allow.
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
