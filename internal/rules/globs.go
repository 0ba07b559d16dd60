package rules

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/workcell-dev/workcell/internal/hint"
)

const (
	maxGlobs        = 100   // maximum length of a list
	maxAlternatives = 1_000 // maximum of a list, because each one takes time for every file
)

// Globs are patterns for paths below the work directory, for example dist/**. They can contain `*`, `?`, `[…]`, and
// `{…}` as in shells, and `**` for any number of directories. A question mark at the end of a pattern marks a possibly
// missing file.
type Globs []string

// Problems returns all problems with the patterns. Their fields are "outputs", or "outputs[N]" for a single pattern.
func (g Globs) Problems() (list hint.Problems) {
	if len(g) > maxGlobs {
		list.Add("outputs", "", "outputs has %d entries, the limit is %d", len(g), maxGlobs)
		return list
	}
	all := 0.0
	for i, text := range g {
		glob, _ := splitGlob(text)
		field := fmt.Sprintf("outputs[%d]", i)
		switch {
		case path.IsAbs(glob):
			list.Add(field, "use a path relative to /workspace", "the output %q is absolute", text)
		case !fs.ValidPath(glob) || glob == ".":
			list.Add(field, `for example report.csv, "dist/**" or "coverage.xml?"`,
				"the output %q is not a path below /workspace", text)
		case !doublestar.ValidatePattern(glob):
			list.Add(field, "close every [ and {, and put \\ before literal characters", "the output %q is not a pattern", text)
		case all+alternatives(glob) > maxAlternatives:
			list.Add(field, "use fewer braces", "with the output %q, the list has more than %d alternatives", text,
				maxAlternatives)
		case slices.Index(g, text) < i:
			list.Add(field, "remove one of the two", "duplicate output %q", text)
		default:
			all += alternatives(glob)
		}
	}
	return list
}

// alternatives returns the number of patterns without braces that a pattern stands for, or a larger number.
func alternatives(glob string) float64 {
	n := 1.0
	for _, group := range strings.Split(glob, "{")[1:] {
		n *= float64(strings.Count(group, ",") + 1)
	}
	return n
}

// splitGlob returns the pattern of an entry, and whether the file can be missing.
func splitGlob(text string) (glob string, optional bool) {
	return strings.CutSuffix(text, "?")
}

// Match reports whether a path is an output. A pattern for a directory includes everything in it.
func (g Globs) Match(name string) bool {
	return slices.ContainsFunc(g, func(text string) bool { return matchGlob(text, name) })
}

func matchGlob(text, name string) bool {
	glob, _ := splitGlob(text)
	for ; name != "."; name = path.Dir(name) {
		if doublestar.MatchUnvalidated(glob, name) {
			return true
		}
	}
	return false
}

// Enter reports whether a directory can contain outputs.
func (g Globs) Enter(dir string) bool {
	return slices.ContainsFunc(g, func(text string) bool { return enterGlob(text, dir, true) })
}

// enterGlob reports whether a pattern can match files in a directory. From ** or from a slash in braces or brackets on,
// it returns unsure.
func enterGlob(text, dir string, unsure bool) bool {
	glob, _ := splitGlob(text)
	parts := strings.Split(glob, "/")
	for i, name := range strings.Split(dir, "/") {
		switch {
		case i == len(parts):
			return true
		case strings.Contains(parts[i], "**"), !doublestar.ValidatePattern(parts[i]):
			return unsure
		case !doublestar.MatchUnvalidated(parts[i], name):
			return false
		}
	}
	return true
}

// Lost returns a function to check whether outputs other than found may be in a directory that could not be read
// completely. A pattern with ** can match files in almost every directory, so below ** only directories with outputs
// count.
func (g Globs) Lost(found []string) func(dir string) bool {
	holds := map[string]bool{".": true} // the outputs and their directories
	for _, name := range found {
		for ; !holds[name]; name = path.Dir(name) {
			holds[name] = true
		}
	}
	return func(dir string) bool {
		return slices.ContainsFunc(g, func(text string) bool {
			glob, _ := splitGlob(text)
			known := holds[glob] // the only possible output of a pattern without special characters
			return matchGlob(text, dir) || !known && (dir == "." || enterGlob(text, dir, holds[dir]))
		})
	}
}

// Missing returns the patterns without a matching path, without a question mark at the end. The patterns for possibly
// missing files are in optional. first is the index of the first other one.
func (g Globs) Missing(names []string) (first int, missing, optional []string) {
	for i, text := range g {
		glob, ok := splitGlob(text)
		switch {
		case slices.ContainsFunc(names, func(name string) bool { return matchGlob(text, name) }):
		case ok:
			optional = append(optional, glob)
		default:
			if missing = append(missing, glob); len(missing) == 1 {
				first = i
			}
		}
	}
	return first, missing, optional
}

// In returns the matching files of fsys, in order. It skips unreadable directories.
func (g Globs) In(fsys fs.FS) []string {
	var names []string
	_ = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		// Files and directories with errors are skipped.
		switch {
		case err != nil && d != nil && d.IsDir():
			return fs.SkipDir
		case err != nil || name == ".":
			return nil
		case d.IsDir() && !g.Enter(name):
			return fs.SkipDir
		case !d.IsDir() && g.Match(name):
			names = append(names, name)
		}
		return nil
	})
	return names
}
