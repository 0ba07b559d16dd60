package telemetry_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

var must = checktest.Must

// inCode returns the names of spans, attributes, events, and metrics in the form in which docs/reference/telemetry.md
// contains them. They come from the constants in this package and in semconv.
func inCode(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, path := range []string{"names.go", "metrics.go", filepath.Join("semconv", "semconv.go")} {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		must(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			name, prefix := spec.Names[0].Name, ""
			switch {
			case strings.HasPrefix(name, "SpanDriver"):
				prefix = "DRIVER."
			case name == "TracerName", name == "Release", name == "EventPrefix", strings.HasPrefix(name, "Removed"):
				return true
			case strings.HasPrefix(name, "Event"):
				prefix = "workcell."
			}
			ast.Inspect(spec.Values[0], func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, err := strconv.Unquote(lit.Value)
					must(t, err)
					names[prefix+text] = true
				}
				return true
			})
			return true
		})
	}
	return names
}

// TestDocumentation: docs/reference/telemetry.md lists the same names as the code.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	code := inCode(t)
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "telemetry.md"))
	must(t, err)
	named := regexp.MustCompile("`([^`]+)`")
	documented, section := map[string]bool{}, ""
	for line := range strings.Lines(string(raw)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		switch section {
		case "Spans", "Attributes", "Events", "Metrics":
		default:
			continue
		}
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range named.FindAllStringSubmatch(cells[1], -1) {
				name, _, _ := strings.Cut(m[1], " ")
				documented[name] = true
			}
		}
	}
	// Names from elsewhere: an MCP method and a command.
	for _, name := range []string{"tools/call", "workcell"} {
		delete(documented, name)
	}
	if !strings.Contains(string(raw), "in release "+semconv.Release+".") {
		t.Errorf("docs/reference/telemetry.md does not name release %s of the conventions", semconv.Release)
	}
	if len(documented) < 80 {
		t.Errorf("only %d names are documented: are the tables still there?", len(documented))
	}
	for name := range code {
		if !documented[name] {
			t.Errorf("docs/reference/telemetry.md does not list %s", name)
		}
	}
	for name := range documented {
		if !code[name] {
			t.Errorf("docs/reference/telemetry.md lists %s, which is not in the code", name)
		}
	}
}
