package tools

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/frontmatter"
)

// template is the text of a template and its location.
type template struct {
	file string
	line int // first line of the text in the file
	text string
}

// problem returns an error with the line and column of offset.
func (t template) problem(offset int, hint, format string, args ...any) *frontmatter.Error {
	before := t.text[:offset]
	return &frontmatter.Error{
		File: t.file, Line: t.line + strings.Count(before, "\n"),
		Column:  utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1,
		Message: fmt.Sprintf(format, args...), Hint: hint,
	}
}

// include is a reference to a partial in a template.
type include struct {
	name   string
	offset int
}

// computed reports whether the name is an expression, which Genkit cannot resolve.
func (i include) computed() bool { return strings.HasPrefix(i.name, "(") }

var (
	includes = regexp.MustCompile(`\{\{~?>\s*([^\s}~]+)`)
	// silent matches text only looks like template syntax: comments, and braces after an unescaped backslash.
	silent = regexp.MustCompile(`(?s)\{\{~?!--.*?--~?\}\}|\{\{~?!.*?\}\}|\\\\\{\{|\\\{\{`)
)

// includes returns the partials referenced in the template.
func (t template) includes() []include {
	live := silent.ReplaceAllStringFunc(t.text, func(s string) string {
		if s == `\\{{` {
			return s
		}
		return strings.Repeat(" ", len(s))
	})
	var list []include
	for _, m := range includes.FindAllStringSubmatchIndex(live, -1) {
		list = append(list, include{name: strings.Trim(live[m[2]:m[3]], `"'`), offset: m[0]})
	}
	return list
}

// partials are the partials of a directory tree by name.
type partials map[string]template

func partialName(file string) string {
	return strings.TrimSuffix(strings.TrimPrefix(path.Base(file), "_"), promptSuffix)
}

// findPartials reads the partials in the root of fsys. If deep is set, it includes subdirectories. Errors show file
// names with prefix.
func findPartials(fsys fs.FS, prefix string, deep bool) (partials, error) {
	found := partials{}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if !deep && name != "." && d.IsDir() {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || path.Ext(name) != promptSuffix || !isPartial(name) {
			return err
		}
		file := path.Join(prefix, name)
		src, err := frontmatter.ReadFS(fsys, name, file)
		if err != nil {
			return err
		}
		if other, ok := found[partialName(name)]; ok {
			return &frontmatter.Error{File: file,
				Message: fmt.Sprintf("the partial %q is already defined in %s", partialName(name), other.file)}
		}
		found[partialName(name)] = template{file: file, line: 1, text: string(src)}
		return nil
	})
	return found, err
}

// cycleFrom returns an error if a partial includes itself, directly or through other partials. Rendering such a partial
// would never end and would overflow the program's stack.
func (ps partials) cycleFrom(start string) error {
	done := map[string]bool{}
	var way []string
	var visit func(name string) error
	visit = func(name string) error {
		t, ok := ps[name]
		if !ok || done[name] {
			return nil
		}
		way = append(way, name)
		for _, next := range t.includes() {
			if next.computed() {
				return t.problem(next.offset, "write it out", "the name of an included partial must be literal")
			}
			if i := slices.Index(way, next.name); i >= 0 {
				return t.problem(next.offset, "partials must not be recursive", "the partial includes itself: %s",
					strings.Join(append(way[i:], next.name), " > "))
			}
			if err := visit(next.name); err != nil {
				return err
			}
		}
		way = way[:len(way)-1]
		done[name] = true
		return nil
	}
	return visit(start)
}

// needed returns the partials a template includes, directly or through other partials.
func (ps partials) needed(text string) []string {
	var names []string
	var add func(text string)
	add = func(text string) {
		for _, inc := range (template{text: text}).includes() {
			if p, ok := ps[inc.name]; ok && !slices.Contains(names, inc.name) {
				names = append(names, inc.name)
				add(p.text)
			}
		}
	}
	add(text)
	return names
}
