package ui

import (
	"fmt"
	"regexp"
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

// style is the style of a character: colors from 1 to 8, or 0 for the default.
type style struct {
	fore, back uint8
	bold       bool
}

func (s style) class() (class string) {
	if s.fore > 0 {
		class += fmt.Sprintf(" f%d", s.fore-1)
	}
	if s.back > 0 {
		class += fmt.Sprintf(" b%d", s.back-1)
	}
	if s.bold {
		class += " bo"
	}
	return strings.TrimSpace(class)
}

// apply applies the codes of an escape sequence.
func (s *style) apply(codes []int) {
	for len(codes) > 0 {
		c := codes[0]
		codes = codes[1:]
		color := uint8(c%10+1) % 10 // 9 means the default
		if c == 38 || c == 48 {
			color, codes = extended(codes)
		}
		switch {
		case c == 0:
			*s = style{}
		case c == 1, c == 22:
			s.bold = c == 1
		case c/10 == 3, c/10 == 9:
			s.fore = color
		case c/10 == 4, c/10 == 10:
			s.back = color
		}
	}
}

// extended returns the nearest color for a color of 256, or for red, green, and blue, and the remaining codes.
func extended(codes []int) (color uint8, rest []int) {
	switch {
	case len(codes) >= 4 && codes[0] == 2:
		return nearest(codes[1], codes[2], codes[3]), codes[4:]
	case len(codes) < 2 || codes[0] != 5:
		return 0, nil
	case codes[1] < 16:
		return uint8(codes[1]%8 + 1), codes[2:]
	}
	n := codes[1] - 16
	return nearest(n/36, n/6%6, n%6), codes[2:]
}

func nearest(r, g, b int) (color uint8) {
	for bit, v := range []int{r, g, b} {
		if v > 0 && v*2 > max(r, g, b) {
			color |= 1 << bit
		}
	}
	return color + 1
}

// cell is a character on a line. An invalid byte is a rune above utf8.MaxRune.
type cell struct {
	r rune
	style
}

// maxCells is the maximum length of a line. The rest is on the next line.
const maxCells = 8 << 10

// screen converts output of a program to lines. It applies colors, carriage returns, and backspaces. Every other
// control character is text. The zero value is an empty screen.
type screen struct {
	style
	rest  []byte // may be the start of a character or of a color
	cells []cell // the unfinished line
	at    int
}

var (
	colors = regexp.MustCompile(`^\x1b\[([0-9;]{0,64})m`)
	begun  = regexp.MustCompile(`^\x1b(\[[0-9;]{0,64})?$`) // more bytes may make it a color
)

// write adds output and returns the completed lines.
func (s *screen) write(p []byte) (lines []line) {
	p = append(s.rest, p...)
	s.rest = nil
	for len(p) > 0 {
		escape := p[0] == 0x1b
		var found [][]byte
		if escape {
			found = colors.FindSubmatch(p)
		}
		if found != nil {
			var codes []int
			for field := range strings.SplitSeq(string(found[1]), ";") {
				code, _ := strconv.Atoi(field) // an empty field means 0
				codes = append(codes, code)
			}
			s.apply(codes)
			p = p[len(found[0]):]
			continue
		}
		if escape && begun.Match(p) || !utf8.FullRune(p) {
			s.rest = slices.Clone(p)
			return lines
		}
		r, n := utf8.DecodeRune(p)
		if r == '\n' || s.at == maxCells {
			lines = append(lines, s.last())
			s.cells, s.at = nil, 0
		}
		switch {
		case r == '\n':
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

// last returns the unfinished line.
func (s *screen) last() (l line) {
	for i := 0; i < len(s.cells); {
		at := s.cells[i].style
		var b strings.Builder
		for ; i < len(s.cells) && s.cells[i].style == at; i++ {
			if r := s.cells[i].r; r > utf8.MaxRune {
				b.WriteByte(byte(r - utf8.MaxRune - 1))
			} else {
				b.WriteRune(r)
			}
		}
		l = append(l, span{at.class(), sanitize.Text(b.String())})
	}
	return l
}

// outputLines returns the lines of a whole output.
func outputLines(text string) []line {
	var s screen
	lines := s.write([]byte(text))
	if last := s.last(); last != nil {
		lines = append(lines, last)
	}
	return lines
}
