package expr

import (
	"strings"
)

// Segment is a piece of text, or the inside of a "${ … }" with the byte offset in the string.
type Segment struct {
	Text string
	At   int // negative for text
	prog *Program
}

// Scan splits a string into text and the insides of "${ … }". "$${" means the text "${". isText receives the text after
// "${". If isText returns true, "${" is also text. isText may be nil.
func (e *Env) Scan(s string, isText func(rest string) bool) ([]Segment, error) {
	var out []Segment
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			out = append(out, Segment{Text: text.String(), At: -1})
			text.Reset()
		}
	}
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "$${"):
			text.WriteString("${")
			i += 3
		case strings.HasPrefix(s[i:], "${") && (isText == nil || !isText(s[i+2:])):
			end, ok := Close(s, i+2)
			if !ok {
				return nil, &Error{Place: e.at.after(i), Msg: `"${" has no matching "}" (write "$${" for a plain "${")`}
			}
			flush()
			out = append(out, Segment{Text: s[i+2 : end], At: i + 2})
			i = end + 1
		default:
			text.WriteByte(s[i])
			i++
		}
	}
	flush()
	return out, nil
}

// Close returns the offset of the "}" ending the expression at from. It counts the braces of map literals and skips
// strings and comments.
func Close(s string, from int) (int, bool) {
	depth := 0
	for i := from; i < len(s); i++ {
		switch c := s[i]; {
		case c == '{':
			depth++
		case c == '}' && depth == 0:
			return i, true
		case c == '}':
			depth--
		case c == '\'' || c == '"':
			end, ok := closeString(s, i)
			if !ok {
				return 0, false
			}
			i = end
		case c == '/' && strings.HasPrefix(s[i:], "//"):
			end := strings.IndexByte(s[i:], '\n')
			if end < 0 {
				return 0, false
			}
			i += end
		}
	}
	return 0, false
}

// closeString returns the last byte of the string literal whose first quote is at i. It supports CEL's triple quotes
// and raw strings.
func closeString(s string, i int) (int, bool) {
	quote := s[i : i+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(s[i:], triple) {
		quote = triple
	}
	raw := isRaw(s, i)
	for j := i + len(quote); j < len(s); j++ {
		if s[j] == '\\' && !raw {
			j++
			continue
		}
		if strings.HasPrefix(s[j:], quote) {
			return j + len(quote) - 1, true
		}
	}
	return 0, false
}

// isRaw reports whether the literal at i has the prefix r, alone or with b.
func isRaw(s string, i int) bool {
	from := i
	for from > 0 && i-from < 3 && isIdentByte(s[from-1]) {
		from--
	}
	switch strings.ToLower(s[from:i]) {
	case "r", "br", "rb":
		return true
	}
	return false
}

func isIdentByte(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
