package tools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/porttest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// TestDevUI verifies that Genkit's reflection server answers the requests of the Dev UI. It requests lists and runs a
// tool in a real sandbox.
func TestDevUI(t *testing.T) {
	t.Chdir(t.TempDir()) // the server leaves a file in the directory
	ports, err := porttest.Loopback(1)
	checktest.Must(t, err)
	address := "127.0.0.1:" + ports[0]
	t.Setenv("GENKIT_ENV", "dev")
	t.Setenv("GENKIT_REFLECTION_PORT", ports[0])

	b, err := local.New(t.Context(), &local.Options{StateDir: filepath.Join(t.TempDir(), "state")})
	checktest.Must(t, err)
	defer b.Close()
	m, err := session.NewManager(b, nil)
	checktest.Must(t, err)
	defer m.Close(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	prompts := tools.PromptFS(fstest.MapFS{"loaded.prompt": {Data: []byte("---\ndescription: Loaded by Genkit.\nsandbox: python\n---\nx")}})
	g := genkit.Init(ctx, genkit.WithPlugins(&tools.Plugin{Manager: m}), genkit.WithPromptFS(prompts), genkit.WithPromptDir("."))
	defer func() { // the server removes the file when it ends
		cancel()
		eventually(t, "the reflection server ends", func() bool {
			left, _ := filepath.Glob(filepath.Join(".genkit", "runtimes", "*"))
			_, err := net.Dial("tcp", address)
			return err != nil && len(left) == 0
		})
	}()
	file := filepath.Join(t.TempDir(), "agent.prompt")
	checktest.Must(t, os.WriteFile(file, []byte("---\ndescription: Loaded as an agent.\nsandbox: {mode: code}\n---\nx"), 0o600))
	if _, err := tools.LoadAgent(g, file); err != nil {
		t.Fatal(err)
	}
	ui := devUI{t, "http://" + address}

	actions := ui.get("/api/actions")
	for key, want := range map[string]string{"/executable-prompt/loaded": "Loaded by Genkit.", "/executable-prompt/agent": "Loaded as an agent."} {
		if got := str(sub(sub(sub(actions[key])["metadata"])["prompt"])["description"]); got != want {
			t.Errorf("%s: description %q, want %q", key, got, want)
		}
	}
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		for _, tool := range tools.ToolsOf(mode) {
			desc := sub(actions["/tool.v2/workcell/"+tool.Name()])
			if str(desc["description"]) == "" || sub(desc["inputSchema"])["properties"] == nil || desc["name"] != "workcell/"+tool.Name() {
				t.Errorf("%s in the Dev UI: %v", tool.Name(), desc)
			}
			if genkit.LookupTool(g, tool.Name()) != nil {
				t.Errorf("%s is registered under the name that models call", tool.Name())
			}
		}
	}
	middleware := sub(ui.get("/api/values?type=middleware")[frontmatter.Middleware])
	if str(middleware["description"]) == "" {
		t.Errorf("the middleware: %v", middleware)
	}
	undescribed(t, "workcell/sandbox", sub(middleware["configSchema"]))

	first := ui.run("sandbox_fs_write", obj{"path": "a.txt", "contents": "from the Dev UI\n"})
	if first["ok"] != true {
		t.Fatalf("write: %v", first)
	}
	if out := ui.run("sandbox_exec", obj{"command": "cat a.txt; pwd"}); out["stdout"] != "from the Dev UI\n/workspace\n" {
		t.Errorf("exec: %v", out)
	}
	if out := ui.run("sandbox_exec", obj{"cmdd": "x"}); code(out) != "invalid_argument" {
		t.Errorf("a mistake: %v", out)
	}
	if out := ui.run("sandbox_close", obj{"delete_workspace": true}); out["ok"] != true {
		t.Errorf("close: %v", out)
	}
}

// TestNoToolsOutsideOfTheDevUI verifies that the Dev UI's tools are not registered outside of development mode.
func TestNoToolsOutsideOfTheDevUI(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, action := range genkit.ListTools(r.g) {
		t.Errorf("the tool %s is registered", action.Name())
	}
}

// devUI is a client of the reflection server.
type devUI struct {
	t   *testing.T
	url string
}

func (u devUI) get(path string) obj {
	u.t.Helper()
	resp, err := http.Get(u.url + path)
	checktest.Must(u.t, err)
	return u.decode(resp)
}

// run runs a tool and returns the output.
func (u devUI) run(tool string, input obj) obj {
	u.t.Helper()
	body := text(obj{"key": "/tool.v2/workcell/" + tool, "input": input})
	resp, err := http.Post(u.url+"/api/runAction", "application/json", strings.NewReader(body))
	checktest.Must(u.t, err)
	answer := u.decode(resp)
	output := sub(sub(answer["result"])["output"])
	if output == nil {
		u.t.Fatalf("%s: %v", tool, answer)
	}
	return output
}

func (u devUI) decode(resp *http.Response) obj {
	u.t.Helper()
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	checktest.Must(u.t, err)
	var v obj
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&v); err != nil {
		u.t.Fatalf("%s: %v", raw, err)
	}
	return v
}
