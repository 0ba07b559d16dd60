// Package sanitize makes untrusted text safe for terminals and messages.
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

// Text returns s in a form that is safe for a terminal. It escapes control characters, escape sequences, invisible
// characters such as zero-width spaces, characters that change the text direction, and invalid UTF-8. Line feeds and
// tabs remain.
func Text(s string) string {
	special := func(r rune) bool { return r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f }
	if !strings.ContainsFunc(s, special) {
		return s
	}
	var b strings.Builder
	var before rune
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		emoji := r == '\ufe0f' && (unicode.Is(unicode.So, before) || strings.ContainsRune(otherEmoji, before) ||
			strings.ContainsRune("#*0123456789", before) && strings.HasPrefix(s[i+n:], "\u20e3")) // a keycap
		before = r
		switch {
		case r == utf8.RuneError && n <= 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n' || r == '\t' || unicode.IsPrint(r) && !invisible(r) || emoji:
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

// otherEmoji are the emoji that Unicode does not count among the other symbols.
const otherEmoji = "\u203c\u2049\u2139\u2194\u25fb\u25fc\u25fd\u25fe\u2934\u2935\u3030\u303d"

// invisible reports whether a character of a visible category shows nothing.
func invisible(r rune) bool {
	return r == '\u2800' || unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}

// Line is like Text, but also escapes line feeds and tabs. It is for table cells and status lines.
func Line(s string) string { return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Text(s)) }

// Strip returns s without control characters, invisible characters, characters that change the text direction, and
// invalid UTF-8. Line feeds remain. Tabs and other separators become spaces.
func Strip(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t', r == '\u2028', r == '\u2029':
			return ' '
		case unicode.Is(unicode.C, r), invisible(r), r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, s)
}

// Clip shortens untrusted text for a message to 80 bytes, and adds a mark if it cuts the text.
func Clip(s string) string { return clip(s, 80) }

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Cut returns at most the given number of characters of s. If it cuts s, the last character is a mark.
func Cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// OneLine returns s on one line with single spaces, and shortens it in the same way as Cut.
func OneLine(s string, most int) string { return Cut(strings.Join(strings.Fields(s), " "), most) }

// Error replaces the message of the wrapped error.
type Error struct {
	Text string
	Err  error
}

// NewError returns an error with a text that wraps err.
func NewError(text string, err error) error { return &Error{Text: text, Err: err} }

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// EngineError removes host paths and engine addresses from the message of a driver's error.
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

// hostPath matches engine addresses and host paths in a driver's error.
var hostPath = regexp.MustCompile(`(?:unix|npipe)://[^\s"',;]+|` +
	`(?:/(?:var|run|home|root|tmp|Users|private|etc|opt|usr)/[^\s"',;:]+)`)

// maxMessage is the maximum length of untrusted text in an error message, in bytes.
const maxMessage = 1024

// Message makes untrusted text suitable for one line of a log: valid UTF-8, no control characters, and a limited
// length.
func Message(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return clip(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text), maxMessage)
}

// JSON returns v as JSON on one line, for people and models. It does not escape HTML characters.
func JSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Prompt returns a prompt for a coding agent that treats a leading slash as the start of a command. A repository can
// define such commands.
func Prompt(s string) string {
	if strings.HasPrefix(strings.TrimLeftFunc(s, func(r rune) bool { return r == '\ufeff' || unicode.IsSpace(r) }), "/") {
		return "The task:\n" + s
	}
	return s
}
