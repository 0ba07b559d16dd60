package rules

import (
	"net/url"
	"path"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestServiceRules(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule    string
		yes, no []string // requests
	}{
		{"GET /repos/**", []string{"GET /repos/a", "GET /repos/a/b/", "GET /repos", "HEAD /repos/a"}, []string{"POST /repos/a", "GET /repo", "GET /reposx/a", "GET /"}},
		{"POST /repos/acme/*/issues", []string{"POST /repos/acme/x/issues"}, []string{"POST /repos/acme/x/y/issues", "POST /repos/acme/x/issues/", "POST /repos/acme//issues"}},
		{"* /", []string{"GET /", "DELETE /"}, []string{"GET /x", "TRACE /", "track /", "CONNECT /"}},
		{"GET /a/%7e", []string{"GET /a/~"}, []string{"GET /a/%7E"}},
		{"GET /a/*", []string{"GET /a/b"}, []string{"GET /a/", "GET /a"}},
	} {
		r, err := ParseServiceRule(tt.rule)
		if err != nil {
			t.Errorf("%s: %v", tt.rule, err)
			continue
		}
		for i, list := range [][]string{tt.yes, tt.no} {
			for _, request := range list {
				method, target, _ := strings.Cut(request, " ")
				if got := r.Match(method, target); got != (i == 0) {
					t.Errorf("%s matches %s: %v", tt.rule, request, got)
				}
			}
		}
	}
	for text, want := range map[string]string{
		"": "for example GET /repos/**", "/repos": "for example GET /repos/**", "GET repos": "for example GET /repos/**", "get /x": "upper case", "G-T /x": "upper case",
		"CONNECT /x": "not supported", "TRACE /x": "not supported", "GET /x?y": "contains '?'", "GET /a/../b": "remove empty segments", "GET /a//b": "remove empty segments",
		"GET /**/x": "* stands for one whole segment", "GET /a*": "* stands for one whole segment", "GET /a b": "contains ' '", "GET /%2f": "remove %2F", "GET  /x": "for example GET",
	} {
		if _, err := ParseServiceRule(text); err == nil || !strings.Contains(err.Hint, want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// FuzzServicePath: a path has one spelling, which means the same to servers after decoding, cleaning, or splitting, and
// which a client sends as it is.
func FuzzServicePath(f *testing.F) {
	for _, raw := range []string{
		"/", "/repos/a", "/repos/%61%7e/", "/a/../b", "/a/%2e%2e/b", "/a//b", "/a/..;/b", `/a\b`, "/a%5cb", "/%252e", "/%00", "/\xc0\xae", "/%c0%ae%C0%AF", "/a%2fb", "/%u002e", "/%", "/a:b@c,d=e+f'(g)!$&*", "/%E2%82%AC", "//x", "/.", "/...",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		clean, problem := ServicePath(raw)
		if problem != "" {
			if clean != "" {
				t.Fatalf("%q: %q and %s", raw, clean, problem)
			}
			return
		}
		if again, problem := ServicePath(clean); again != clean || problem != "" {
			t.Fatalf("%q: %q, again %q, %s", raw, clean, again, problem)
		}
		decoded, err := url.PathUnescape(clean)
		if err != nil {
			t.Fatalf("%q: %v", clean, err)
		}
		if twice, err := url.PathUnescape(decoded); err == nil && twice != decoded {
			t.Fatalf("%q can be decoded twice: %q", clean, twice)
		}
		if !utf8.ValidString(decoded) {
			t.Fatalf("%q is not UTF-8", clean)
		}
		if strings.ContainsAny(decoded, "\\;\x00\r\n") || strings.Count(decoded, "/") != strings.Count(clean, "/") {
			t.Fatalf("%q is %q", clean, decoded)
		}
		if got := path.Clean(decoded); got != decoded && got+"/" != decoded {
			t.Fatalf("%q means %q", decoded, got)
		}
		u := url.URL{Scheme: "http", Host: "h", Path: decoded, RawPath: clean}
		if u.EscapedPath() != clean || u.RequestURI() != clean {
			t.Fatalf("%q is sent as %q", clean, u.RequestURI())
		}
		in, err := url.ParseRequestURI(raw)
		if err != nil || in.Path != decoded {
			t.Fatalf("%q is not %q", raw, decoded)
		}
	})
}
