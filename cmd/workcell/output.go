package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// outputFlag is the -o flag: how data is written to standard output. The zero value is the table.
type outputFlag string

const (
	outputTable outputFlag = "table"
	outputJSON  outputFlag = "json"
	outputYAML  outputFlag = "yaml"
)

func (f *outputFlag) String() string {
	if *f == "" {
		return string(outputTable)
	}
	return string(*f)
}

// Set accepts the three formats.
func (f *outputFlag) Set(s string) error {
	switch o := outputFlag(s); o {
	case outputTable, outputJSON, outputYAML:
		*f = o
		return nil
	default:
		return fmt.Errorf("unknown format %q, use table, json or yaml", s)
	}
}

// Type names the flag's values in help.
func (f *outputFlag) Type() string { return "table|json|yaml" }

func (f *outputFlag) addTo(cmd *cobra.Command) {
	cmd.Flags().VarP(f, "output", "o", "format of the data on standard output")
}

// write puts v on w in the chosen format; table draws it for people.
func (f *outputFlag) write(w io.Writer, v any, table func(io.Writer) error) error {
	switch *f {
	case outputJSON:
		return writeJSON(w, v)
	case outputYAML:
		return writeYAML(w, v)
	default:
		return table(w)
	}
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

// writeSafe writes plain data for people: text as it is, everything else as YAML, safe for a terminal.
func writeSafe(w io.Writer, v any) error { return writeLines(w, "", v) }

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
