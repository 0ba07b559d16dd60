// Package yamlnode reads untrusted YAML files. It accepts a single document of limited size and reports problems with
// line and column.
package yamlnode

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// ReadFile reads at most one byte more than Text accepts. It follows links and waits for pipes, because the operator
// chose the file.
func ReadFile(path string, maxBytes int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // nothing was written
	return io.ReadAll(io.LimitReader(f, int64(maxBytes)+1))
}

// ReadUntrusted is like ReadFile for a file in an untrusted directory, for example a cloned repository. See ReadFS.
func ReadUntrusted(path string, maxBytes int) ([]byte, error) {
	root, err := os.OpenRoot(filepath.Dir(path)) // links to the outside are not followed
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Unwrap(err)}
	}
	defer root.Close() // only read from
	return ReadFS(root.FS(), filepath.Base(path), path, maxBytes)
}

// ReadFS reads a regular file of fsys, at most one byte more than Text accepts. Errors contain shown as the file's
// name. For a pipe, a device, or a link leading outside an os.Root, the error is a hint.Problem.
func ReadFS(fsys fs.FS, name, shown string, maxBytes int) ([]byte, error) {
	const replace = "replace it with a regular file"
	info, err := fs.Stat(fsys, name) // before opening, which would wait for the writer of a pipe
	var at *fs.PathError
	switch {
	case errors.As(err, &at) && strings.Contains(at.Err.Error(), "escapes from parent"):
		return nil, &hint.Problem{File: shown, Message: "the link points outside its directory", Hint: replace}
	case at != nil:
		return nil, &fs.PathError{Op: "open", Path: shown, Err: at.Err}
	case err == nil && info.IsDir():
		return nil, &hint.Problem{File: shown, Message: "is a directory", Hint: "specify a file in it"}
	case err == nil && !info.Mode().IsRegular():
		return nil, &hint.Problem{File: shown, Message: "not a regular file", Hint: replace}
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	return io.ReadAll(io.LimitReader(f, int64(maxBytes)+1))
}

// Text returns the text of a file without the byte order mark. If the file is larger than maxBytes, is not valid UTF-8,
// or contains NUL bytes, Text returns a problem.
func Text(src []byte, maxBytes int) (string, *hint.Problem) {
	fail := func(at int, message, advice string) (string, *hint.Problem) {
		line := bytes.Count(src[:at], []byte{'\n'}) + 1
		return "", &hint.Problem{Line: line, Column: at - bytes.LastIndexByte(src[:at], '\n'), Message: message, Hint: advice}
	}
	switch {
	case len(src) > maxBytes:
		return "", &hint.Problem{Message: fmt.Sprintf("the file is larger than %d KiB", maxBytes>>10)}
	case bytes.HasPrefix(src, []byte("\xff\xfe")), bytes.HasPrefix(src, []byte("\xfe\xff")):
		return fail(0, "the file is UTF-16", "save it as UTF-8")
	}
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	if at := bytes.IndexByte(src, 0); at >= 0 {
		return fail(at, "NUL byte", "save the file as UTF-8 text")
	}
	for i := 0; i < len(src); {
		r, n := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && n == 1 {
			return fail(i, "the file is not valid UTF-8", "save it as UTF-8")
		}
		i += n
	}
	return string(src), nil
}

// Format describes the requirements for documents of one kind.
type Format struct {
	Name      string // name of the document in messages; default "the file"
	Single    string // hint if a second document follows
	Empty     string // hint for an empty file; if "", the file may be empty
	FirstLine int    // line of the file on which the text begins; default 1
	MaxBytes  int
	MaxDepth  int
	MaxValues int  // counted after aliases are expanded
	MergeKeys bool // merge keys are left to the caller
}

// Read parses the only document of a file and checks it as a whole. If the document is empty, or if the problems make
// it unsafe to walk, Read returns a nil node.
func (f Format) Read(file string, src []byte) (*Decoder, *Node) {
	text, problem := Text(src, f.MaxBytes)
	f.FirstLine, f.Name = max(f.FirstLine, 1), cmp.Or(f.Name, "the file")
	d := NewDecoder(file, text, f.FirstLine)
	var root *Node
	if problem == nil {
		root, problem = f.parse(text)
	}
	if problem == nil && root == nil && f.Empty != "" {
		problem = &hint.Problem{Line: 1, Message: "the file is empty", Hint: f.Empty}
	}
	switch {
	case problem != nil:
		problem.File = file
		d.Problems = hint.Problems{problem}
		return d, nil
	case root != nil && !f.check(root, d.Fail):
		return d, nil
	}
	d.root = root
	return d, root
}

// parse parses the only document of a text. If the document is empty, parse returns a nil node.
func (f Format) parse(text string) (root *Node, problem *hint.Problem) {
	// yaml.v3 has panicked on hostile documents, so recover: a file must not crash the program.
	defer func() {
		if r := recover(); r != nil {
			root, problem = nil, &hint.Problem{Line: 1, Message: fmt.Sprintf("cannot read the YAML: %v", r)}
		}
		if problem != nil {
			problem.Line += f.FirstLine - 1
		}
	}()
	doc, second, err := documents(text)
	switch {
	case err != nil:
		return nil, syntaxProblem(text, err)
	case second.Kind != 0:
		return nil, &hint.Problem{Line: max(second.Line, 1), Message: "more than one YAML document", Hint: f.Single}
	case doc.Kind != yaml.DocumentNode || len(doc.Content) != 1:
		return nil, nil
	}
	return doc.Content[0], nil
}

// documents parses the first two documents of a text. The kind of a missing document is zero.
func documents(text string) (first, second yaml.Node, err error) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	if err = dec.Decode(&first); err == nil {
		err = dec.Decode(&second)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return first, second, err
}

// maxPlaced is the maximum size of a text in which syntaxProblem searches for the position, because the search parses
// the text repeatedly.
const maxPlaced = 64 << 10

// syntaxProblem returns the position of err. yaml.v3 reports only a line, often the line of the surrounding list or
// mapping. The position is at the end of the shortest prefix of the text with the same error.
func syntaxProblem(text string, err error) *hint.Problem {
	// yaml.v3 replaces line 0, so the compared line must not be 0.
	fails := func(text string) bool {
		_, _, got := documents("\n" + text)
		return got != nil && got.Error() == err.Error()
	}
	_, _, err = documents("\n" + text)
	if err == nil || len(text) > maxPlaced {
		p := &hint.Problem{Line: 1, Message: "malformed YAML"}
		_, _ = fmt.Sscanf(fmt.Sprint(err), "yaml: line %d:", &p.Line)
		return p
	}
	message := strings.TrimSpace(regexp.MustCompile(`^yaml: (line \d+: )?`).ReplaceAllString(err.Error(), ""))
	lines := strings.SplitAfter(text, "\n")
	n := sort.Search(len(lines)-1, func(n int) bool { return fails(strings.Join(lines[:n+1], "")) })
	before, line := strings.Join(lines[:n], ""), strings.TrimRight(lines[n], "\r\n")
	at := sort.Search(len(line), func(at int) bool { return fails(before + line[:at+1]) })
	p := &hint.Problem{Line: n + 1, Message: "malformed YAML: " + message}
	switch indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; {
	case strings.Contains(indent, "\t"):
		at, p.Message, p.Hint = strings.Index(indent, "\t"), "malformed YAML: a tab in the indentation", "indent with spaces"
	case strings.Contains(message, "',' or"), strings.Contains(message, "node content"):
		p.Hint = `close each { and [, and put text with {, }, [, ], or ? in quotes, for example "${ input.a }"`
		if m := regexp.MustCompile(`[:,[] *[^"'{},]*(\$\{|\?:)`).FindStringSubmatchIndex(line); m != nil {
			at = m[2]
		}
	case strings.Contains(message, "expected key"), strings.Contains(message, "expected '-'"),
		strings.Contains(message, "mapping values"):
		p.Hint = "correct the indentation, or put text that contains a colon in quotes"
	}
	p.Column = utf8.RuneCountInString(line[:min(at, len(line))]) + 1
	return p
}

// report is called with a problem of a node.
type report func(n *Node, hint, format string, args ...any)

// check reports problems of the whole document: depth, size after aliases are expanded, tags, merge keys, and duplicate
// keys. It takes linear time and does not expand the tree. If the tree must not be walked, because it is too deep, too
// large, or contains itself, check returns false.
func (f Format) check(root *Node, report report) bool {
	c := checker{Format: f, report: report, sizes: map[*Node]extent{}, inside: map[*Node]bool{}}
	if size := c.node(root, 1); size.values > f.MaxValues && !c.endless {
		report(root, "write out the values", "%s has more than %d values after aliases are expanded", f.Name, f.MaxValues)
		c.endless = true
	}
	return !c.endless
}

type checker struct {
	Format
	report  report
	sizes   map[*Node]extent // sizes of anchored nodes, once known
	inside  map[*Node]bool
	endless bool // the tree must not be walked
}

// extent is the size of a node after aliases are expanded.
type extent struct{ values, height int }

// coreTags are YAML's core types, which can be explicit.
var coreTags = []string{"!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq"}

// node measures n, up to about MaxValues.
func (c *checker) node(n *Node, depth int) extent {
	if depth > c.MaxDepth {
		c.tooDeep(n, depth)
		return extent{1, 1}
	}
	if n.Kind == yaml.AliasNode {
		return c.alias(n, depth)
	}
	c.inside[n] = true
	defer delete(c.inside, n)
	if n.Style&yaml.TaggedStyle != 0 && !slices.Contains(coreTags, n.ShortTag()) {
		c.report(n, "remove it", "the tag %s is not supported", sanitize.Clip(n.Tag))
		n.Tag, n.Style = "", n.Style&^yaml.TaggedStyle // check the rest of the file as if the tag were missing
	}
	if n.Kind == Mapping {
		c.keys(n)
	}
	size := extent{1, 1}
	for _, child := range n.Content {
		if size.values <= c.MaxValues {
			below := c.node(child, depth+1)
			size.values += below.values
			size.height = max(size.height, below.height+1)
		}
	}
	if n.Anchor != "" {
		c.sizes[n] = size
	}
	return size
}

func (c *checker) alias(n *Node, depth int) extent {
	if n.Alias == nil || c.inside[n.Alias] {
		c.report(n, "", "the alias *%s contains itself", sanitize.Clip(n.Value))
		c.endless = true
		return extent{1, 1}
	}
	size, ok := c.sizes[n.Alias]
	if !ok { // an anchor is always measured before the aliases
		return extent{1, 1}
	}
	if depth+size.height > c.MaxDepth+1 {
		c.tooDeep(n, c.MaxDepth+1)
	}
	return size
}

func (c *checker) tooDeep(n *Node, depth int) {
	c.endless = true
	if depth == c.MaxDepth+1 { // report it once, not for every node below
		c.report(n, "", "%s is nested more than %d levels deep", c.Name, c.MaxDepth)
	}
}

func (c *checker) keys(n *Node) {
	seen := make(map[string]*Node, len(n.Content)/2)
	for key := range Pairs(n) {
		switch first := seen[key.Value]; {
		case key.Kind != Scalar:
			c.report(key, "", "a key must be text")
		case key.ShortTag() == "!!merge" && !c.MergeKeys:
			c.report(key, "write out the values", "merge keys are not supported")
		case first != nil:
			c.report(key, fmt.Sprintf("the first is on line %d", first.Line+c.FirstLine-1), "duplicate key %q",
				sanitize.Clip(key.Value))
		default:
			seen[key.Value] = key
		}
	}
}
