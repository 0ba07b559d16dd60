package patch

import (
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Ignore returns a function that reports whether the .gitignore files of a
// tree leave a path out. What Git tracks already it never leaves out; that is
// for the caller to know. Git's own directories are left out always.
func Ignore(tree Tree) func(name string) bool {
	var rules Ignorer
	for name, e := range tree {
		if path.Base(name) == IgnoreFile && !e.isLink() {
			rules.Add(path.Dir(name), string(e.Content))
		}
	}
	return rules.Ignores
}

// IgnoreFile is the name of the files with Git's rules of what is left out.
const IgnoreFile = ".gitignore"

// Ignorer has the rules of the .gitignore files of a tree, which may come one
// after the other. The zero value has none. It is not safe for concurrent use.
type Ignorer struct {
	rules map[string][]rule // by directory
}

// Add adds the rules of the text of a .gitignore file in dir, "." for the top,
// behind those that were added for dir before.
func (g *Ignorer) Add(dir, text string) {
	if g.rules == nil {
		g.rules = map[string][]rule{}
	}
	g.rules[dir] = append(g.rules[dir], parseRules(text)...)
}

// Ignores reports whether a path that is no directory is left out.
func (g *Ignorer) Ignores(name string) bool { return g.ignores(name, false) }

// IgnoresDir reports whether a directory, with all that is in it, is left out.
func (g *Ignorer) IgnoresDir(name string) bool { return g.ignores(name, true) }

func (g *Ignorer) ignores(name string, isDir bool) bool {
	parts := strings.Split(name, "/")
	for i := range parts {
		// What lies in a directory that is left out cannot be taken in again.
		if parts[i] == ".git" || ignored(g.rules, parts[:i+1], isDir || i < len(parts)-1) {
			return true
		}
	}
	return false
}

// rule is a line of a .gitignore file.
type rule struct {
	pattern string // of a path relative to the file's directory
	negated bool
	dirs    bool // matches directories alone
}

func parseRules(text string) []rule {
	var rules []rule
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
			line = line[:len(line)-1]
		}
		if line == "" || line[0] == '#' {
			continue
		}
		var r rule
		line, r.negated = strings.CutPrefix(line, "!")
		line, r.dirs = strings.CutSuffix(line, "/")
		if !strings.Contains(line, "/") {
			line = "**/" + line
		}
		line = strings.TrimPrefix(line, "/")
		if strings.HasSuffix(line, "/**") {
			line += "/*" // what is in the directory, and not the directory
		}
		r.pattern = strings.NewReplacer("{", `\{`, "}", `\}`).Replace(line)
		rules = append(rules, r)
	}
	return rules
}

// ignored reports whether the last rule that matches the path leaves it out; those of the nearest directory come last.
func ignored(rules map[string][]rule, parts []string, isDir bool) bool {
	out := false
	for i := range parts {
		for _, r := range rules[path.Join(append([]string{"."}, parts[:i]...)...)] {
			if r.dirs && !isDir {
				continue
			}
			if ok, err := doublestar.Match(r.pattern, strings.Join(parts[i:], "/")); err == nil && ok {
				out = !r.negated
			}
		}
	}
	return out
}
