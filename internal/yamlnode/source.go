package yamlnode

import (
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Source is the text of a file; it turns nodes and offsets into lines and columns.
type Source struct {
	File  string
	lines []string
}

// newSource returns the source of a file with a text.
func newSource(file, text string) *Source { return &Source{file, strings.Split(text, "\n")} }

// Place returns where byte offset of the value of the scalar n stands in the file. Where the value is not in the file
// as it is (escapes, folded text), the place is that of the scalar.
func (s *Source) Place(n *Node, offset int) (line, column int) {
	head := n.Value[:max(0, min(offset, len(n.Value)))]
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
func (s *Source) placeInBlock(n *Node, head string) (line, column int) {
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
func (s *Source) from(line, column int) (string, bool) {
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
