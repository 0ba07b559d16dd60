// House prints the number of lines of code in each package, and the limits in the bounds file. It fails if a package
// exceeds a limit. Comments and blank lines do not count, so there is no reason to omit comments.
package main

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"maps"
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

// The columns of the table, in the order of the bounds file.
const (
	product = iota // lines of Go that are shipped or that build what is shipped
	tests          // lines of _test.go files
	files          // product files
	names          // exported constants, variables, functions, methods, types
	rigs           // lines of other Go code, for tests only
	nColumns
)

// columns contains the names of the columns for error messages.
var columns = [nColumns]string{"lines of product", "lines of tests", "files", "exported names", "lines of rigs"}

// size contains the numbers or the limits of one package, or of all packages together.
type size [nColumns]int

// measure returns the size of each package below root, by folder.
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
		lines := codeLines(src)
		switch {
		case strings.HasSuffix(p, "_test.go"):
			s[tests] += lines
		case isRig(path.Dir(p)):
			s[rigs] += lines
		default:
			n, err := exported(p, src)
			if err != nil {
				return err
			}
			s[product] += lines
			s[files]++
			s[names] += n
		}
		packages[path.Dir(p)] = s
		return nil
	})
	return packages, err
}

// codeLines returns how many lines of a file contain code.
func codeLines(src []byte) (lines int) {
	file := token.NewFileSet().AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	for last := 0; ; {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return lines
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue
		}
		first := file.Line(pos)
		end := first + strings.Count(text, "\n") // more than one line only for raw strings
		lines += end - max(first-1, last)
		last = max(last, end)
	}
}

// isRig reports whether a folder contains only code for tests and development: e2e, hack, examples, and shared packages
// of tests.
func isRig(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	return top == "e2e" || top == "hack" || top == "examples" || strings.HasSuffix(dir, "test")
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

// receiver returns the name of a receiver's type.
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

// readBounds reads the bounds file. Each line contains a folder and the limits for the columns, and "#" starts a
// comment. "-" means the limit in the line "default". If a line has no limit for rigs, the limit for tests applies.
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
		if len(fields) != nColumns && len(fields) != nColumns+1 {
			return nil, fmt.Errorf("%s:%d: want a folder and its bounds", file, n)
		}
		s := bounds["default"]
		for i, field := range fields[1:] {
			if field == "-" {
				continue
			}
			if s[i], err = strconv.Atoi(field); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, n, err)
			}
		}
		if len(fields) == nColumns {
			s[rigs] = s[tests]
		}
		bounds[fields[0]] = s
	}
	return bounds, lines.Err()
}

// report prints the table and returns the exceeded limits.
func report(w io.Writer, packages, bounds map[string]size) (bad []string) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	shown := []int{product, tests, rigs, files, names}
	fmt.Fprintln(table, "product\tof\ttests\tof\trigs\tof\tfiles\tof\texported\tof\t  package\t")
	line := func(dir string, s, b size) {
		for _, i := range shown {
			fmt.Fprintf(table, "%d\t%d\t", s[i], b[i])
			if s[i] > b[i] {
				bad = append(bad, fmt.Sprintf("%s has %d %s, its bound is %d", dir, s[i], columns[i], b[i]))
			}
		}
		fmt.Fprintf(table, "  %s\t\n", dir)
	}
	var all size
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		for i, n := range packages[dir] {
			all[i] += n
		}
		b, ok := bounds[dir]
		if !ok {
			b = bounds["default"]
		}
		line(dir, packages[dir], b)
	}
	line("all", all, bounds["all"])
	table.Flush() // an error could only come from writing to standard output
	for dir := range bounds {
		if _, ok := packages[dir]; !ok && dir != "default" && dir != "all" {
			bad = append(bad, dir+" has bounds but no files")
		}
	}
	slices.Sort(bad)
	return bad
}
