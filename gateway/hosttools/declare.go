package hosttools

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// maxText is the maximum size of each declaration in bytes.
const maxText = 128 << 10

// declarations returns files with descriptions of tools for code in a sandbox: INDEX.md, and a file for each tool below
// python and json. Calls don't need these files. Definitions are untrusted: every file is bounded and parses for any
// definition.
func declarations(tools []Tool) map[string]string {
	tools = slices.Clone(tools)
	slices.SortFunc(tools, func(a, b Tool) int { return strings.Compare(a.FullName(), b.FullName()) })
	files := map[string]string{indexName: indexFile(tools)}
	for _, t := range tools {
		name := safeName(t.Server) + "/" + safeName(t.Name)
		files["python/tools/"+name+".pyi"] = t.Python()
		files["json/"+name+".json"] = t.JSON()
	}
	return files
}

// safeName returns name as a path element and as a name for MCP clients: with underscores for all characters except
// ASCII letters, digits, - and _.
func safeName(name string) string { return unsafeInName.ReplaceAllString(name, "_") }

var unsafeInName = regexp.MustCompile(`[^A-Za-z0-9_-]`)

func indexFile(tools []Tool) string {
	var b strings.Builder
	b.WriteString("# Host tools\n\nPython: `from workcell import tools`, `tools.server.name(argument=value)`. " +
		"Shell: `tools call server.name JSON`.\n\n")
	for _, t := range tools {
		b.WriteString(indexLine(t))
		b.WriteByte('\n')
	}
	return b.String()
}

// Limits of a line of the index.
const (
	maxIndexArgs  = 12
	maxIndexWords = 120 // maximum characters of a sentence
)

// indexLine returns the tool's line of the index: server.tool(argument, optional?) - Sentence.
func indexLine(t Tool) string {
	var args []string
	for _, f := range newReader(t.Input).fields(t.Input, 1) {
		if len(args) == maxIndexArgs {
			args = append(args, "...")
			break
		}
		name := cmp.Or(oneLine(f.name, 40), `""`)
		if !f.required {
			name += "?"
		}
		args = append(args, name)
	}
	line := oneLine(t.FullName(), 200) + "(" + strings.Join(args, ", ") + ")"
	if s := sentence(t); s != "" {
		line += " - " + s
	}
	return line
}

// sentence returns the first sentence of a tool's description.
func sentence(t Tool) string {
	for _, s := range []string{t.Description, t.Title} {
		s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
		if at := strings.Index(s, ". "); at >= 0 {
			s = s[:at+1]
		}
		if s = oneLine(s, maxIndexWords); s != "" {
			return s
		}
	}
	return ""
}

// oneLine returns text on one line with at most most characters. It removes characters for moving or hiding text, for
// example U+202E.
func oneLine(text string, most int) string { return sanitize.OneLine(sanitize.Strip(text), most) }

// JSON returns the complete definition, including details that cannot be expressed in Python.
func (t Tool) JSON() string {
	definition := struct {
		Name        string         `json:"name"`
		Title       string         `json:"title,omitempty"`
		Description string         `json:"description,omitempty"`
		Input       map[string]any `json:"input"`
		Output      map[string]any `json:"output,omitempty"`
	}{t.FullName(), t.Title, t.Description, t.Input, t.Output}
	if b := encodeJSON(definition); len(b) > 0 && len(b) <= maxText {
		return b + "\n"
	}
	definition.Input, definition.Output, definition.Description = map[string]any{}, nil, oneLine(t.Description, 2048)
	return encodeJSON(definition) + "\n"
}

// encodeJSON returns v as one line of JSON without HTML escapes. It returns an empty string if v cannot be encoded.
func encodeJSON(v any) string {
	b, _ := sanitize.JSON(v) // empty on error
	return string(b)
}
