// Package sanitize makes text that a stranger chose fit for terminals and messages.
package sanitize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s safe for a terminal: control characters, escape sequences, invisible and direction-changing
// characters and bytes that are not UTF-8 are shown as escapes. Line feeds and tabs stay.
func Text(s string) string {
	if isPlain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

// Line is Text for table cells and status lines: line feeds and tabs are shown as escapes too.
func Line(s string) string {
	return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Text(s))
}

// Strip returns s without control, invisible and direction-changing characters and bytes that are not UTF-8. Line feeds
// stay; tabs and other separators become spaces.
func Strip(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t', r == '\u2028', r == '\u2029':
			return ' '
		case unicode.Is(unicode.C, r), r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, s)
}

// Clip bounds what a message repeats of a stranger's words: 80 bytes, and a sign that there were more.
func Clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Cut returns at most so many characters of s, the last of which is a sign that there were more.
func Cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// OneLine returns s on one line, with single spaces, as Cut does.
func OneLine(s string, most int) string { return Cut(strings.Join(strings.Fields(s), " "), most) }

// Error shows another text than the error that it wraps.
type Error struct {
	Text string
	Err  error
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// EngineError takes host paths and engine addresses out of the text of a driver's error.
func EngineError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	clean := Message(hostPath.ReplaceAllString(text, "<host path>"))
	if clean == text {
		return err
	}
	return &Error{Text: clean, Err: err}
}

// hostPath matches engine addresses and paths of the host in a driver's error.
var hostPath = regexp.MustCompile(`(?:unix|npipe)://[^\s"',;]+|` +
	`(?:/(?:var|run|home|root|tmp|Users|private|etc|opt|usr)/[^\s"',;:]+)`)

// maxMessage bounds what a stranger may add to the text of an error, in bytes.
const maxMessage = 1024

// Message makes text from outside fit for one line of a log: valid UTF-8, no control characters, bounded.
func Message(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= maxMessage {
		return text
	}
	text = text[:maxMessage]
	for len(text) > 0 && !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + "…"
}

// JSON returns v as JSON on one line, for people and models: the characters of HTML stay as they are.
func JSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 && c != '\n' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}

// Prompt returns a prompt for a coding agent that takes a leading slash for the name of a command, which a repository
// may define.
func Prompt(s string) string {
	if strings.HasPrefix(strings.TrimLeftFunc(s, func(r rune) bool { return r == '\ufeff' || unicode.IsSpace(r) }), "/") {
		return "The task:\n" + s
	}
	return s
}
