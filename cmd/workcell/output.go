package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/docker/go-units"
	"golang.org/x/term"
	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// format is how data is written to standard output.
type format string

const (
	outputTable format = "table"
	outputJSON  format = "json"
)

// print writes v to standard output in the chosen format; table draws it for people.
func (a *command) print(v any, table func(io.Writer) error) error {
	if a.out == outputJSON {
		return writeJSON(a.stdout, v)
	}
	return table(a.stdout)
}

// progress starts to show what is done. The caller closes it.
func (a *command) progress() *progress { return newProgress(a.stdin, a.stderr) }

// front is Options.Front.
func (a *command) front(w io.Writer) Front { return newProgress(a.stdin, w) }

// printList prints items; for people as a table with a row for each.
func printList[T any](a *command, items []T, header []string, row func(T) []string) error {
	return a.print(items, func(w io.Writer) error {
		rows := make([][]string, len(items))
		for i, item := range items {
			rows[i] = row(item)
		}
		return writeTable(w, header, rows)
	})
}

// printed prints what a command does to one thing after the other: for people the id of each as soon as it is true, else
// the list of all by end.
type printed[T any] struct {
	command *command
	items   []T
}

func (p *printed[T]) add(id string, item T) {
	if p.items = append(p.items, item); p.command.out == outputTable {
		fmt.Fprintln(p.command.stdout, id)
	}
}

func (p *printed[T]) end() error {
	if p.items == nil {
		p.items = []T{}
	}
	return p.command.print(p.items, func(io.Writer) error { return nil })
}

// contents returns standard output for contents that may come from a sandbox: a terminal must not act on them. Whoever
// else reads them gets them as they are.
func (a *command) contents() io.Writer {
	if isTerminal(a.stdout) {
		return plainWriter{a.stdout}
	}
	return a.stdout
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// plainWriter makes what is written safe for a terminal. A write must end with a whole character.
type plainWriter struct{ w io.Writer }

func (p plainWriter) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 32<<10) // escapes are longer than what they stand for
		for n < len(rest) && !utf8.RuneStart(rest[n]) && n < 32<<10+utf8.UTFMax {
			n++
		}
		if _, err := io.WriteString(p.w, sanitize.Text(string(rest[:n]))); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return len(data), nil
}

// writeJSON writes v as JSON, with escapes for the characters that isUnprintable reports.
func writeJSON(w io.Writer, v any) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if !isUnprintable(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// isUnprintable reports whether a terminal may act on a character, or not show it.
func isUnprintable(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// writeTable aligns rows under a header. Cells are made safe for a terminal.
func writeTable(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, c := range row {
			if c == "" {
				c = "-"
			}
			cells[i] = sanitize.Line(c)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// writeFacts writes lines of a name and a value; what has no value is left out.
func writeFacts(w io.Writer, facts ...[2]string) {
	for _, f := range facts {
		if f[1] != "" {
			fmt.Fprintf(w, "%-10s%s\n", f[0], sanitize.Line(f[1]))
		}
	}
}

// notYAML matches the characters of JSON that are not valid in YAML, or break a line there.
var notYAML = regexp.MustCompile("[\x7f-\u009f\ufeff\ufffe\uffff]")

// writeLines writes a result for people, safe for a terminal: text unchanged, anything else in the style of YAML.
func writeLines(w io.Writer, prefix string, v any) error {
	text, ok := v.(string)
	if !ok {
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		raw = notYAML.ReplaceAllFunc(raw, func(c []byte) []byte { return fmt.Appendf(nil, `\u%04x`, []rune(string(c))[0]) })
		var plain any // a reader of YAML tells whole numbers from others
		if err := yaml.Unmarshal(raw, &plain); err != nil {
			return err
		}
		if raw, err = yaml.Marshal(plain); err != nil {
			return err
		}
		text = string(raw)
	}
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		if _, err := io.WriteString(w, prefix+sanitize.Text(line)); err != nil {
			return err
		}
	}
	return nil
}

// age writes how long ago something was in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return d.Truncate(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/(time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/(time.Hour))
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// byteSize writes a number of bytes for people.
func byteSize(n int64) string { return units.BytesSize(float64(n)) }
