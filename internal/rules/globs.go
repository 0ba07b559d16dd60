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

// maxGlobs bounds a list.
const maxGlobs = 100

// Globs are patterns of paths below the work directory: `*`, `?`, `[…]` and `{…}` as in shells, `**` for any number of
// directories. A question mark at the end of one says that it may be missing.
type Globs []string

// Problems returns everything that is wrong with the patterns. Fields are outputs, and outputs[N] for a pattern.
func (g Globs) Problems() (list hint.Problems) {
	if len(g) > maxGlobs {
		list.Add("outputs", "", "outputs has %d entries, the limit is %d", len(g), maxGlobs)
		return list
	}
	for i, text := range g {
		glob, _ := splitGlob(text)
		field := fmt.Sprintf("outputs[%d]", i)
		switch {
		case path.IsAbs(glob):
			list.Add(field, "use a path relative to /workspace", "the output %q is absolute", text)
		case !fs.ValidPath(glob) || glob == ".":
			list.Add(field, `for example report.csv, "dist/**" or "coverage.xml?"`, "the output %q is not a path below /workspace", text)
		case !doublestar.ValidatePattern(glob):
			list.Add(field, "close every [ and {, and put \\ before literal characters", "the output %q is not a pattern", text)
		case slices.Index(g, text) < i:
			list.Add(field, "remove one of the two", "duplicate output %q", text)
		}
	}
	return list
}

// splitGlob returns the pattern of an entry, and whether it may be missing.
func splitGlob(text string) (glob string, optional bool) {
	return strings.CutSuffix(text, "?")
}

// Match reports whether a path is an output. A pattern that names a directory means all that is in it.
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

// Enter reports whether there may be outputs in a directory.
func (g Globs) Enter(dir string) bool {
	return slices.ContainsFunc(g, func(text string) bool {
		glob, _ := splitGlob(text)
		return enterGlob(strings.Split(glob, "/"), strings.Split(dir, "/"))
	})
}

// enterGlob reports whether a pattern, by its parts, may match what lies in a directory.
func enterGlob(glob, dir []string) bool {
	for i, name := range dir {
		if i == len(glob) || glob[i] == "**" || strings.ContainsAny(glob[i], "{\\") { // braces and backslashes may reach over slashes
			return true
		}
		if !doublestar.MatchUnvalidated(glob[i], name) {
			return false
		}
	}
	return true
}

// Missing returns the indices of the patterns that none of the paths matches, those of patterns that may be missing
// apart.
func (g Globs) Missing(names []string) (missing, optional []int) {
	for i, text := range g {
		if slices.ContainsFunc(names, func(name string) bool { return matchGlob(text, name) }) {
			continue
		}
		if _, ok := splitGlob(text); ok {
			optional = append(optional, i)
		} else {
			missing = append(missing, i)
		}
	}
	return missing, optional
}

// Pick returns the patterns at some indices, without the mark of those that may be missing.
func (g Globs) Pick(at []int) (list []string) {
	for _, i := range at {
		glob, _ := splitGlob(g[i])
		list = append(list, glob)
	}
	return list
}

// In returns the files of fsys that match, in order. A directory that cannot be read has none.
func (g Globs) In(fsys fs.FS) []string {
	var names []string
	_ = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error { // what fails is passed over
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
