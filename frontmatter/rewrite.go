package frontmatter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	goccy "github.com/goccy/go-yaml"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// DefaultMaxTurns is the maximum number of turns with tool calls for an agent whose file sets no maxTurns. Genkit's
// default is 50.
const DefaultMaxTurns = 40

// Source returns the file in a form that Genkit understands: `sandbox:` becomes an entry of `use:`, and DefaultMaxTurns
// is added if the file has no maxTurns. The template's text does not change, but its line in the file may change:
// errors count from BodyLine. To prevent dotprompt from missing the frontmatter, Source also fixes a byte order mark,
// blank lines with CRLF before it, and a missing last newline.
func (d *Document) Source() ([]byte, error) {
	if !d.parts.found {
		return []byte(d.parts.text), nil
	}
	p := d.parts
	header, err := d.header()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for off := 0; off < p.open; {
		l, next := nextLine(p.text, off)
		if strings.Trim(l, " \t\f\r\n") == "" {
			l = "\n"
		}
		b.WriteString(l)
		off = next
	}
	b.WriteString(p.text[p.open:p.start])
	b.WriteString(header)
	b.WriteString(p.text[p.end:p.body])
	if !p.closed {
		b.WriteString("\n")
	}
	b.WriteString(guarded(d.Body))
	return []byte(b.String()), nil
}

// guarded prevents Genkit from mistaking a heading and a horizontal rule at the top of a template for frontmatter.
// Genkit parses a template again when it renders it. The guard is a template comment.
func guarded(body string) string {
	trimmed := strings.TrimSpace(body)
	if p, _ := cut("", []byte(trimmed)); !p.found {
		return body
	}
	at := strings.Index(body, trimmed)
	return body[:at] + "{{! }}" + body[at:]
}

// movable reports files Source cannot rewrite.
func (r decoder) movable(d *Document) {
	p, problem := cut("", []byte(strings.TrimSpace(d.Body)))
	if problem == nil && p.found && p.open == 0 { // Genkit would remove it
		const message = "the template begins with a second frontmatter block"
		r.Add(&Error{File: d.File, Line: d.BodyLine, Message: message, Hint: "merge the two"})
	}
	if len(r.Problems) > 0 {
		return
	}
	if d.Sandbox == nil {
		if _, err := asGenkit(d.parts.yaml()); err != nil {
			r.Fail(d.root, "use simpler YAML", "Genkit cannot read the frontmatter: %v", err)
		}
		return
	}
	if _, err := d.header(); err != nil {
		r.Fail(d.root, "use simpler YAML", "the frontmatter cannot be rewritten for Genkit: %v", err)
	}
}

// header returns the YAML with `sandbox:` moved to `use:`.
func (d *Document) header() (string, error) {
	if d.Sandbox == nil {
		return d.parts.yaml(), nil
	}
	uses, err := d.uses()
	if err != nil {
		return "", err
	}
	value, err := sanitize.JSON(uses) // one line, which is also valid YAML
	if err != nil {
		return "", err
	}
	rest := *d.root
	rest.Style = 0
	rest.Content = nil
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		if key := d.root.Content[i]; key.Value != "use" && key.Value != "sandbox" {
			rest.Content = append(rest.Content, key, d.root.Content[i+1])
		}
	}
	var out bytes.Buffer
	if len(rest.Content) > 0 {
		text, err := yamlnode.Encode(&rest)
		if err != nil {
			return "", err
		}
		out.Write(text)
	}
	if d.Meta.MaxTurns == 0 {
		fmt.Fprintf(&out, "maxTurns: %d\n", DefaultMaxTurns)
	}
	fmt.Fprintf(&out, "use: %s\n", escape(string(value)))
	return out.String(), d.same(out.String(), uses)
}

// uses returns the entries of `use:` with the sandbox. The sandbox is the first entry, and thus the outermost
// middleware, because the others can call models (genkit-middleware/fallback). In mode executor, it is the last entry,
// because the coding agent replaces the model, and the others may change its task.
func (d *Document) uses() ([]any, error) {
	entry := map[string]any{"name": Middleware, "config": d.Sandbox}
	var entries []any
	if n := lookup(d.root, "use"); n != nil && n.Kind == yamlnode.List {
		plainDates(n)
		if err := n.Decode(&entries); err != nil {
			return nil, fmt.Errorf("use: %v", err)
		}
	}
	entries = slices.DeleteFunc(entries, func(e any) bool {
		m, _ := e.(map[string]any)
		return e == Middleware || m["name"] == Middleware
	})
	if d.Sandbox.Mode == ModeExecutor {
		return append(entries, entry), nil
	}
	return append([]any{entry}, entries...), nil
}

// plainDates converts YAML 1.1 timestamps to text, as Genkit's parser does.
func plainDates(n *yamlnode.Node) {
	if yamlnode.Is(n, "!!timestamp") {
		n.Tag = "!!str"
	}
	for _, c := range n.Content {
		plainDates(c)
	}
}

// escape escapes characters JSON allows in strings but YAML parsers fold or refuse.
func escape(text string) string {
	var out strings.Builder
	for _, r := range text {
		if (r >= 0x7f && r <= 0x9f) || r == 0x2028 || r == 0x2029 || r == 0xfeff {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// same verifies that the rewritten YAML has the content of the original, except that uses replaces `use:` and
// `sandbox:`.
func (d *Document) same(rewritten string, uses []any) error {
	var before, after map[string]any
	if err := d.root.Decode(&before); err != nil {
		return err
	}
	if err := yamlnode.Unmarshal([]byte(rewritten), &after); err != nil {
		return err
	}
	want, err := normal(uses)
	if err != nil {
		return err
	}
	genkit, err := asGenkit(rewritten)
	if err != nil {
		return err
	}
	got, err := normal(genkit["use"])
	if err != nil {
		return err
	}
	if d.Meta.MaxTurns == 0 {
		before["maxTurns"] = DefaultMaxTurns
	}
	for _, m := range []map[string]any{before, after} {
		delete(m, "use")
		delete(m, "sandbox")
	}
	if !reflect.DeepEqual(want, got) || !reflect.DeepEqual(before, after) {
		return fmt.Errorf("its values would change")
	}
	return nil
}

// asGenkit parses the frontmatter with Genkit's parser. If that parser fails, Genkit prints the error, continues, and
// sends the whole file to the model as the prompt.
func asGenkit(text string) (m map[string]any, err error) {
	defer func() {
		if r := recover(); r != nil {
			m, err = nil, fmt.Errorf("%v", r)
		}
	}()
	if err := goccy.Unmarshal([]byte(text), &m); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("%s", first)
	}
	return m, nil
}

// normal returns v as decoded from JSON.
func normal(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out any
	err = json.Unmarshal(b, &out)
	return out, err
}
