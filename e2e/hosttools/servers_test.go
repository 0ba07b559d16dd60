package hosttools

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/e2e/npmtest"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// secret must appear only in the operator's file.
const secret = "canary-4711-not-to-be-seen"

// operator returns the sources of an operator's file, and their log.
func operator(t *testing.T, file string) ([]hosttools.Source, *buffertest.Buffer) {
	t.Helper()
	config, err := mcpsource.ParseConfig("host-tools.yaml", []byte(file), func(name string) (string, bool) { return secret, name == "SECRET" })
	must(t, err)
	log := &buffertest.Buffer{}
	o := &mcpsource.Options{
		Log:     slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()},
	}
	var sources []hosttools.Source
	for _, server := range config.Servers {
		sources = append(sources, mcpsource.New(server, o))
	}
	return sources, log
}

// watched is a desk for the servers of an operator's file. It tracks all output, which must not contain the secret.
type watched struct {
	*desk
	log   *buffertest.Buffer
	spans *tracetest.InMemoryExporter
}

func newWatched(t *testing.T, m *session.Manager, file string, allowed ...string) *watched {
	t.Helper()
	sources, log := operator(t, "servers:\n"+file)
	spans := tracetest.NewInMemoryExporter()
	o := &hosttools.Options{Log: slog.New(slog.NewTextHandler(log, nil)), TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}
	return &watched{newDeskIn(t, m, session.Request{Image: pythonImage}, o, allow(allowed...), nil, sources...), log, spans}
}

// secretStays searches for leaks of the secret.
func (w *watched) secretStays() {
	w.t.Helper()
	must(w.t, w.registry.Close()) // afterwards, the log has all output of the servers
	spans := w.spans.GetSpans().Snapshots()
	if len(spans) == 0 {
		w.t.Error("there are no spans")
	}
	for what, text := range map[string]string{
		"log": w.log.String(), "tools": fmt.Sprint(w.set.Tools()), "index": w.set.Index(),
	} {
		if strings.Contains(text, secret) {
			w.t.Errorf("the secret is in the %s: %s", what, text)
		}
	}
	for _, span := range spans {
		if text := fmt.Sprint(span.Name(), span.Attributes(), span.Events(), span.Status()); strings.Contains(text, secret) {
			w.t.Errorf("the secret is in a span: %s", text)
		}
	}
}

// server returns the lines of the operator's file for a server from npm.
func server(t *testing.T, name string, env string, args ...string) string {
	node, modules := npmtest.Tools(t)
	command := append([]string{node, filepath.Join(modules, "@modelcontextprotocol", "server-"+name, "dist", "index.js")}, args...)
	return fmt.Sprintf("  %s: {command: [%s], env: {%s}}\n", name, strings.Join(command, ", "), env)
}

// TestServersFromNPM: code can call the tools of MCP servers from npm, with all their kinds of results.
func TestServersFromNPM(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		root := t.TempDir()
		must(t, os.WriteFile(filepath.Join(root, "a.txt"), []byte("in the root"), 0o600))
		outside := filepath.Join(t.TempDir(), "outside.txt")
		must(t, os.WriteFile(outside, []byte("outside of the root"), 0o600))
		must(t, os.Symlink(outside, filepath.Join(root, "link.txt")))
		d := newWatched(t, m,
			server(t, "everything", `TOKEN: "${SECRET}"`)+
				server(t, "filesystem", "", root)+
				server(t, "memory", fmt.Sprintf(`MEMORY_FILE_PATH: %s, TOKEN: "${SECRET}"`, filepath.Join(t.TempDir(), "memory.jsonl"))),
			"everything.*", "filesystem.*", "memory.*")

		if list := d.run(sandbox.ExecRequest{}, "tools", "ls"); !strings.Contains(list, "everything.get-sum(a, b)") ||
			!strings.Contains(list, "filesystem.read_text_file(") || !strings.Contains(list, "memory.read_graph(") {
			t.Errorf("it lists %s", list)
		}
		d.prints("The sum of 2 and 40 is 42.\n", `from workcell import tools; print(tools.everything.get_sum(a=2, b=40))`)
		d.prints("Echo: 1\n", `from workcell import tools; print(tools.call("everything.echo", {"message": "1"}))`)
		d.prints("['conditions', 'humidity', 'temperature']\n",
			`from workcell import tools; print(sorted(tools.everything.get_structured_content(location="New York")))`)
		d.prints("invalid_argument\ninvalid_argument\n", `
from workcell import tools, ToolError
for args in ({"a": "two", "b": 40}, {"a": 2}):
    try: tools.call("everything.get-sum", args)
    except ToolError as e: print(e.code)`)
		d.prints("True\n", `
from workcell import tools
files = []
tools.everything.get_tiny_image(_files=files)
print([f.kind for f in files] == ["image/png"] and files[0].load().startswith(b"\x89PNG"))`)
		d.prints("True True True\n", `
from workcell import tools
files = []
text = tools.everything.get_resource_reference(resourceType="Text", resourceId=1, _files=files)
blob = tools.everything.get_resource_reference(resourceType="Blob", resourceId=2, _files=files)
print("demo://resource/dynamic/text/1" in text and "This is a plaintext resource" in text, "This is a base64 blob" not in blob, [b"This is a base64 blob" in f.load() for f in files] == [True])`)
		d.prints("timeout\nTrue\n", `
from workcell import tools, ToolTimeout
try: tools.everything.trigger_long_running_operation(duration=60, steps=60, _timeout=1)
except ToolTimeout as e: print(e.code)
print("completed" in tools.everything.trigger_long_running_operation(duration=1, steps=5))`)

		// Paths are only data for Workcell. The server restricts them to the root.
		d.prints("in the root\nsaid\ntool_failed\ntool_failed\ntool_failed\n", fmt.Sprintf(`
from workcell import tools, ToolError
fs, root = tools.filesystem, %q
def text(r): return r["content"] if isinstance(r, dict) else r
print(text(fs.read_text_file(path=root + "/a.txt")))
fs.write_file(path=root + "/b.txt", content="said")
print(text(fs.read_text_file(path=root + "/b.txt")))
for path in (root + "/../" + %q.split("/")[-2] + "/outside.txt", %q, root + "/link.txt"):
    try: print(text(fs.read_text_file(path=path)))
    except ToolError as e: print(e.code)`, root, outside, outside))
		if raw, err := os.ReadFile(filepath.Join(root, "b.txt")); err != nil || string(raw) != "said" {
			t.Errorf("the server wrote %q, %v", raw, err)
		}

		// The server's state is available to the next command of the run.
		d.prints("1\n", `
from workcell import tools
print(len(tools.memory.create_entities(entities=[{"name": "Ada", "entityType": "person", "observations": ["counts"]}])["entities"]))`)
		d.prints("Ada\n", `from workcell import tools; print(tools.memory.read_graph()["entities"][0]["name"])`)

		// The server knows the secret, and this server reveals it to callers. It must not appear anywhere else in the
		// sandbox.
		res := d.python(sandbox.ExecRequest{}, `
import os, subprocess
from workcell import tools
got = str(tools.everything.get_env())
print(got.count("`+secret[:6]+`" + "`+secret[6:]+`"))
del got
print(subprocess.run("env; cat /proc/[0-9]*/environ 2>/dev/null; grep -r canary- /workspace /.workcell 2>/dev/null", shell=True, capture_output=True).stdout.decode(errors="replace"))`)
		out := string(res.Stdout.Bytes())
		if first, rest, _ := strings.Cut(out, "\n"); first != "1" || strings.Contains(rest, secret) {
			t.Errorf("the secret came inside, or the server has none: %s %s", out, res.Stderr.Bytes())
		}
		d.secretStays()
	})
}
