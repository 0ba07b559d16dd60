package yamlnode

import (
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Source is the text of a file. It converts nodes and offsets to lines and columns.
type Source struct {
	File  string
	lines []string
}

// Place returns the position of a byte offset in the value of scalar n. If the value is not literally in the file
// (because of escapes or folded text), Place returns the position of the scalar.
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

// placeInBlock handles literal block scalars ("|"), whose lines are indented lines of the file.
func (s *Source) placeInBlock(n *Node, head string) (line, column int) {
	row := strings.Count(head, "\n")
	head = head[strings.LastIndexByte(head, '\n')+1:]
	value := strings.Split(n.Value, "\n")
	if i := n.Line + row; row < len(value) && i < len(s.lines) { // the block begins on the line after the header
		full := strings.TrimRight(s.lines[i], "\r")
		if indent := len(full) - len(value[row]); indent >= 0 && strings.HasSuffix(full, value[row]) {
			return i + 1, indent + 1 + utf8.RuneCountInString(head)
		}
	}
	return n.Line, n.Column
}

// from returns the rest of a line from a column. Both start at 1, and the column counts characters.
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
