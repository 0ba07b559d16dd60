package runtrace

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// Options configures the drawing of a trace.
type Options struct {
	All   bool // draw every span, including spans missing in the short form
	Width int  // text width in columns; at least 60
	Color bool // use terminal colors
}

// Title returns a one-line summary of the trace.
func (t *Trace) Title() string {
	_, took := t.bounds()
	text := fmt.Sprintf("%s, %s, %s, %s", duration(took), plural(t.count(Agent), "agent run"),
		plural(t.count(LLM), "model call"), plural(t.count(Tool), "tool call"))
	if in, out := t.sum(string(semconv.InputTokens)), t.sum(string(semconv.OutputTokens)); in+out > 0 {
		text += fmt.Sprintf(", %d tokens in, %d out", in, out)
	}
	return text
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Text draws the trace as lines with the span tree, the duration of each span, and a time bar.
func (t *Trace) Text(w io.Writer, o Options) error {
	const columns = 9 // width of the duration
	width := max(o.Width, 60)
	label := width * 11 / 20
	bar := width - label - columns - 2
	start, took := t.bounds()
	var b strings.Builder
	fmt.Fprintf(&b, "trace %s: %s\n", t.ID, t.Title())
	t.each(func(s *Span, last []bool) {
		text := sanitize.Cut(branches(last)+s.label(), label)
		from := int(float64(s.Start.Sub(start)) / float64(took) * float64(bar))
		from = min(max(from, 0), bar-1)
		length := int(float64(s.End.Sub(s.Start))/float64(took)*float64(bar) + 0.5)
		length = min(max(length, 1), bar-from)
		block := strings.Repeat("█", length)
		if float64(s.End.Sub(s.Start))*2*float64(bar) < float64(took) { // less than half a column
			block = "▏"
		}
		if o.Color {
			block = "\x1b[" + s.color().ansi + "m" + block + "\x1b[0m"
		}
		fmt.Fprintf(&b, "%s%s%*s  %s%s\n", text, strings.Repeat(" ", label-utf8.RuneCountInString(text)), columns,
			duration(s.End.Sub(s.Start)),
			strings.Repeat(" ", from), block)
	}, o.All)
	_, err := io.WriteString(w, b.String())
	return err
}

// Row is a span with a place in the trace.
type Row struct {
	*Span
	Depth int // number of displayed ancestors
	Label string
	Kind  Kind
}

// Rows returns the spans as Text draws them.
func (t *Trace) Rows(all bool) (rows []Row) {
	t.each(func(s *Span, last []bool) { rows = append(rows, Row{s, len(last) - 1, s.label(), s.kind()}) }, all)
	return rows
}

// branches returns the tree lines of a span.
func branches(last []bool) string {
	var b strings.Builder
	for i := 1; i < len(last); i++ {
		own := i == len(last)-1
		switch {
		case own && last[i]:
			b.WriteString("└ ")
		case own:
			b.WriteString("├ ")
		case last[i]:
			b.WriteString("  ")
		default:
			b.WriteString("│ ")
		}
	}
	return b.String()
}

// label returns the name of a span with the most important attribute. Names may come from a model, so label makes them
// safe for a terminal.
func (s *Span) label() string {
	a := s.Attributes
	text := s.Name
	switch {
	case s.Name == telemetry.SpanWorkflowStep:
		text += " " + cmp.Or(a[string(telemetry.KeyStepPath)], a[string(telemetry.KeyStepID)])
		if n := a[string(telemetry.KeyAttempt)]; n != "" && n != "1" {
			text += " (attempt " + n + ")"
		}
	case s.kind() == LLM:
		if in := a[string(semconv.InputTokens)]; in != "" {
			text += " " + in + "→" + cmp.Or(a[string(semconv.OutputTokens)], "0") + " tokens"
		}
	}
	if code := cmp.Or(a[string(semconv.ProcessExitCode)], a[string(telemetry.KeyExitCode)]); code != "" && code != "0" {
		text += " exit " + code
	}
	if s.Failed {
		text += " ✗ " + a[string(semconv.ErrorType)]
	}
	for _, e := range s.Events {
		if e, ok := strings.CutPrefix(e, telemetry.EventPrefix); ok {
			text += " ! " + e
		}
	}
	return strings.TrimSpace(sanitize.Line(text))
}

// duration formats d with about three digits, for example "1.25s".
func duration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// color is a color for terminals and for SVG.
type color struct{ ansi, svg string }

// Colors of spans. The SVG colors are distinguishable for people with red-green color blindness.
var (
	failedColor = color{"31", "#c0392b"}
	kindColors  = map[Kind]color{
		Agent: {"35", "#8250df"}, LLM: {"34", "#0969da"}, Tool: {"32", "#1a7f37"}, Other: {"90", "#9aa4af"},
	}
)

func (s *Span) color() color {
	if s.Failed {
		return failedColor
	}
	return kindColors[s.kind()]
}

// SVG draws the trace as a picture.
func (t *Trace) SVG(w io.Writer, title string, o Options) error {
	const (
		width, label, row, top = 1100, 520, 20, 58
		letter                 = 6.7 // width of one letter
		bar                    = width - label - 90
	)
	start, took := t.bounds()
	var body strings.Builder
	y := top
	t.each(func(s *Span, last []bool) {
		x := float64(label) + max(0, float64(s.Start.Sub(start))/float64(took)*bar)
		length := max(1.5, float64(s.End.Sub(s.Start))/float64(took)*bar)
		indent := 14 * min(len(last)-1, 20) // the label needs space
		color := s.color().svg
		text := sanitize.Cut(s.label(), int(float64(label-indent-30)/letter))
		fmt.Fprintf(&body, `<rect x="%d" y="%d" width="3" height="12" fill="%s"/><text x="%d" y="%d">%s</text>`, 12+indent,
			y+2, color, 21+indent, y+12, escape(text))
		fmt.Fprintf(&body, `<rect x="%.1f" y="%d" width="%.1f" height="12" rx="2" fill="%s"><title>%s</title></rect>`, x,
			y+2, length, color, escape(s.label()+", "+duration(s.End.Sub(s.Start))))
		fmt.Fprintf(&body, `<text class="t" x="%d" y="%d">%s</text>`+"\n", width-12, y+12, duration(s.End.Sub(s.Start)))
		y += row
	}, o.All)
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="11">
<style>text{fill:#1f2328}.t{text-anchor:end;fill:#59636e}</style>
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="12" y="20" font-size="13" font-weight="bold">%s</text><text x="12" y="38" class="s">%s</text>
`, width, y+12, escape(sanitize.Line(title)), escape(t.Title()))
	x := label
	for _, kind := range []struct {
		word  string
		color color
	}{
		{"agent", kindColors[Agent]}, {"model", kindColors[LLM]}, {"tool", kindColors[Tool]},
		{"sandbox, step", kindColors[Other]}, {"failed", failedColor},
	} {
		fmt.Fprintf(&b, `<rect x="%d" y="11" width="10" height="10" rx="2" fill="%s"/><text x="%d" y="20">%s</text>`, x,
			kind.color.svg, x+15, kind.word)
		x += 45 + int(letter*float64(len(kind.word)))
	}
	for i := range 5 { // time axis
		x := float64(label) + float64(i)*bar/4
		fmt.Fprintf(&b, `<path d="M%.1f %d V%d" stroke="#d1d9e0"/><text x="%.1f" y="%d" fill="#59636e">%s</text>`, x, top-8,
			y, x+3, top-10, duration(took*time.Duration(i)/4))
	}
	b.WriteString("\n" + body.String() + "</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // writing to a strings.Builder never fails
	return b.String()
}
