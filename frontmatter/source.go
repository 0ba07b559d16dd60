package frontmatter

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Maximum sizes. A larger file is refused before it is parsed.
const (
	MaxFileBytes        = 512 << 10
	MaxFrontmatterBytes = 64 << 10
)

// ReadFile reads a regular file. For a file larger than MaxFileBytes, a link to a file outside the directory, a pipe,
// or a device, it returns an *Error. Other errors come from package os.
func ReadFile(path string) ([]byte, error) {
	src, err := yamlnode.ReadUntrusted(path, MaxFileBytes)
	return checkRead(src, err, path)
}

// ReadFS is like ReadFile for a file of fsys, which decides about links. Errors contain shown as the file's name.
func ReadFS(fsys fs.FS, name, shown string) ([]byte, error) {
	src, err := yamlnode.ReadFS(fsys, name, shown, MaxFileBytes)
	return checkRead(src, err, shown)
}

func checkRead(src []byte, err error, name string) ([]byte, error) {
	if err == nil && len(src) > MaxFileBytes {
		return nil, &Error{File: name, Message: fmt.Sprintf("the file is larger than %d KiB", MaxFileBytes>>10)}
	}
	return src, err
}

// parts is a file split at the frontmatter markers. Offsets refer to text.
type parts struct {
	text       string // the file without the byte order mark
	found      bool   // the file has frontmatter
	open       int    // offset of the line with the opening marker
	start, end int    // offsets of the YAML
	line       int    // line number at start
	body       int    // offset of the first line after the closing marker
	bodyLine   int
	closed     bool // the closing marker ends with a newline, as dotprompt requires
}

func (p parts) yaml() string { return p.text[p.start:p.end] }

// cut finds the frontmatter like dotprompt: blank lines and lines beginning with '#' may come before the first marker.
// If dotprompt would silently ignore malformed frontmatter, cut returns an error.
func cut(name string, src []byte) (parts, *Error) {
	text, problem := yamlnode.Text(src, MaxFileBytes)
	if problem != nil {
		problem.File = name
		return parts{}, problem
	}
	p := parts{text: text}
	off, line := 0, 1
	for off < len(text) {
		l, next := nextLine(text, off)
		if trimmed := strings.Trim(l, " \t\f\r\n"); trimmed != "" && !strings.HasPrefix(l, "#") {
			break
		}
		off, line = next, line+1
	}
	l, next := nextLine(text, off)
	if !isMarker(l) {
		return p, noFrontmatter(name, text, l, line)
	}
	p.found, p.open, p.start, p.line = true, off, next, line+1
	for off, line = next, line+1; off < len(text); line++ {
		l, next := nextLine(text, off)
		if isMarker(l) {
			p.end, p.body, p.bodyLine = off, next, line+1
			p.closed = strings.HasSuffix(l, "\n")
			return p, p.check(name)
		}
		off = next
	}
	return p, &Error{
		File: name, Line: p.line - 1, Column: 1,
		Message: "the frontmatter is not closed", Hint: "end it with a line ---",
	}
}

func (p parts) check(name string) *Error {
	if p.end-p.start > MaxFrontmatterBytes {
		return &Error{File: name, Line: p.line,
			Message: fmt.Sprintf("the frontmatter is larger than %d KiB", MaxFrontmatterBytes>>10)}
	}
	for i := p.open; i < p.end; i++ {
		if p.text[i] == '\r' && (i+1 == len(p.text) || p.text[i+1] != '\n') {
			return &Error{
				File: name, Line: strings.Count(p.text[:i], "\n") + 1, Message: "carriage return without line feed",
				Hint: "end lines with LF or CRLF",
			}
		}
	}
	return nil
}

var sandboxLine = regexp.MustCompile(`(?m)^sandbox[ \t]*:(?s:.*)^---[ \t\r]*$`)

// noFrontmatter returns the problem of a file with apparently malformed frontmatter, or nil. first is the first line.
func noFrontmatter(name, text, first string, line int) *Error {
	trimmed := strings.Trim(first, " \t\f\r\n")
	dashes := strings.TrimLeft(trimmed, "-")
	switch {
	case trimmed == "---":
		return &Error{File: name, Line: line, Column: 1, Message: "the opening --- is indented",
			Hint: "start the line with ---"}
	case strings.HasPrefix(first, "---") && len(trimmed)-len(dashes) == 3:
		return &Error{File: name, Line: line, Column: 4, Message: "text after the opening ---",
			Hint: "put --- on a separate line"}
	case sandboxLine.MatchString(text):
		return &Error{
			File: name, Line: line, Column: 1, Message: "`sandbox:` is outside the frontmatter",
			Hint: "start the file with a line ---",
		}
	}
	return nil
}

func isMarker(line string) bool {
	return strings.HasPrefix(line, "---") && strings.Trim(line[3:], " \t\f\r\n") == ""
}

// nextLine returns the line at off with the end, and the offset of the next line.
func nextLine(text string, off int) (string, int) {
	if i := strings.IndexByte(text[off:], '\n'); i >= 0 {
		return text[off : off+i+1], off + i + 1
	}
	return text[off:], len(text)
}
