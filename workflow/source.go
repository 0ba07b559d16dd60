package workflow

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/frontmatter"
)

// Bounds of a workflow file. A file beyond them is refused.
const (
	maxFileBytes = 1 << 20
	maxYAMLDepth = 64
	maxYAMLNodes = 50_000 // with aliases followed
	maxProblems  = 50
)

// source is the text of a workflow file; it turns nodes and offsets into lines and columns.
type source struct {
	file  string
	lines []string
}

// readFile reads at most maxFileBytes.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // nothing was written
	src, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	return src, nil
}

// text checks size and encoding and takes the byte order mark off.
func text(file string, src []byte) (string, *frontmatter.Error) {
	fail := func(at int, message, hint string) (string, *frontmatter.Error) {
		line := bytes.Count(src[:at], []byte{'\n'}) + 1
		return "", &frontmatter.Error{File: file, Line: line, Column: at - bytes.LastIndexByte(src[:at], '\n'), Message: message, Hint: hint}
	}
	switch {
	case len(src) > maxFileBytes:
		return "", &frontmatter.Error{File: file, Message: fmt.Sprintf("the file is larger than %d KiB", maxFileBytes>>10)}
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

// parseYAML parses one document.
func parseYAML(file, src string) (root *yaml.Node, problem *frontmatter.Error) {
	// yaml.v3 has panicked on hostile documents; whatever it does, a file must not end the program.
	defer func() {
		if r := recover(); r != nil {
			root, problem = nil, &frontmatter.Error{File: file, Message: fmt.Sprintf("the YAML cannot be read: %v", r)}
		}
	}()
	dec := yaml.NewDecoder(strings.NewReader(src))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, &frontmatter.Error{File: file, Line: 1, Message: "the file is empty", Hint: "a workflow needs id and steps"}
	case err != nil:
		return nil, syntaxError(file, src, err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, syntaxError(file, src, err)
		}
		return nil, &frontmatter.Error{File: file, Line: max(second.Line, 1), Message: "more than one YAML document", Hint: "give each workflow its own file"}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, &frontmatter.Error{File: file, Line: 1, Message: "the file is empty", Hint: "a workflow needs id and steps"}
	}
	return doc.Content[0], nil
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxError finds the line in the text of err, the only place where yaml.v3 has it.
func syntaxError(file, src string, err error) *frontmatter.Error {
	msg := err.Error()
	e := &frontmatter.Error{File: file, Line: 1, Message: "malformed YAML: " + strings.TrimSpace(yamlErrorLine.ReplaceAllString(msg, ""))}
	if m := yamlErrorLine.FindStringSubmatch(msg); m != nil && m[1] != "" {
		if n, err := strconv.Atoi(m[1]); err == nil {
			e.Line = max(n, 1)
		}
	}
	// yaml.v3 counts from the token it expected: the line itself or the one after may hold the tab.
	lines := strings.Split(src, "\n")
	for i := e.Line - 1; i <= e.Line && i < len(lines); i++ {
		indent := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], " \t"))]
		if at := strings.Index(indent, "\t"); at >= 0 {
			e.Line, e.Column = i+1, at+1
			e.Message, e.Hint = "malformed YAML: a tab in the indentation", "indent with spaces"
			break
		}
	}
	return e
}

// place finds where byte offset of the value of the scalar n stands in the file. Where the value is not in the file as
// it is (escapes, folded text), the place is that of the scalar.
func (s *source) place(n *yaml.Node, offset int) (line, column int) {
	if offset > len(n.Value) {
		offset = len(n.Value)
	}
	head := n.Value[:offset]
	if n.Style&yaml.LiteralStyle != 0 {
		return s.placeInBlock(n, head)
	}
	column = n.Column
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		column++
	}
	if rest, ok := s.from(n.Line, column); ok && n.Style&yaml.FoldedStyle == 0 && strings.HasPrefix(rest, head) {
		return n.Line, column + utf8.RuneCountInString(head)
	}
	return n.Line, n.Column
}

// placeInBlock handles literal block scalars ("|"): the value's lines are lines of the file, indented.
func (s *source) placeInBlock(n *yaml.Node, head string) (line, column int) {
	row := strings.Count(head, "\n")
	head = head[strings.LastIndexByte(head, '\n')+1:]
	value := strings.Split(n.Value, "\n")
	if i := n.Line + row; row < len(value) && i < len(s.lines) { // the block begins on the line after its header
		full := strings.TrimRight(s.lines[i], "\r")
		if indent := len(full) - len(value[row]); indent >= 0 && strings.HasSuffix(full, value[row]) {
			return i + 1, indent + 1 + utf8.RuneCountInString(head)
		}
	}
	return n.Line, n.Column
}

// from returns the rest of a line from a column, both counted from 1, the column in characters.
func (s *source) from(line, column int) (string, bool) {
	if line < 1 || line > len(s.lines) {
		return "", false
	}
	rest := s.lines[line-1]
	for range column - 1 {
		_, size := utf8.DecodeRuneInString(rest)
		if size == 0 {
			return "", false
		}
		rest = rest[size:]
	}
	return rest, true
}
