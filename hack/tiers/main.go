// Tiers reads hack/tests.txt, the plan of which test runs where. Each test of the repository runs in exactly one place:
// `make test` or one of the areas.
//
//	tiers PLACE    prints the lanes of a place, one a line: mode, package, backend, -test.run, -test.skip, separated by ;
//	tiers check    checks the plan against the tests in the sources, and docs/security/guarantees.md against the plan
//	tiers docs     updates the column "runs in" of docs/security/guarantees.md
package main

import (
	"bufio"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	planFile = "hack/tests.txt"
	docsFile = "docs/security/guarantees.md"
)

// places are `make test` and the areas, in the order in which the documentation lists them. "none" is for tests without
// additional value on a backend, and for tests that cannot pass there.
var places = []string{"test", "engines", "containerd2", "gvisor", "kubernetes", "postgres", "agents", "page", "network", "systems", "newcomer", "none"}

// modes are how the tests of a row run.
var modes = []string{"race", "plain", "alone"}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tiers PLACE|check|docs")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
		os.Exit(1)
	}
}

func run(command string) error {
	p, err := read(".")
	if err != nil {
		return err
	}
	switch {
	case command == "check":
		return errors.Join(p.check(), p.docs(false))
	case command == "docs":
		return p.docs(true)
	case !slices.Contains(places, command):
		return fmt.Errorf("unknown place %q, want one of %s", command, strings.Join(places, ", "))
	}
	for _, l := range p.lanes(command) {
		fmt.Println(l)
	}
	return nil
}

// row is a line of the plan. For a package and a backend, a test belongs to the first row whose pattern matches it.
type row struct {
	place, mode, pkg string
	backends         []string
	pattern          string // "." matches every test
	line             int
}

// plan contains all rows and the tests in the sources.
type plan struct {
	rows  []row
	tests map[string][]string // by folder
}

func read(root string) (*plan, error) {
	p := &plan{}
	f, err := os.Open(filepath.Join(root, planFile))
	if err != nil {
		return nil, err
	}
	defer f.Close() // opened only for reading
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 5 || !slices.Contains(places, fields[0]) || !slices.Contains(modes, fields[1]) {
			return nil, fmt.Errorf("%s:%d: want PLACE race|plain|alone PACKAGE BACKENDS PATTERN", planFile, n)
		}
		p.rows = append(p.rows, row{fields[0], fields[1], fields[2], strings.Split(fields[3], ","), fields[4], n})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if p.tests, err = tests(root); err != nil {
		return nil, err
	}
	for _, dir := range slices.Sorted(maps.Keys(p.tests)) { // a package without rows needs no engine
		if !slices.ContainsFunc(p.rows, func(r row) bool { return r.pkg == dir }) {
			p.rows = append(p.rows, row{"test", "race", dir, []string{"-"}, ".", 0})
		}
	}
	return p, nil
}

// tests returns the names of the tests, fuzz tests, and examples below root, by folder. It omits nested modules other
// than e2e.
func tests(root string) (map[string][]string, error) {
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, module := os.Stat(filepath.Join(file, "go.mod"))
			nested := module == nil && file != filepath.Join(root, "e2e")
			if file != root && (nested || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		src, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		for _, decl := range src.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && fn.Recv == nil && isTest.MatchString(fn.Name.Name) && fn.Name.Name != "TestMain" {
				found[dir] = append(found[dir], fn.Name.Name)
			}
		}
		return nil
	})
	return found, err
}

var isTest = regexp.MustCompile(`^(Test|Fuzz|Example)([^a-z]|$)`)

// lanes prints the rows of a place as lanes. A lane omits the tests of earlier rows for its package and backend.
func (p *plan) lanes(place string) []string {
	var lanes []string
	for i, r := range p.rows {
		if r.place != place {
			continue
		}
		for _, backend := range r.backends {
			run := r.pattern
			if run == "." {
				run = ""
			}
			lanes = append(lanes, strings.Join([]string{r.mode, r.pkg, backend, run, strings.Join(p.taken(i, backend), "|")}, ";"))
		}
	}
	return lanes
}

// taken returns the patterns of the rows before i for the same package and backend.
func (p *plan) taken(i int, backend string) []string {
	var patterns []string
	for _, r := range p.rows[:i] {
		if r.pkg == p.rows[i].pkg && slices.Contains(r.backends, backend) {
			patterns = append(patterns, r.pattern)
		}
	}
	return patterns
}

// matches reports whether a row's pattern matches the whole test, and whether it matches at least a part of it. The
// part of a pattern after a slash selects subtests.
func (r row) matches(test string) (whole, part bool) {
	if r.pattern == "." {
		return true, true
	}
	for _, alternative := range alternatives(r.pattern) {
		top, sub, cut := strings.Cut(alternative, "/")
		if regexp.MustCompile(top).MatchString(test) {
			part = true
			whole = whole || !cut || sub == ""
		}
	}
	return whole, part
}

// alternatives splits a pattern at the bars outside of parentheses and brackets, in the same way as the flags -run and
// -skip.
func alternatives(pattern string) []string {
	var list []string
	depth, begin := 0, 0
	for i, c := range pattern {
		switch {
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		case c == '|' && depth == 0:
			list = append(list, pattern[begin:i])
			begin = i + 1
		}
	}
	return append(list, pattern[begin:])
}

// check reports rows without a matching test, packages without tests, and tests without a matching row on some backend.
func (p *plan) check() error {
	var errs []error
	for i, r := range p.rows {
		if _, ok := p.tests[r.pkg]; !ok {
			errs = append(errs, fmt.Errorf("%s:%d: %s has no tests", planFile, r.line, r.pkg))
			continue
		}
		for _, backend := range r.backends {
			for _, alternative := range alternatives(r.pattern) {
				one := row{pattern: alternative}
				if !slices.ContainsFunc(p.tests[r.pkg], func(test string) bool { _, part := one.matches(test); return part && !p.whole(i, backend, test) }) {
					errs = append(errs, fmt.Errorf("%s:%d: no test of %s is left for %s on %s", planFile, r.line, r.pkg, alternative, backend))
				}
			}
		}
	}
	for dir, tests := range p.tests {
		for _, test := range tests {
			if len(p.placesOf(dir, test)) == 0 {
				errs = append(errs, fmt.Errorf("%s: no row for %s of %s", planFile, test, dir))
			}
			// hack/test.sh runs all packages without engines with one -skip.
			for _, r := range p.rows {
				if _, part := r.matches(test); part && r.pattern != "." && r.backends[0] == "-" && r.pkg != dir && p.bulk(dir) && p.bulk(r.pkg) {
					errs = append(errs, fmt.Errorf("%s:%d: the pattern also matches %s of %s; rename one of the tests", planFile, r.line, test, dir))
				}
			}
		}
	}
	for _, r := range p.rows {
		for _, backend := range r.backends {
			for _, test := range p.tests[r.pkg] {
				if !slices.ContainsFunc(p.rows, func(o row) bool {
					whole, _ := o.matches(test)
					return o.pkg == r.pkg && slices.Contains(o.backends, backend) && whole
				}) {
					errs = append(errs, fmt.Errorf("%s:%d: no row for all of %s of %s on %s", planFile, r.line, test, r.pkg, backend))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// bulk reports whether `make test` runs a package's tests in the same go test command as all other packages without
// engines.
func (p *plan) bulk(dir string) bool {
	return slices.ContainsFunc(p.rows, func(r row) bool {
		return r.pkg == dir && r.place == "test" && r.mode == "race" && r.backends[0] == "-" && r.pattern == "."
	})
}

// whole reports whether a row before i matches the whole test on a backend.
func (p *plan) whole(i int, backend, test string) bool {
	return slices.ContainsFunc(p.rows[:i], func(r row) bool {
		whole, _ := r.matches(test)
		return r.pkg == p.rows[i].pkg && slices.Contains(r.backends, backend) && whole
	})
}

// placesOf returns the places where a test runs, in the order of places.
func (p *plan) placesOf(dir, test string) []string {
	set := map[string]bool{}
	for i, r := range p.rows {
		if _, part := r.matches(test); r.pkg != dir || !part || r.place == "none" {
			continue
		}
		for _, backend := range r.backends {
			if !p.whole(i, backend, test) {
				set[r.place] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(places), func(place string) bool { return !set[place] })
}

var (
	named    = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)")
	packaged = regexp.MustCompile("`([a-z0-9]+(?:/[a-z0-9]+)*)`")
)

// docs updates the last column of the tables in docs/security/guarantees.md, or reports an outdated column. Rows
// without a test name remain unchanged.
func (p *plan) docs(write bool) error {
	text, err := os.ReadFile(docsFile)
	if err != nil {
		return err
	}
	var errs []error
	lines := strings.Split(string(text), "\n")
	inside := false
	for i, line := range lines {
		cells := strings.Split(line, " | ")
		inside = strings.HasPrefix(line, "| guarantee |") || inside && strings.HasPrefix(line, "|")
		if !inside || len(cells) != 3 || cells[0] == "| guarantee" {
			continue
		}
		found := map[string]bool{}
		for _, m := range named.FindAllStringSubmatch(cells[1], -1) {
			dirs := p.dirsOf(m[1], cells[1])
			if len(dirs) == 0 {
				errs = append(errs, fmt.Errorf("%s:%d: there is no test %s", docsFile, i+1, m[1]))
			}
			for _, dir := range dirs {
				for _, place := range p.placesOf(dir, m[1]) {
					found[place] = true
				}
			}
		}
		old := strings.TrimSuffix(cells[2], " |")
		want := strings.Join(slices.DeleteFunc(slices.Clone(places), func(place string) bool { return !found[place] }), ", ")
		switch {
		case want == "" && old == "":
			errs = append(errs, fmt.Errorf("%s:%d: the row does not show where its tests run", docsFile, i+1))
		case want != "" && want != old && write:
			lines[i] = cells[0] + " | " + cells[1] + " | " + want + " |"
		case want != "" && want != old:
			errs = append(errs, fmt.Errorf("%s:%d: the tests run in %q, the row says %q; run `go run ./hack/tiers docs`", docsFile, i+1, want, old))
		}
	}
	if write {
		errs = append(errs, os.WriteFile(docsFile, []byte(strings.Join(lines, "\n")), 0o644)) // #nosec G306 -- a page
	}
	return errors.Join(errs...)
}

// dirsOf returns the folders with a test of this name. If there are several, and the cell names some of them, dirsOf
// returns only those.
func (p *plan) dirsOf(test, cell string) []string {
	var dirs, mentioned []string
	for dir, tests := range p.tests {
		if slices.Contains(tests, test) {
			dirs = append(dirs, dir)
		}
	}
	for _, m := range packaged.FindAllStringSubmatch(cell, -1) {
		if slices.ContainsFunc(dirs, func(dir string) bool { return dir == m[1] || path.Base(dir) == m[1] }) {
			mentioned = append(mentioned, m[1])
		}
	}
	if len(dirs) > 1 && len(mentioned) > 0 {
		dirs = slices.DeleteFunc(dirs, func(dir string) bool {
			return !slices.Contains(mentioned, dir) && !slices.Contains(mentioned, path.Base(dir))
		})
	}
	return dirs
}
