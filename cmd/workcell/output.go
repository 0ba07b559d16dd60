package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// format is how data is written to standard output.
type format string

const (
	outputTable format = "table"
	outputJSON  format = "json"
	outputYAML  format = "yaml"
)

// print writes v to standard output in the chosen format; table draws it for people.
func (a *app) print(v any, table func(io.Writer) error) error {
	switch a.out {
	case outputJSON:
		return writeJSON(a.stdout, v)
	case outputYAML:
		return writeYAML(a.stdout, v)
	default:
		return table(a.stdout)
	}
}

// printList prints items; for people as a table with a row for each.
func printList[T any](a *app, items []T, header []string, row func(T) []string) error {
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
	a     *app
	items []T
}

func (p *printed[T]) add(id string, item T) {
	if p.items = append(p.items, item); p.a.out == outputTable {
		fmt.Fprintln(p.a.stdout, id)
	}
}

func (p *printed[T]) end() error {
	if p.items == nil {
		p.items = []T{}
	}
	return p.a.print(p.items, func(io.Writer) error { return nil })
}

// notice writes a line about what is done to standard error. Text in it may come from a sandbox.
func (a *app) notice(format string, args ...any) {
	fmt.Fprintf(a.stderr, "workcell: %s\n", sanitize.Line(fmt.Sprintf(format, args...)))
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// writeYAML writes what writeJSON would, as YAML, with the same names in the same order.
func writeYAML(w io.Writer, v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var node yaml.Node // JSON is YAML; a node keeps the order that a map would lose
	if err := yaml.Unmarshal(buf.Bytes(), &node); err != nil {
		return err
	}
	blockStyle(&node)
	out := yaml.NewEncoder(w)
	out.SetIndent(2)
	if err := out.Encode(&node); err != nil {
		return err
	}
	return out.Close()
}

// blockStyle drops JSON's brackets and quotes, except where a string would read as something else without them.
func blockStyle(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		var plain yaml.Node
		plain.SetString(n.Value)
		n.Style = plain.Style
		if strings.ContainsAny(n.Value, "\u0085\u2028\u2029") { // line breaks to YAML, which would not come back
			n.Style = yaml.DoubleQuotedStyle
		}
	} else {
		n.Style = 0
	}
	for _, c := range n.Content {
		blockStyle(c)
	}
}

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

// writeLines writes plain data for people behind a prefix: text as it is, everything else as YAML, safe for a terminal.
func writeLines(w io.Writer, prefix string, v any) error {
	var b strings.Builder
	if s, ok := v.(string); ok {
		b.WriteString(s)
	} else if err := writeYAML(&b, v); err != nil {
		return err
	}
	for line := range strings.Lines(strings.TrimRight(b.String(), "\n") + "\n") {
		if _, err := io.WriteString(w, prefix+sanitize.Text(line)); err != nil {
			return err
		}
	}
	return nil
}

// clip shortens s to at most n runes.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
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
func byteSize(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := int64(unit), 0
	for m := n / unit; m >= unit; m /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}
