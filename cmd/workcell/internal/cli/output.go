package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/docker/go-units"
	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// format is the format of the data on standard output.
type format string

const (
	OutputTable format = "table"
	outputJSON  format = "json"
)

// Print prints v to standard output in the selected format. table prints it as text.
func (a *Command) Print(v any, table func(io.Writer) error) error {
	if a.Out == outputJSON {
		return writeJSON(a.Stdout, v)
	}
	return table(a.Stdout)
}

// PrintLines is like Print with a text of single lines. It makes the lines safe for a terminal.
func (a *Command) PrintLines(v any, lines ...string) error {
	return a.Print(v, func(w io.Writer) error {
		for _, line := range lines {
			if _, err := fmt.Fprintln(w, sanitize.Line(line)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Progress starts a progress display. The caller must close it.
func (a *Command) Progress() *progress { return newProgress(a.Stdin, a.Stderr, a.dumb()) }

// front implements Options.Front.
func (a *Command) front(w io.Writer) app.Front { return newProgress(a.Stdin, w, a.dumb()) }

// dumb reports whether the terminal does not support control sequences.
func (a *Command) dumb() bool { return a.Options.Env.Get("TERM") == "dumb" }

// PrintList prints items. The text format is a table with one row per item.
func PrintList[T any](a *Command, items []T, header []string, row func(T) []string) error {
	return a.Print(items, func(w io.Writer) error {
		rows := make([][]string, len(items))
		for i, item := range items {
			rows[i] = row(item)
		}
		return WriteTable(w, header, rows)
	})
}

// Printed prints the results of a command for several items. In text format, it prints the id of each item
// immediately. In other formats, end prints the list of all items.
type Printed[T any] struct {
	Command *Command
	items   []T
	err     error // first error of writing
}

func (p *Printed[T]) Add(id string, item T) {
	if p.items = append(p.items, item); p.Command.Out == OutputTable {
		_, err := fmt.Fprintln(p.Command.Stdout, sanitize.Line(id))
		p.err = cmp.Or(p.err, err)
	}
}

func (p *Printed[T]) End() error {
	if p.items == nil {
		p.items = []T{}
	}
	return cmp.Or(p.err, p.Command.PrintLines(p.items))
}

// Removed is a removed object in the output of a command.
type Removed struct {
	ID string `json:"id"`
}

// Contents returns standard output for contents from a sandbox or a server. A terminal must not interpret them. Other
// readers get them unchanged.
func (a *Command) Contents() io.Writer {
	if _, ok := terminal(a.Stdout); ok {
		return plainWriter{a.Stdout}
	}
	return a.Stdout
}

// plainWriter makes written text safe for a terminal. It also escapes characters split between two writes.
type plainWriter struct{ w io.Writer }

func (p plainWriter) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 32<<10) // limited, because escapes are longer than the escaped characters
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

// writeJSON writes v as JSON, with escapes for the characters reported by isUnprintable.
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

// isUnprintable reports whether a terminal may interpret a character or may not show it.
func isUnprintable(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// WriteTable writes aligned rows under a header. It makes cells safe for a terminal.
func WriteTable(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, c := range row {
			c = cmp.Or(c, "-")
			cells[i] = sanitize.Line(c)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// WriteFacts writes lines with a name and a value. facts alternates between names and values. It omits empty values.
func WriteFacts(w io.Writer, facts ...string) error {
	var b strings.Builder
	for f := range slices.Chunk(facts, 2) {
		if f[1] != "" {
			fmt.Fprintf(&b, "%-10s%s\n", f[0], sanitize.Line(f[1]))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteLines writes a result as text, safe for a terminal. It writes strings unchanged and other values in YAML
// style. Very large values remain JSON.
func WriteLines(w io.Writer, prefix string, v any) error {
	text, ok := v.(string)
	if !ok {
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		plain, tooLarge := expr.DecodeJSON(raw) // distinguishes whole numbers from other numbers
		if tooLarge == nil {
			raw, err = yaml.Marshal(plain)
		}
		if err != nil {
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

// ByteSize returns a number of bytes with a unit, for example "1.5MiB".
func ByteSize(n int64) string { return units.BytesSize(float64(n)) }
