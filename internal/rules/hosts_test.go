package rules_test

import (
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/rules"
)

func TestHostMatch(t *testing.T) {
	t.Parallel()
	set, err := rules.Hosts{
		Allow: []string{"Example.org.", "*.cdn.example.org", "git.example.org:22", "10.0.0.7:8080", "[2001:db8::1]:443", "registry:pypi", "registry:github"},
		Deny:  []string{"bad.cdn.example.org", "example.org:80", "*.evil.cdn.example.org"},
	}.Compile()
	checktest.Must(t, err)
	for _, tt := range []struct {
		host string
		port uint16
		rule string // the allowing rule, or
		why  string
	}{
		{"example.org", 443, "Example.org.", ""},
		{"example.org", 80, "", "network.deny: example.org:80"},
		{"example.org", 8443, "", "network.allow does not name port 8443 of it"},
		{"www.example.org", 443, "", "network.allow does not name it"},
		{"notexample.org", 443, "", "network.allow does not name it"},
		{"example.org.evil.net", 443, "", "network.allow does not name it"},
		{"a.cdn.example.org", 80, "*.cdn.example.org", ""},
		{"a.b.cdn.example.org", 443, "*.cdn.example.org", ""},
		{"cdn.example.org", 443, "", "network.allow does not name it"},
		{"xcdn.example.org", 443, "", "network.allow does not name it"},
		{"bad.cdn.example.org", 443, "", "network.deny: bad.cdn.example.org"},
		{"a.evil.cdn.example.org", 443, "", "network.deny: *.evil.cdn.example.org"},
		{"git.example.org", 22, "git.example.org:22", ""},
		{"git.example.org", 443, "", "network.allow does not name port 443 of it"},
		{"10.0.0.7", 8080, "10.0.0.7:8080", ""},
		{"2001:db8::1", 443, "[2001:db8::1]:443", ""},
		{"files.pythonhosted.org", 443, "registry:pypi", ""},
		{"raw.githubusercontent.com", 443, "registry:github", ""},
		{"gist.github.com", 443, "", "network.allow does not name it"},
	} {
		m, why := set.Match(tt.host, tt.port)
		if m.Rule != tt.rule || why != tt.why {
			t.Errorf("%s:%d: rule %q, why %q; want %q, %q", tt.host, tt.port, m.Rule, why, tt.rule, tt.why)
		}
		if m.Named != (tt.rule != "" && strings.HasSuffix(tt.rule, "2") || strings.HasSuffix(tt.rule, "8080") || strings.HasSuffix(tt.rule, "]:443")) {
			t.Errorf("%s:%d: named is %v", tt.host, tt.port, m.Named)
		}
	}
	more, problem := rules.ParseHost("www.example.org")
	if problem != nil {
		t.Fatal(problem)
	}
	if m, why := set.Match("www.example.org", 443, more); m.Rule != "www.example.org" || why != "" {
		t.Errorf("%+v, %s", m, why)
	}
}

func TestHostProblems(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "is not a host",
		"https://a.org":         "without scheme and path",
		"a.org/x":               "without scheme and path",
		"10.0.0.0/8":            "not networks",
		"registry:nosuch":       "registry:crates, registry:debian",
		"*":                     "enabled: true",
		"*.org":                 "top-level domain",
		"*.*.org":               "only allowed at the beginning",
		"a*.org":                "only allowed at the beginning",
		"*.10.0.0.1":            "an IP address",
		"a.org:0":               "1 to 65535",
		"a.org:65536":           "1 to 65535",
		"a.org:https":           "1 to 65535",
		"pypi:npm":              "did you mean registry:npm?",
		"registry:pipy":         `did you mean "registry:pypi"?`,
		"registry:nothing-like": "registry:crates, registry:debian",
		"bücher.example":        "xn--",
		"a b.org":               "is not a host",
		"-a.org":                "is not a host",
		"a..org":                "is not a host",
		"user@a.org":            "is not a host",
		"0x7f.1":                "is not a host",
		"2130706433":            "is not a host",
		"[::1":                  "is not a host",
		"fe80::1%eth0":          "is not a host",
		strings.Repeat("a", 64): "is not a host",
	} {
		_, err := rules.ParseHost(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, name := range rules.HostPresets() {
		if _, err := (rules.Hosts{Allow: []string{name}}).Compile(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(rules.HostPresets()); n != 6 {
		t.Errorf("%d presets", n)
	}
}

// FuzzParseHost: a valid rule matches only hosts in its text.
func FuzzParseHost(f *testing.F) {
	for _, seed := range []string{"a.org", "*.a.org:443", "[::1]:80", "::1", "registry:go", "1.2.3.4", "a.org.", "A.ORG:1", "["} {
		f.Add(seed, "a.org")
	}
	f.Fuzz(func(t *testing.T, rule, host string) {
		r, err := rules.ParseHost(rule)
		name, ok := rules.Host(host)
		if again, ok2 := rules.Host(name); ok && (!ok2 || again != name) && !strings.HasPrefix(host, "[") {
			t.Errorf("%q is %q, which is %q, %v", host, name, again, ok2)
		}
		if err != nil || !ok || strings.HasPrefix(rule, "registry:") {
			return
		}
		set, cerr := rules.Hosts{Allow: []string{rule}}.Compile()
		if cerr != nil {
			t.Fatalf("%q: %v", rule, cerr)
		}
		if m, _ := set.Match(name, 443); m.Rule != "" && !strings.Contains(strings.ToLower(rule), strings.TrimPrefix(name[strings.Index(name, ".")+1:], ".")) && !strings.Contains(name, ":") {
			t.Errorf("%q matches %q", r, name)
		}
	})
}
