// Api prints the exported API of the module's public packages, sorted, with one line for each constant, variable,
// function, type, field, and method. The file api.txt contains the current list. Api reads the sources for all
// platforms. It prints the paths of internal packages, so "internal/" in the list indicates a signature that is
// unusable in other modules.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"log"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Folders without public packages.
var noPackages = regexp.MustCompile(`^(\..+|internal|testdata|cmd|deploy|docs|e2e|examples|hack)$`)

var unexported = regexp.MustCompile(`: func \((\w+ )?\*?[a-z]\w*[)\[]`) // methods of unexported types

func main() {
	var list []string
	err := fs.WalkDir(os.DirFS("."), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && noPackages.MatchString(d.Name()):
			return fs.SkipDir
		case path.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		if err == nil && ast.FileExports(f) {
			list = append(list, lines(f, path.Dir(p))...)
		}
		return err
	})
	if err != nil {
		log.Fatal("api: ", err)
	}
	list = slices.DeleteFunc(slices.Sorted(slices.Values(list)), unexported.MatchString)
	fmt.Println(strings.Join(slices.Compact(list), "\n")) // several platforms can have the same declaration
}

// lines returns the lines for one file. The file has only exported declarations.
func lines(f *ast.File, dir string) (list []string) {
	internal := map[string]string{} // the paths of internal packages, by package name
	for _, i := range f.Imports {
		if _, rel, _ := strings.Cut(strings.Trim(i.Path.Value, `"`), "/workcell/"); strings.Contains(rel, "internal/") {
			internal[path.Base(rel)] = rel
		}
	}
	add := func(words ...ast.Node) {
		var line strings.Builder
		for _, w := range words {
			_ = printer.Fprint(&line, token.NewFileSet(), w) // writing to a strings.Builder cannot fail
			line.WriteString(" ")
		}
		list = append(list, dir+": "+strings.Join(strings.Fields(line.String()), " "))
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && internal[id.Name] != "" {
				id.Name = internal[id.Name]
			}
		}
		return true
	})
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok {
			add(&ast.FuncDecl{Recv: d.Recv, Name: d.Name, Type: d.Type})
			continue
		}
		for _, spec := range d.(*ast.GenDecl).Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, id := range s.Names {
					add(word(d.(*ast.GenDecl).Tok.String()), id)
				}
			case *ast.TypeSpec:
				members(add, s)
			}
		}
	}
	return list
}

// word returns text as a node.
func word(text string) *ast.Ident { return ast.NewIdent(text) }

// members adds a type together with its fields or methods.
func members(add func(...ast.Node), s *ast.TypeSpec) {
	fields, kind := &ast.FieldList{}, ast.Node(s.Type)
	switch t := s.Type.(type) {
	case *ast.StructType:
		fields, kind = t.Fields, word("struct")
	case *ast.InterfaceType:
		fields, kind = t.Methods, word("interface")
	}
	add(word("type"), s.Name, word(strings.Repeat("=", min(1, int(s.Assign)))), kind)
	for _, f := range fields.List {
		if f.Names == nil {
			f.Names = []*ast.Ident{word("embedded")}
		}
		for _, id := range f.Names {
			add(word("type"), word(s.Name.Name+","), id, f.Type)
		}
	}
}
