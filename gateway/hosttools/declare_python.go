package hosttools

import (
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// pythonKeywords returns Python's keywords, which cannot be names. Code in sandboxes appends an underscore to them.
func pythonKeywords() map[string]bool {
	keywords := map[string]bool{}
	for word := range strings.FieldsSeq("False None True and as assert async await break class continue def del " +
		"elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield") {
		keywords[word] = true
	}
	return keywords
}

// Python returns the tool's signature for calls from code. Types of objects are dict displays. A "?" marks optional
// properties.
func (t Tool) Python() string {
	keywords := pythonKeywords()
	in, results := newReader(t.Input), "Any"
	if t.Output != nil {
		results = newReader(t.Output).typ(t.Output, 1)
	}
	args, others := "**arguments: Any", ""
	if fields := in.fields(t.Input, 1); len(fields) > 0 {
		named := []string{"*"}
		for _, f := range fields {
			of := in.typ(f.schema, 2)
			id, ok := argument(f.name, keywords)
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
	def := "def " + identifier(t.Name, keywords)
	text := others + def + "(" + args + ") -> " + results + ":\n    " +
		docstring(t.Description, t.Title) + "\n"
	if len(text) > maxText {
		text = def + "(**arguments: Any) -> Any:\n    " + docstring(oneLine(t.Description, maxIndexWords)) + "\n"
	}
	return "# " + pythonCall(t, keywords) + "\n" + text
}

// pythonCall returns a Python call of the tool.
func pythonCall(t Tool, keywords map[string]bool) string {
	server, name := identifier(t.Server, keywords), identifier(t.Name, keywords)
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
func argument(name string, keywords map[string]bool) (string, bool) {
	base, underscored := strings.CutSuffix(name, "_")
	switch {
	case !isIdentifier(name), underscored && keywords[base],
		slices.Contains([]string{"_save", "_timeout", "_files"}, name):
		return "", false
	case keywords[name]:
		return name + "_", true
	}
	return name, true
}
