package hosttools

import (
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// pythonKeywords are Python's keywords, which cannot be names. Code in sandboxes appends an underscore to them.
var pythonKeywords = strings.Fields("False None True and as assert async await break class continue def del elif else " +
	"except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield")

// identifier returns the Python name of a tool. It is never a keyword.
func identifier(name string) string {
	id := strings.ReplaceAll(safeName(name), "-", "_")
	switch {
	case id == "" || '0' <= id[0] && id[0] <= '9':
		return "_" + id
	case slices.Contains(pythonKeywords, id):
		return id + "_"
	}
	return id
}

// Python returns the tool's signature for calls from code. Types of objects are dict displays. A "?" marks optional
// properties.
func (t Tool) Python() string {
	in, results := newReader(t.Input), "Any"
	if t.Output != nil {
		results = newReader(t.Output).typ(t.Output, 1)
	}
	args, others := "**arguments: Any", ""
	if fields := in.fields(t.Input, 1); len(fields) > 0 {
		named := []string{"*"}
		for _, f := range fields {
			of := in.typ(f.schema, 2)
			id, ok := argument(f.name)
			switch {
			case !ok:
				others += "# By tools.call alone: " + encodeJSON(oneLine(f.name, 80)) + ": " + of + "\n"
			case f.required:
				named = append(named, id+": "+of)
			default:
				named = append(named, id+": "+of+" = ...")
			}
		}
		if args = strings.Join(named, ", "); args == "*" {
			args = ""
		}
	}
	def := "def " + identifier(t.Name)
	text := others + def + "(" + args + ") -> " + results + ":\n    " +
		docstring(t.Description, t.Title) + "\n"
	if len(text) > maxText {
		text = def + "(**arguments: Any) -> Any:\n    " + docstring(oneLine(t.Description, maxIndexWords)) + "\n"
	}
	return "# " + pythonCall(t) + "\n" + text
}

// pythonCall returns a Python call of the tool.
func pythonCall(t Tool) string {
	server, name := identifier(t.Server), identifier(t.Name)
	if server[0] != '_' && name[0] != '_' && t.Server != "call" { // tools.call is a function
		return "from workcell import tools; tools." + server + "." + name + "(...)"
	}
	return "from workcell import tools; tools.call(" + encodeJSON(oneLine(t.FullName(), 200)) + ", {...})"
}

func docstring(texts ...string) string {
	for _, s := range texts {
		if s = strings.TrimSpace(sanitize.Strip(s)); s != "" {
			s = strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), `"""`, `'''`)
			if strings.HasSuffix(s, `"`) {
				s += " "
			}
			return `"""` + strings.ReplaceAll(strings.ReplaceAll(s, "\n", "\n    "), "\n    \n", "\n\n") + `"""`
		}
	}
	return "..."
}

// argument returns the Python name of an argument. It returns false if the argument has no valid name.
func argument(name string) (string, bool) {
	base, underscored := strings.CutSuffix(name, "_")
	if underscored && slices.Contains(pythonKeywords, base) ||
		slices.Contains([]string{"_save", "_timeout", "_files"}, name) {
		return "", false
	}
	id := identifier(name)
	return id, id == name || slices.Contains(pythonKeywords, name)
}
