package rules

import (
	"strings"
	"testing"
)

// TestNames: package names in registries are allowed, and names with another meaning for pip or npm are refused.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		list     func([]string) Environment
		good     string // separated by |, except for npm ranges
		bad      []string
		unpacked []string
	}{
		{func(l []string) Environment { return Environment{Pip: l} }, "requests|requests==2.31.0|requests>=2.31,<3|requests >= 2.31, < 3|uvicorn[standard]~=0.30|zope.interface|ruamel.yaml===0.18|torch==2.1.0+cpu|a|pkg!=1.*|typing_extensions", []string{
			"", "-r", "--index-url=http://x", "-e.", ".", "..", "./x", "x/y", "/etc/passwd", `x\y`, "http://x/y.whl", "x @ http://y", "git+https://x/y", "x; python_version<'3'",
			"x.whl", "x.tar.gz", "x.ZIP", "x$(id)", "x`id`", "x\nrequests", "x\n", "x==1 --pre", "x==1.", "x==-1", "x>", "x[", "x[a", "x==1\x00", "$HOME", "x y", "file:x", "~x", "é", strings.Repeat("a", 201),
		}, nil},
		{func(l []string) Environment { return Environment{Npm: l} }, "lodash|lodash@4.17.21|lodash@^4|lodash@~4.17.0|@types/node@20|lodash@latest|lodash@>=4 <5|lodash@1 - 2|lodash@*|lodash@4.x|is-odd@3.0.1-beta.2+build.5|jquery.min|left-pad@next-7", []string{
			"", "-g", "--registry=http://x", ".", "..", "./x", "../x", "/x", "x/y", "github:x/y", "git+ssh://x", "http://x/y.tgz", "x@http://y", "x@file:..", "x@.", "x@..", "x@./y",
			"x@npm:y", "npm:y", "x.tgz", "x@y.tgz", "x@1.tgz", "x@1.0.0-a.tar", "@x", "@x/", "@/x", "@../x", "@x/../y", "x@", "x@~/y", "X", "x$(id)", "x@1;id", "x@1\n", "x\nid", "_x", "x@1 --foo", strings.Repeat("a", 201),
		}, []string{"lodash@1 || 2", "lodash@^1||^2"}},
	} {
		for _, name := range append(strings.Split(c.good, "|"), c.unpacked...) {
			if found := c.list([]string{name}).Problems(); found != nil {
				t.Errorf("%q: %v", name, found)
			}
		}
		for _, name := range c.bad {
			if found := c.list([]string{"ok", name}).Problems(); len(found) != 1 || !strings.HasSuffix(found[0].Field, "_packages[1]") {
				t.Errorf("%q passes: %v", name, found)
			}
		}
		if found := c.list(make([]string, maxPackages+1)).Problems(); len(found) == 0 || !strings.HasSuffix(found[0].Field, "_packages") {
			t.Errorf("too many: %v", found)
		}
	}
}

// FuzzNames: shells, pip, and npm treat an allowed entry only as a name and versions.
func FuzzNames(f *testing.F) {
	f.Add("requests>=2.31,<3")
	f.Add("@types/node@20")
	f.Fuzz(func(t *testing.T, name string) {
		if (Environment{Pip: []string{name}}).Problems() == nil && (strings.ContainsAny(name, "/\\:;$`'\"\n\x00@%#?&|(){}") || strings.HasPrefix(name, "-") || strings.HasPrefix(name, ".")) {
			t.Errorf("pip: %q", name)
		}
		if (Environment{Npm: []string{name}}).Problems() == nil && (strings.ContainsAny(name, "\\:;$`'\"\n\x00%#?&(){}") || strings.HasPrefix(name, "-") || strings.HasPrefix(name, ".") ||
			strings.Contains(name, "/") && name[0] != '@' || strings.Contains(name, "@.")) {
			t.Errorf("npm: %q", name)
		}
	})
}
