package tools

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/frontmatter"
)

// partial is a template that others include.
type partial struct {
	file   string // as shown in errors
	source string
	uses   []string
}

// partials are the partials of a directory tree by name.
type partials map[string]partial

var includes = regexp.MustCompile(`\{\{~?#?>\s*([^\s}~]+)`)

func partialName(file string) string {
	return strings.TrimSuffix(strings.TrimPrefix(path.Base(file), "_"), promptSuffix)
}

// findPartials reads the partials in the root of fsys, when deep also those below it; prefix is put before their names in
// errors.
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
		p := partial{file: file, source: string(src)}
		for _, m := range includes.FindAllStringSubmatch(p.source, -1) {
			p.uses = append(p.uses, strings.Trim(m[1], `"'`))
		}
		if other, ok := found[partialName(name)]; ok {
			return &frontmatter.Error{File: file, Message: fmt.Sprintf("the partial %q is defined in %s too", partialName(name), other.file)}
		}
		found[partialName(name)] = p
		return nil
	})
	return found, err
}

// cycleFrom refuses a partial that includes itself, over others or not: rendering one never ends, and overflows the stack
// of the program.
func (ps partials) cycleFrom(start string) error {
	done := map[string]bool{}
	var way []string
	var visit func(name string) error
	visit = func(name string) error {
		p, ok := ps[name]
		if i := slices.Index(way, name); i >= 0 {
			return &frontmatter.Error{
				File: p.file, Message: "the partial includes itself: " + strings.Join(append(way[i:], name), " > "),
				Hint: "partials must not be recursive",
			}
		}
		if !ok || done[name] {
			return nil
		}
		way = append(way, name)
		for _, next := range p.uses {
			if strings.HasPrefix(next, "(") {
				return &frontmatter.Error{File: p.file, Message: "the name of an included partial is computed", Hint: "write it out"}
			}
			if err := visit(next); err != nil {
				return err
			}
		}
		way = way[:len(way)-1]
		done[name] = true
		return nil
	}
	return visit(start)
}

// needed gives the partials that a template includes, over others too.
func (ps partials) needed(template string) []string {
	var names []string
	var add func(text string)
	add = func(text string) {
		for _, m := range includes.FindAllStringSubmatch(text, -1) {
			name := strings.Trim(m[1], `"'`)
			if p, ok := ps[name]; ok && !slices.Contains(names, name) {
				names = append(names, name)
				add(p.source)
			}
		}
	}
	add(template)
	return names
}
