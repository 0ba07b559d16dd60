// Package layers contains the test for the layers of packages: each package can import only packages of certain other
// layers. The test reads the source files, so it covers the files for all platforms and needs no build.
package layers

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
	"gopkg.in/yaml.v3"
)

var must = checktest.Must

const module = "github.com/workcell-dev/workcell"

// A layer is a folder, and the allowed imports of packages in and below the folder, within this module. A package
// belongs to the longest matching folder. Packages can always import packages in their own layer. In may, "x" means the
// layer x, and "x/..." means x and every layer below it.
type layer struct {
	dir    string
	may    []string
	genkit bool     // whether the layer can import Genkit
	sdk    bool     // whether the layer can import the OpenTelemetry SDK and exporters
	only   []string // if not nil, the only other modules that the layer can import
}

func layers() []layer {
	leaves := []string{"internal/audit", "internal/bound", "internal/hint", "internal/sanitize", "internal/telemetry", "internal/suggest"}
	own := []string{"config", "engines", "environ", "models", "otelsetup", "parcel", "reaper", "runtrace", "scripted", "state"}
	all := []string{"backend/...", "environment", "examples/...", "executor/...", "frontmatter", "gateway/...", "internal/...", "mcpserver", "otelgenai", "sandbox", "session", "session/admin", "session/record", "session/record/postgres", "session/record/sqlite", "patch", "session/cache", "session/forward", "session/interpreter", "session/transfer", "tools", "workflow", "workflow/pgjournal", "workflow/runstore", "workflow/sqlitejournal", "workflow/worker"}
	for _, name := range own {
		all = append(all, "cmd/workcell/internal/"+name)
	}
	commands := append(slices.Clone(all), "cmd/workcell/internal/app", "cmd/workcell/internal/cli")
	above := func(more ...string) []string { return append(slices.Clone(leaves), more...) }
	return []layer{
		// The driver contract has few dependencies, to allow other implementations.
		{dir: "backend", only: []string{"github.com/distribution/reference"}},
		// Drivers use the contract, and connect to the guest agent.
		{dir: "backend/docker", may: above("backend", "backend/internal/host", "backend/internal/kit", "backend/internal/registryauth", "internal/guest", "backend/internal/seccomp", "backend/internal/snapshots")},
		{dir: "backend/containerd", may: above("backend", "backend/internal/host", "backend/internal/kit", "backend/internal/registryauth", "internal/guest", "backend/internal/seccomp", "backend/internal/sizedfs", "backend/internal/snapshots")},
		{dir: "backend/local", may: above("backend", "backend/internal/host", "backend/internal/kit", "internal/guest", "backend/internal/seccomp", "backend/internal/sizedfs", "backend/internal/snapshots")},
		{dir: "backend/kubernetes", may: above("backend", "backend/internal/kit", "internal/guest")},
		{dir: "backend/memory", may: above("backend", "backend/internal/kit", "internal/guest")},
		// The tests for the contract are also for drivers outside this module, so they use only the contract and the
		// guest agent.
		{dir: "backend/backendtest", may: []string{"backend", "internal/guest"}},

		// Shared packages of drivers.
		{dir: "backend/internal/registryauth", only: []string{"github.com/docker/cli", "github.com/docker/docker-credential-helpers"}},
		{dir: "backend/internal/host", may: []string{"backend"}, only: []string{"github.com/gofrs/flock", "golang.org/x/sys"}},
		{dir: "backend/internal/kit", may: []string{"backend", "backend/internal/host", "internal/guest", "internal/bound", "internal/telemetry"}, only: []string{"github.com/containerd/errdefs", "github.com/distribution/reference", "go.opentelemetry.io/otel", "golang.org/x/sync", "golang.org/x/sys"}},
		{dir: "internal/guest"},
		// Parts of the guest agent, lowest layer first.
		{dir: "internal/guest/proc", may: []string{"internal/guest"}},
		{dir: "internal/guest/disk", may: []string{"internal/guest", "internal/guest/proc"}},
		{dir: "internal/guest/files", may: []string{"internal/guest", "internal/guest/proc", "internal/guest/disk"}},
		{dir: "internal/guest/output", may: []string{"internal/guest", "internal/guest/proc", "internal/guest/disk"}},
		{dir: "internal/guest/server", may: []string{"internal/guest/..."}},
		// Reads streams in small parts.
		{dir: "internal/telemetry", may: []string{"backend"}},
		// File systems with a fixed size, for workspaces.
		{dir: "backend/internal/snapshots", may: []string{"backend", "backend/internal/host", "backend/internal/sizedfs"}, only: []string{"github.com/gofrs/flock", "golang.org/x/sync", "golang.org/x/sys"}},
		{dir: "backend/internal/sizedfs", only: []string{"golang.org/x/sys"}},
		// The system call filter for all engines.
		{dir: "backend/internal/seccomp", only: []string{"github.com/opencontainers/runtime-spec", "golang.org/x/net", "golang.org/x/sys"}},
		{dir: "internal/bound", only: []string{"golang.org/x/sync"}},
		{dir: "internal/audit", only: []string{}},
		// For every program that uses Genkit. It knows Genkit only by spans.
		{dir: "otelgenai", may: []string{"internal/telemetry"}, only: []string{"go.opentelemetry.io/otel"}, sdk: true},
		{dir: "internal/suggest", only: []string{}},
		{dir: "internal/yamlnode", may: []string{"internal/suggest", "internal/hint", "internal/sanitize"}, only: []string{"gopkg.in/yaml.v3"}},
		// The definition of a tool, independent of the protocol.
		{dir: "internal/toolspec", may: above("backend", "sandbox", "session")},
		// Conversations of agents, in the form for a journal.
		{dir: "internal/transcript", may: []string{"internal/toolspec"}, genkit: true},
		// The sandbox settings of a file, converted to a request.
		{dir: "internal/wish", may: above("backend", "session", "frontmatter")},
		// Settings in files for hosts, host tools, packages, outputs, command lines, and names.
		{dir: "internal/rules", may: []string{"internal/hint", "internal/sanitize", "internal/suggest"}, only: []string{"github.com/bmatcuk/doublestar"}},
		{dir: "internal/guestimage", may: []string{"internal/guest"}, only: []string{"github.com/google/go-containerregistry"}},
		{dir: "environment", may: above("backend", "sandbox", "session", "session/admin", "internal/rules", "internal/sanitize"), only: []string{"github.com/gofrs/flock"}},
		{dir: "gateway/services", may: above("backend", "sandbox", "internal/httpconn", "internal/rules"), only: []string{"go.opentelemetry.io/otel", "golang.org/x/time"}},
		{dir: "gateway/egress", may: above("backend", "gateway/services", "sandbox", "internal/guest", "internal/httpconn", "internal/rules"), only: []string{"go.opentelemetry.io/otel"}},
		{dir: "gateway/hosttools", may: above("backend", "sandbox", "session/record", "internal/expr", "internal/guest", "internal/rules", "internal/toolspec")},
		{dir: "internal/httpguard", may: []string{"internal/sanitize"},
			only: []string{"golang.org/x/net", "golang.org/x/time"}},
		{dir: "internal/httpconn", may: []string{"internal/sanitize"}, only: []string{}},
		{dir: "gateway/model", may: above("internal/yamlnode", "internal/sanitize", "backend", "sandbox", "internal/httpconn"), only: []string{"go.opentelemetry.io/otel", "golang.org/x/sync"}},
		{dir: "internal/interrupt", may: above("gateway/hosttools")},
		{dir: "gateway/hosttools/mcpsource", may: above("gateway/hosttools", "internal/rules", "internal/toolspec", "internal/yamlnode")},
		// CLI coding agents and their skills. They are independent of the sources of their tools and models.
		{dir: "executor", may: above("backend", "sandbox", "session", "session/record", "executor/skill", "gateway/model", "internal/rules", "internal/guest", "internal/sanitize")},
		{dir: "executor/skill", may: []string{"internal/hint", "sandbox", "internal/sanitize", "internal/yamlnode"}, only: []string{"golang.org/x/sync"}},
		{dir: "internal/expr", may: []string{"internal/sanitize", "internal/yamlnode"}},
		{dir: "internal/layers"},
		{dir: "internal/buffertest", only: []string{}},
		{dir: "internal/checktest", only: []string{}},
		{dir: "internal/clocktest", only: []string{"golang.org/x/net", "golang.org/x/sys"}},
		{dir: "internal/clustertest", may: []string{"backend", "backend/kubernetes", "internal/guestimage"}},
		{dir: "internal/commandtest", only: []string{}},
		{dir: "internal/llmtest", only: []string{}},
		{dir: "internal/porttest", only: []string{}},
		{dir: "internal/leaktest", only: []string{"go.uber.org/goleak"}},

		// Durable state in one file or one database, for all packages with stored state.
		{dir: "internal/sqlitefile", may: []string{"internal/bound"}},
		{dir: "internal/postgres", may: []string{"backend", "internal/bound"}, only: []string{"github.com/jackc/pgx/v5"}},
		{dir: "internal/postgres/pgtest", may: []string{"internal/checktest"}, only: []string{"github.com/jackc/pgx/v5"}},
		{dir: "session/record/postgres", may: above("backend", "sandbox", "session/record", "internal/postgres"), only: []string{"github.com/jackc/pgx/v5", "golang.org/x/sync"}},
		{dir: "workflow/runstore", may: []string{"backend", "internal/bound", "internal/sanitize", "workflow"}, genkit: true,
			only: []string{}},
		{dir: "workflow/pgjournal", may: above("backend", "workflow", "workflow/runstore", "internal/postgres"), genkit: true, only: []string{"github.com/jackc/pgx/v5"}},
		{dir: "workflow/worker", may: above("backend", "workflow", "workflow/pgjournal", "workflow/runstore", "session/record/postgres", "internal/postgres"), genkit: true, only: []string{"github.com/jackc/pgx/v5"}},
		{dir: "session/record", may: above("backend")},
		{dir: "session/record/sqlite", may: above("backend", "sandbox", "session/record", "internal/sqlitefile")},
		{dir: "workflow/sqlitejournal", may: above("backend", "workflow", "workflow/runstore", "internal/sqlitefile"), genkit: true},
		{dir: "workflow/journaltest", may: []string{"backend", "session", "session/record", "workflow", "workflow/runstore"}, genkit: true},
		// The handle of a running sandbox. It depends on neither managers nor stores.
		{dir: "sandbox", may: above("backend", "internal/rules", "internal/guest", "patch")},
		{dir: "session", may: above("backend", "sandbox", "session/record", "internal/rules", "internal/guest", "internal/guest/server", "patch")},
		// Copies of files and directories between the host and a sandbox, and other features of sessions.
		{dir: "session/admin", may: []string{"internal/bound", "internal/sanitize", "backend", "session", "session/record"}, only: []string{}},
		{dir: "session/cache", may: []string{"backend", "sandbox", "session", "session/record"}, only: []string{"github.com/gofrs/flock", "golang.org/x/sys"}},
		{dir: "session/forward", may: []string{"backend", "sandbox", "internal/bound", "internal/sanitize"}, only: []string{}},
		{dir: "session/interpreter", may: []string{"backend", "sandbox", "internal/guest"}},
		{dir: "session/transfer", may: []string{"backend", "sandbox", "session", "session/record", "internal/hint", "internal/rules", "internal/runfiles", "patch"}},
		{dir: "session/sessiontest", may: above("backend", "internal/buffertest", "sandbox", "session", "session/record", "session/admin", "patch"), sdk: true},
		{dir: "frontmatter", may: []string{"internal/hint", "backend", "internal/rules", "internal/bound", "internal/sanitize", "internal/suggest", "internal/yamlnode"}, only: []string{"github.com/goccy/go-yaml"}},
		{dir: "tools", may: above("backend", "sandbox", "session", "session/record", "frontmatter", "executor", "executor/skill", "gateway/hosttools", "gateway/model", "internal/expr", "internal/guest", "internal/interrupt", "internal/rules", "internal/sanitize", "internal/toolspec", "internal/wish", "internal/yamlnode", "patch", "session/interpreter", "session/transfer", "internal/transcript"), genkit: true},
		{dir: "workflow", may: above("backend", "sandbox", "session", "session/record", "tools", "frontmatter", "gateway/hosttools", "internal/expr", "internal/rules", "internal/wish", "internal/yamlnode", "session/interpreter", "session/transfer", "internal/runfiles", "patch", "internal/transcript"), genkit: true},
		{dir: "mcpserver", may: above("internal/httpguard", "internal/yamlnode", "backend", "sandbox", "session", "session/record", "tools", "frontmatter", "gateway/hosttools", "internal/interrupt", "internal/sanitize", "internal/toolspec", "patch")},
		// Differences between two directories, and glob patterns for files. They do not depend on sandboxes.
		{dir: "patch", only: []string{"github.com/aymanbagabas/go-udiff", "github.com/bluekeyes/go-gitdiff", "github.com/bmatcuk/doublestar", "golang.org/x/sys"}},
		{dir: "cmd/workcell/internal/parcel", may: []string{"backend", "internal/runfiles", "session/transfer", "workflow/worker"}, only: []string{}},
		{dir: "internal/runfiles", may: []string{"patch"}, only: []string{}},
		// Parts of the command. Only commands read environment variables.
		{dir: "internal/hint", only: []string{}},
		{dir: "cmd/workcell/internal/environ", may: []string{"internal/hint"}, only: []string{}},
		{dir: "cmd/workcell/internal/config", may: []string{"internal/hint", "internal/httpconn", "backend", "frontmatter", "gateway/services", "cmd/workcell/internal/environ", "internal/sanitize", "internal/suggest", "internal/yamlnode"}},
		{dir: "cmd/workcell/internal/engines", may: []string{"internal/bound", "backend/...", "cmd/workcell/internal/config", "cmd/workcell/internal/environ", "internal/hint", "internal/sanitize"}},
		{dir: "cmd/workcell/internal/runtrace", may: []string{"internal/sanitize", "internal/telemetry"}, sdk: true},
		{dir: "cmd/workcell/internal/otelsetup", may: []string{"cmd/workcell/internal/environ", "cmd/workcell/internal/runtrace", "internal/sanitize", "otelgenai"}, genkit: true, sdk: true},
		{dir: "cmd/workcell/internal/state", may: []string{"cmd/workcell/internal/environ", "internal/hint", "internal/postgres", "internal/sqlitefile", "backend", "session", "session/record", "session/record/postgres", "session/record/sqlite", "workflow/pgjournal", "workflow/runstore", "workflow/sqlitejournal"}},
		{dir: "cmd/workcell/internal/reaper", may: []string{"cmd/workcell/internal/environ", "cmd/workcell/internal/state", "backend", "internal/bound", "session", "session/admin", "session/record", "session/record/sqlite"}},
		{dir: "internal/sanitize", only: []string{}},
		{dir: "cmd/workcell/internal/models", may: []string{"gateway/model", "cmd/workcell/internal/environ", "internal/hint", "internal/sanitize", "internal/suggest", "tools"}, genkit: true},
		// Plays recorded turns as a model. It does not depend on sandboxes.
		{dir: "cmd/workcell/internal/scripted", may: []string{"internal/hint", "internal/expr", "internal/sanitize", "internal/transcript", "internal/yamlnode"}, genkit: true},

		// PID 1 of every sandbox. It is small and static, so the attack surface is small.
		{dir: "cmd/workcell-guest", may: []string{"internal/guest/..."}, only: []string{"github.com/hashicorp/yamux", "golang.org/x/sys"}},
		{dir: "cmd/workcell/internal/app", may: all, genkit: true},
		// Pages for a browser.
		{dir: "cmd/workcell/internal/ui", may: append(slices.Clone(all), "cmd/workcell/internal/app")},
		{dir: "cmd/workcell/internal/cli", may: commands},
		{dir: "cmd/workcell/internal/cli/runcmd", may: commands},
		{dir: "cmd/workcell/internal/cli/sandboxcmd", may: commands},
		{dir: "cmd/workcell/internal/cli/admincmd", may: append(slices.Clone(commands), "cmd/workcell/internal/ui")},
		{dir: "cmd/workcell", may: append(commands, "cmd/workcell/internal/cli/...")},
		{dir: "examples", may: all, genkit: true, sdk: true},
		{dir: "hack"},
	}
}

func TestImportsPointDownwards(t *testing.T) {
	t.Parallel()
	rules := layers()
	for dir, imports := range sources(t) {
		l, ok := layerOf(rules, dir)
		if !ok {
			t.Errorf("%s belongs to no layer: give it a place in internal/layers", dir)
			continue
		}
		for imp, file := range imports {
			if why := verdict(l, rules, imp); why != "" {
				t.Errorf("%s imports %s: %s", file, imp, why)
			}
		}
	}
}

// TestVerdict: the rules refuse imports. Otherwise, a rule that allows everything would pass the test above.
func TestVerdict(t *testing.T) {
	t.Parallel()
	rules := layers()
	for _, tc := range []struct {
		dir, imp string
		ok       bool
	}{
		{"session", module + "/backend", true},
		{"session", module + "/backend/docker", false},
		{"session", module + "/session/record/storetest", true},
		{"session", module + "/tools", false},
		{"session", "github.com/firebase/genkit/go/ai", false},
		{"session", "go.opentelemetry.io/otel/trace", true},
		{"session", "go.opentelemetry.io/otel/sdk/trace", false},
		{"backend", module + "/internal/guest/wire", false},
		{"backend", "github.com/docker/docker/client", false},
		{"backend", "context", true},
		{"backend/docker", module + "/session", false},
		{"backend/backendtest", module + "/internal/guest/client", true},
		{"backend/backendtest", module + "/session", false},
		{"backend/backendtest", module + "/session/record/sqlite", false},
		{"backend/backendtest", "go.opentelemetry.io/otel/sdk/trace", false},
		{"backend/docker", module + "/internal/guest/embed", true},
		{"frontmatter", module + "/session", false},
		{"frontmatter", "cel.dev/cel-go/cel", false},
		{"tools", "github.com/firebase/genkit/go/ai", true},
		{"tools", module + "/workflow", false},
		{"tools", "go.opentelemetry.io/otel/exporters/otlp/otlptrace", false},
		{"cmd/workcell/internal/otelsetup", "go.opentelemetry.io/otel/sdk/trace", true},
		{"cmd/workcell", module + "/cmd/workcell/internal/cli/runcmd", true},
		{"cmd/workcell/internal/cli/runcmd", module + "/cmd/workcell/internal/app", true},
		{"cmd/workcell/internal/cli/runcmd", module + "/cmd/workcell/internal/cli/sandboxcmd", false},
		{"cmd/workcell/internal/app", module + "/cmd/workcell/internal/cli", false},
		{"cmd/workcell/internal/state", module + "/cmd/workcell/internal/app", false},
		{"cmd/workcell-guest", "gopkg.in/yaml.v3", false},
		{"internal/guest/server", module + "/session", false},
		{"internal/guest/server", module + "/internal/guest/disk", true},
		{"internal/guest/disk", module + "/internal/guest/files", false},
		{"internal/guest/client", module + "/internal/guest/server", false},
	} {
		l, ok := layerOf(rules, tc.dir)
		if !ok {
			t.Errorf("%s belongs to no layer", tc.dir)
			continue
		}
		if why := verdict(l, rules, tc.imp); (why == "") != tc.ok {
			t.Errorf("%s imports %s: allowed is %v, want %v (%s)", tc.dir, tc.imp, why == "", tc.ok, why)
		}
	}
}

// TestDependenciesAreExplained: docs/contributing/rationale.md explains every direct dependency.
func TestDependenciesAreExplained(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	rationale, err := os.ReadFile(filepath.Join(root, "docs", "contributing", "rationale.md"))
	must(t, err)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	must(t, err)
	for line := range strings.Lines(string(mod)) {
		f := strings.Fields(line)
		if len(f) != 2 || !strings.HasPrefix(line, "\t") {
			continue // the lines of indirect dependencies end in a comment
		}
		if !explained(string(rationale), f[0]) {
			t.Errorf("docs/contributing/rationale.md has no line on %s", f[0])
		}
	}
}

// TestLintConfigIsYAML: the lint configuration is valid YAML, because `make lint` is not part of the tests. The
// configuration contains the same rules for editors.
func TestLintConfigIsYAML(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", ".golangci.yml"))
	must(t, err)
	var cfg struct {
		Version string `yaml:"version"`
	}
	if err := yaml.Unmarshal(raw, &cfg); err != nil || cfg.Version != "2" {
		t.Errorf("version %q, %v", cfg.Version, err)
	}
}

// explained reports whether a text contains a module's path, the path of the module's repository, or the short form for
// a Go project module.
func explained(text, mod string) bool {
	if strings.Contains(text, "`"+strings.TrimPrefix(mod, "golang.org/")+"`") {
		return true
	}
	for p := mod; strings.Count(p, "/") >= 1; p = path.Dir(p) {
		if strings.Contains(text, "`"+p+"`") {
			return true
		}
	}
	return false
}

// verdict returns the reason why a package in layer l cannot import imp, or an empty string if it can.
func verdict(l layer, rules []layer, imp string) string {
	if rel, ours := strings.CutPrefix(imp, module+"/"); ours {
		if to, ok := layerOf(rules, rel); ok && l.mayImport(to) {
			return ""
		}
		return "not below " + l.dir
	}
	switch {
	case within(imp, "github.com/firebase/genkit") && !l.genkit:
		return l.dir + " must not import Genkit"
	case (within(imp, "go.opentelemetry.io/otel/sdk") || within(imp, "go.opentelemetry.io/otel/exporters")) && !l.sdk:
		return "libraries use the OpenTelemetry API only"
	case l.only != nil && strings.Contains(strings.Split(imp, "/")[0], ".") &&
		!slices.ContainsFunc(l.only, func(m string) bool { return within(imp, m) }):
		return l.dir + " may use no other modules than " + strings.Join(l.only, ", ")
	}
	return ""
}

func (l layer) mayImport(to layer) bool {
	return to.dir == l.dir || slices.ContainsFunc(l.may, func(m string) bool {
		dir, tree := strings.CutSuffix(m, "/...")
		return to.dir == dir || tree && within(to.dir, dir)
	})
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func find(rules []layer, dir string) (layer, bool) {
	i := slices.IndexFunc(rules, func(l layer) bool { return l.dir == dir })
	if i < 0 {
		return layer{}, false
	}
	return rules[i], true
}

func layerOf(rules []layer, dir string) (layer, bool) {
	for ; dir != "."; dir = path.Dir(dir) {
		if l, ok := find(rules, dir); ok {
			return l, true
		}
	}
	return layer{}, false
}

// sources returns the imports of every folder with Go sources, without tests. The value for each import is the first
// file with it.
func sources(t *testing.T) map[string]map[string]string {
	t.Helper()
	root := filepath.Join("..", "..")
	out := map[string]map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(root, p, d)
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		dir := path.Dir(rel)
		if out[dir] == nil {
			out[dir] = map[string]string{}
		}
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if _, ok := out[dir][imp]; !ok {
				out[dir][imp] = rel
			}
		}
		return nil
	})
	must(t, err)
	if len(out) < 5 {
		t.Fatalf("only %d packages found", len(out))
	}
	return out
}

// skipDir skips folders outside of the module.
func skipDir(root, p string, d fs.DirEntry) error {
	if p == root {
		return nil
	}
	if d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}
