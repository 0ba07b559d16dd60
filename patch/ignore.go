package patch

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// IgnoreFile is the name of the files with Git's rules of what is left out.
const IgnoreFile = ".gitignore"

// Bounds of an Ignorer: the files may come from code that is not trusted.
const (
	maxIgnoreFiles = 2000
	maxIgnoreBytes = 1 << 20 // of all files
	maxIgnoreRules = 10_000
	maxRuleBytes   = 1024
	maxMatching    = 1 << 29 // of what is compared, in bytes: some seconds
)

// Ignorer has the rules of the .gitignore files of a tree, which may come one
// after the other. The zero value has none. It is not safe for concurrent use.
//
// There is a bound to the files, to their rules and to the work of matching
// them. Past it nothing is left out any more, and Err says so. Git never
// leaves out what it tracks; that is for the caller to know. Its own
// directories are left out always.
type Ignorer struct {
	rules map[string][]rule // by directory
	dirs  map[string]bool   // whether a directory is left out, as far as that was asked
	files int
	bytes int
	count int // of rules
	work  int
	err   error
}

// Err returns which bound was passed; nil for none.
func (g *Ignorer) Err() error { return g.err }

// Add adds the rules of the text of a .gitignore file in dir, "." for the top,
// behind those that were added for dir before.
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

// IgnoresDir reports whether a directory, with all that is in it, is left out. It remembers its answers.
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
	pattern string // of a path relative to the file's directory
	negated bool
	dirs    bool // matches directories alone
	wild    bool // the pattern has stars or classes
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
		r.pattern, r.wild = withoutBraces(line), strings.ContainsAny(line, "*[")
		rules = append(rules, r)
	}
	return rules
}

// withoutBraces has braces stand for themselves, as in Git; those behind a backslash do already.
func withoutBraces(line string) string {
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line):
			b.WriteByte(c)
			i++
		case c == '{' || c == '}':
			b.WriteByte('\\')
		}
		b.WriteByte(line[i])
	}
	return b.String()
}

// ignored reports whether the last rule that matches the path leaves it out; those of the nearest directory come last.
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

// cost returns how much is compared for a match, in bytes. Behind a star each place of the path may be tried for the
// whole rest of the pattern; short ones are counted as what they mostly cost.
func (r *rule) cost(name string) int {
	if r.wild && len(r.pattern) > shortRule {
		return (len(r.pattern) + 1) * (len(name) + 1)
	}
	return len(r.pattern) + len(name) + 1
}

const shortRule = 32

// IsPrivate reports whether a path below the work directory is not part of a project's files: version control's at any
// depth, which may be a file, such as .git in a Git submodule, and Workcell's own directory.
func IsPrivate(name string) bool {
	switch path.Base(name) {
	case ".git", ".hg", ".svn":
		return true
	}
	return name == ".workcell"
}
