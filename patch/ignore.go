package patch

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// IgnoreFile is the name of files with Git's ignore rules.
const IgnoreFile = ".gitignore"

// Limits of an Ignorer, because the files may come from untrusted code.
const (
	maxIgnoreFiles = 2000
	maxIgnoreBytes = 1 << 20 // total size of all files
	maxIgnoreRules = 10_000
	maxRuleBytes   = 1024
	maxMatching    = 1 << 29 // total size of all comparisons in bytes: a few seconds
)

// Ignorer contains the rules of a tree's .gitignore files, which can be added one by one. The zero value has no rules.
// It is not safe for concurrent use.
//
// The number of files, the number of rules, and the work of matching are limited. If a limit is exceeded, Ignorer stops
// ignoring files, and Err returns an error. Git never ignores tracked files; the caller must check this. Git's own
// directories are always ignored.
type Ignorer struct {
	rules map[string][]rule // by directory
	dirs  map[string]bool   // cached results of IgnoresDir
	files int
	bytes int
	count int // number of rules
	work  int
	err   error
}

// Err returns an error for the exceeded limit, or nil.
func (g *Ignorer) Err() error { return g.err }

// Add adds the rules of a .gitignore file in dir. The top directory is ".". The rules come after earlier rules for dir.
func (g *Ignorer) Add(dir, text string) {
	if g.rules == nil {
		g.rules = map[string][]rule{}
	}
	g.dirs = nil
	g.files++
	g.bytes += len(text)
	switch {
	case g.err != nil:
		return
	case g.files > maxIgnoreFiles:
		g.err = fmt.Errorf("more than %d %s files", maxIgnoreFiles, IgnoreFile)
		return
	case g.bytes > maxIgnoreBytes:
		g.err = fmt.Errorf("more than %d bytes of %s files", maxIgnoreBytes, IgnoreFile)
		return
	}
	rules := parseRules(text)
	g.count += len(rules)
	long := slices.ContainsFunc(rules, func(r rule) bool { return len(r.pattern) > maxRuleBytes })
	switch {
	case g.count > maxIgnoreRules:
		g.err = fmt.Errorf("more than %d rules in %s files", maxIgnoreRules, IgnoreFile)
	case long:
		g.err = fmt.Errorf("a rule of more than %d bytes in a %s file", maxRuleBytes, IgnoreFile)
	case len(rules) > 0:
		g.rules[dir] = append(g.rules[dir], rules...)
	}
}

// Ignores reports whether the rules exclude a file. A file in an excluded directory is always excluded.
func (g *Ignorer) Ignores(name string) bool {
	dir, base := path.Split(name)
	return base == ".git" || dir != "" && g.IgnoresDir(path.Clean(dir)) || g.ignored(name, false)
}

// IgnoresDir reports whether a directory and all contents are excluded. It caches the result.
func (g *Ignorer) IgnoresDir(name string) bool {
	if out, known := g.dirs[name]; known {
		return out
	}
	above := path.Dir(name)
	out := path.Base(name) == ".git" || above != "." && g.IgnoresDir(above) || g.ignored(name, true)
	if g.dirs == nil {
		g.dirs = map[string]bool{}
	}
	g.dirs[name] = out
	return out
}

// rule is a line of a .gitignore file.
type rule struct {
	pattern string // relative to the file's directory
	negated bool
	dirs    bool // matches only directories
	wild    bool // the pattern contains stars or classes
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
			line += "/*" // matches the contents of the directory but not the directory
		}
		r.pattern, r.wild = withoutBraces.Replace(line), strings.ContainsAny(line, "*[")
		rules = append(rules, r)
	}
	return rules
}

// withoutBraces escapes braces, which have no special meaning in Git. Escaped braces stay unchanged.
var withoutBraces = strings.NewReplacer(`\\`, `\\`, `\{`, `\{`, `\}`, `\}`, `{`, `\{`, `}`, `\}`)

// ignored reports whether the last matching rule excludes the path. Rules of nearer directories come later.
func (g *Ignorer) ignored(name string, isDir bool) bool {
	out := false
	for end := -1; end < len(name); {
		dir, below := ".", name[end+1:]
		if end > 0 {
			dir = name[:end]
		}
		for _, r := range g.rules[dir] {
			if r.dirs && !isDir {
				continue
			}
			if g.work += r.cost(below); g.work > maxMatching && g.err == nil {
				g.err = fmt.Errorf("the rules of the %s files are too many and too long for so many files", IgnoreFile)
			}
			if g.err != nil {
				return false
			}
			if ok, err := doublestar.Match(r.pattern, below); err == nil && ok {
				out = !r.negated
			}
		}
		next := strings.IndexByte(below, '/')
		if next < 0 {
			break
		}
		end += 1 + next
	}
	return out && g.err == nil
}

// cost returns the work of a match in bytes. After a star, the rest of the pattern may be compared at each position of
// the path. For short patterns, cost returns the typical work.
func (r *rule) cost(name string) int {
	if r.wild && len(r.pattern) > shortRule {
		return (len(r.pattern) + 1) * (len(name) + 1)
	}
	return len(r.pattern) + len(name) + 1
}

const shortRule = 32

// IsPrivate reports whether a path in the workspace does not belong to the project's files. These paths are version
// control directories, such as .git, at any depth, and Workcell's own directory, but not the paths below them. In a Git
// submodule, .git is a file.
func IsPrivate(name string) bool {
	switch path.Base(name) {
	case ".git", ".hg", ".svn":
		return true
	}
	return name == ".workcell"
}
