// House prints how large each package is beside the bounds that the
// repository keeps, and fails where a package has outgrown its own.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(stderr, "usage: house ROOT BOUNDS")
		return 2
	}
	bounds, err := readBounds(args[1])
	if err != nil {
		fmt.Fprintln(stderr, "house:", err)
		return 2
	}
	packages, err := measure(os.DirFS(args[0]))
	if err != nil {
		fmt.Fprintln(stderr, "house:", err)
		return 2
	}
	bad := report(stdout, packages, bounds)
	for _, b := range bad {
		fmt.Fprintln(stderr, "house:", b)
	}
	if len(bad) > 0 {
		return 1
	}
	return 0
}

// size is what a package, or everything together, has or may have.
type size struct {
	product  int // lines of Go that are shipped or build what is
	tests    int // lines of tests, and of the rigs that they share
	files    int // product files
	exported int // exported constants, variables, functions, methods, types
}

// measure returns the size of each package below root by its folder.
func measure(root fs.FS) (map[string]size, error) {
	packages := map[string]size{}
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(p) != ".go":
			return nil
		}
		src, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		s := packages[path.Dir(p)]
		lines := bytes.Count(src, []byte("\n"))
		if isTest(p) {
			s.tests += lines
		} else {
			n, err := exported(p, src)
			if err != nil {
				return err
			}
			s.product += lines
			s.files++
			s.exported += n
		}
		packages[path.Dir(p)] = s
		return nil
	})
	return packages, err
}

// isTest reports whether the file is a test or one of the rigs that tests
// share, which are packages of their own.
func isTest(file string) bool {
	dir := path.Dir(file)
	return strings.HasSuffix(file, "_test.go") ||
		strings.HasSuffix(dir, "test") ||
		slices.Contains([]string{"bench", "e2e", "examples", "images"}, strings.Split(dir, "/")[0])
}

func exported(name string, src []byte) (int, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	n := 0
	count := func(id *ast.Ident) {
		if id.IsExported() {
			n++
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type)) {
				count(d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					count(s.Name)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						count(id)
					}
				}
			}
		}
	}
	return n, nil
}

// receiver returns the name of a method's type.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// readBounds reads lines of a folder and its bounds; "#" begins a comment.
// A bound of "-" is that of the line "default".
func readBounds(file string) (map[string]size, error) {
	f, err := os.Open(filepath.Clean(file))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	bounds := map[string]size{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 5 {
			return nil, fmt.Errorf("%s:%d: want a folder and four bounds", file, n)
		}
		s := bounds["default"]
		for i, p := range []*int{&s.product, &s.tests, &s.files, &s.exported} {
			if fields[i+1] == "-" {
				continue
			}
			if *p, err = strconv.Atoi(fields[i+1]); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, n, err)
			}
		}
		bounds[fields[0]] = s
	}
	return bounds, lines.Err()
}

// report prints the table and returns what is out of bounds.
func report(w io.Writer, packages, bounds map[string]size) (bad []string) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "product\tof\ttests\tof\tfiles\tof\texported\tof\t  package\t")
	line := func(dir string, s, b size) {
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t  %s\t\n",
			s.product, b.product, s.tests, b.tests, s.files, b.files, s.exported, b.exported, dir)
		for _, c := range []struct {
			what    string
			is, may int
		}{{"lines", s.product, b.product}, {"lines of tests", s.tests, b.tests}, {"files", s.files, b.files}, {"exported names", s.exported, b.exported}} {
			if c.is > c.may {
				bad = append(bad, fmt.Sprintf("%s has %d %s, its bound is %d", dir, c.is, c.what, c.may))
			}
		}
	}
	dirs := make([]string, 0, len(packages))
	var all size
	for dir, s := range packages {
		dirs = append(dirs, dir)
		all.product += s.product
		all.tests += s.tests
		all.files += s.files
		all.exported += s.exported
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		b, ok := bounds[dir]
		if !ok {
			b = bounds["default"]
		}
		line(dir, packages[dir], b)
	}
	line("all", all, bounds["all"])
	table.Flush() // the writer's error would be of our own output
	for dir := range bounds {
		if _, ok := packages[dir]; !ok && dir != "default" && dir != "all" {
			bad = append(bad, dir+" has bounds but no files")
		}
	}
	slices.Sort(bad)
	return bad
}
