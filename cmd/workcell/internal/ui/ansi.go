package ui

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// span is text with one style. Class is a list of CSS classes, and Text is safe to show.
type span struct {
	Class string `json:"c,omitempty"`
	Text  string `json:"t"`
}

// line is a line of a command's output.
type line []span

// style is the style of a character: colors from 1 to 16, or 0 for the default.
type style struct {
	fore, back              uint8
	bold, italic, underline bool
}

func (s style) class() string {
	var list []string
	for _, c := range []struct {
		set  bool
		name string
	}{
		{s.fore > 0, "f" + strconv.Itoa(int(s.fore)-1)}, {s.back > 0, "b" + strconv.Itoa(int(s.back)-1)},
		{s.bold, "bo"}, {s.italic, "it"}, {s.underline, "un"},
	} {
		if c.set {
			list = append(list, c.name)
		}
	}
	return strings.Join(list, " ")
}

// cell is a character on a line. An invalid byte is a rune above utf8.MaxRune.
type cell struct {
	r rune
	style
}

// screen converts output of a program to lines. It applies colors, carriage returns, and backspaces. Every other control
// character is text. The zero value is an empty screen.
type screen struct {
	style
	rest  []byte // may be the start of a character or of a color
	cells []cell // the unfinished line
	at    int
}

// maxColor is the maximum length of an escape sequence for colors.
const maxColor = 64

// write adds output and returns the lines that it completed.
func (s *screen) write(p []byte) (lines []line) {
	p = append(s.rest, p...)
	s.rest = nil
	for len(p) > 0 {
		if p[0] == 0x1b {
			n, complete := s.color(p)
			if !complete {
				s.rest = slices.Clone(p)
				return lines
			}
			if n > 0 {
				p = p[n:]
				continue
			}
		}
		if !utf8.FullRune(p) {
			s.rest = slices.Clone(p)
			return lines
		}
		r, n := utf8.DecodeRune(p)
		switch {
		case r == '\n':
			lines = append(lines, s.last())
			s.cells, s.at = nil, 0
		case r == '\r':
			s.at = 0
		case r == '\b':
			s.at = max(s.at-1, 0)
		default:
			if r == utf8.RuneError && n == 1 {
				r = utf8.MaxRune + 1 + rune(p[0])
			}
			if s.at == len(s.cells) {
				s.cells = append(s.cells, cell{})
			}
			s.cells[s.at] = cell{r, s.style}
			s.at++
		}
		p = p[n:]
	}
	return lines
}

// color applies the sequence at the start of p. n is 0 if it is not a color. If more bytes are needed, complete is false.
func (s *screen) color(p []byte) (n int, complete bool) {
	if len(p) == 1 {
		return 0, false
	}
	if p[1] != '[' {
		return 0, true
	}
	end := bytes.IndexFunc(p[2:], func(r rune) bool { return r != ';' && (r < '0' || r > '9') })
	if end < 0 {
		return 0, len(p) > maxColor
	}
	if p[2+end] != 'm' || end > maxColor {
		return 0, true
	}
	var codes []int
	for field := range strings.SplitSeq(string(p[2:2+end]), ";") {
		code, _ := strconv.Atoi(field) // an empty field means 0
		codes = append(codes, code)
	}
	s.apply(codes)
	return end + 3, true
}

func (s *style) apply(codes []int) {
	for i := 0; i < len(codes); i++ {
		switch c := codes[i]; {
		case c == 0:
			*s = style{}
		case c == 1:
			s.bold = true
		case c == 3:
			s.italic = true
		case c == 4:
			s.underline = true
		case c == 22:
			s.bold = false
		case c == 23:
			s.italic = false
		case c == 24:
			s.underline = false
		case c >= 30 && c <= 37:
			s.fore = uint8(c - 30 + 1)
		case c >= 40 && c <= 47:
			s.back = uint8(c - 40 + 1)
		case c >= 90 && c <= 97:
			s.fore = uint8(c - 90 + 9)
		case c >= 100 && c <= 107:
			s.back = uint8(c - 100 + 9)
		case c == 39:
			s.fore = 0
		case c == 49:
			s.back = 0
		case c == 38 || c == 48:
			color, used := extended(codes[i+1:])
			if i += used; c == 38 {
				s.fore = color
			} else {
				s.back = color
			}
		}
	}
}

// extended returns the nearest of the 16 colors for a color of 256 or a color with red, green, and blue.
func extended(codes []int) (color uint8, used int) {
	if len(codes) >= 4 && codes[0] == 2 {
		return nearest(codes[1], codes[2], codes[3]), 4
	}
	if len(codes) < 2 || codes[0] != 5 {
		return 0, len(codes)
	}
	switch n := codes[1]; {
	case n < 16:
		return uint8(n + 1), 2
	case n < 232:
		n -= 16
		return nearest(n/36*51, n/6%6*51, n%6*51), 2
	default:
		return nearest((n-232)*10+8, (n-232)*10+8, (n-232)*10+8), 2
	}
}

func nearest(r, g, b int) uint8 {
	color, bright := 0, max(r, g, b)
	for bit, v := range []int{r, g, b} {
		if v*2 > bright && v > 60 {
			color |= 1 << bit
		}
	}
	if bright > 200 || color == 0 && bright > 60 {
		color += 8
	}
	return uint8(color + 1)
}

// last returns the unfinished line.
func (s *screen) last() (l line) {
	for i := 0; i < len(s.cells); {
		from, at := i, s.cells[i].style
		var b strings.Builder
		for ; i < len(s.cells) && s.cells[i].style == at; i++ {
			if r := s.cells[i].r; r > utf8.MaxRune {
				b.WriteByte(byte(r - utf8.MaxRune - 1))
			} else {
				b.WriteRune(r)
			}
		}
		if i > from {
			l = append(l, span{at.class(), sanitize.Text(b.String())})
		}
	}
	return l
}

// outputLines returns the lines of a whole output.
func outputLines(text string) []line {
	var s screen
	lines := s.write([]byte(text))
	s.rest = nil
	if last := s.last(); last != nil {
		lines = append(lines, last)
	}
	return lines
}
