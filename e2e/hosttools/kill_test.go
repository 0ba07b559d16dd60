package hosttools

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	shared "github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/commandtest"
)

// ledgerVariable makes this binary an MCP server. The value is the file of the ledger.
const ledgerVariable = "HOSTTOOLS_TEST_LEDGER"

// ledgerServer is an MCP server with a tool that records each call. The first call is never answered.
func ledgerServer() int {
	type none struct{}
	server := mcp.NewServer(&mcp.Implementation{Name: "ledger", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, any, error) {
		file, err := os.OpenFile(os.Getenv(ledgerVariable), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
		if err != nil {
			return nil, nil, err
		}
		defer file.Close() // a test's file
		if _, err := file.WriteString("charged\n"); err != nil {
			return nil, nil, err
		}
		if info, err := file.Stat(); err != nil || info.Size() == int64(len("charged\n")) {
			<-ctx.Done()
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "charged"}}}, nil, nil
	})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// machine is a user's host with the command, an engine, and an agent whose program calls a tool.
type machine struct {
	shared.Host
	t *testing.T
}

// newMachine builds the command and writes the files of a run.
func newMachine(t *testing.T, binary, engine string) *machine {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	m := &machine{shared.Host{Binary: binary, State: filepath.Join(t.TempDir(), "state")}, t}
	m.Env = []string{"WORKCELL_BACKEND=" + engine, "WORKCELL_REAPER=off", "WORKCELL_HOST_TOOLS=" + m.Path("host-tools.yaml")}
	for name, text := range map[string]string{
		"flow.yaml":       "id: flow\nsandbox: {image: " + pythonImage + "}\nsteps: [{id: work, type: agent, agent: worker}]\n",
		"worker.prompt":   "---\nsandbox: {mode: script, host_tools: {allow: [ledger.charge]}}\n---\nWork.\n",
		"host-tools.yaml": fmt.Sprintf("servers:\n  ledger:\n    command: [%q]\n    env: {%s: %q}\n", self, ledgerVariable, m.Path("ledger")),
		"script.yaml": `agents:
  worker:
    - - tool: sandbox_run
        input:
          code: |
            from workcell import tools
            import os, socket, threading, time
            def watch():
                s = socket.socket(socket.AF_UNIX); s.connect("\0" + os.environ["WORKCELL_TOOLS"][1:])
                while s.recv(100): pass
                open("eof", "w").close()
            again = os.path.exists("pid")
            if again: print("before me", open("pid").read(), os.path.exists("/proc/" + open("pid").read()), os.path.exists("eof"))
            else:
                with open("pid", "w") as f: f.write(str(os.getpid()))
                threading.Thread(target=watch, daemon=True).start()
            try: print(tools.ledger.charge())
            finally:
                if not again: time.sleep(1000)
      - {text: "${ last.stdout }"}
`,
	} {
		must(t, os.WriteFile(m.Path(name), []byte(text), 0o600))
	}
	t.Cleanup(func() { m.Run(t, "sandbox", "rm", "--all") }) // cleanup after a failed test
	return m
}

// inSandbox runs a command in the only sandbox, in addition to the owner's commands.
func (m *machine) inSandbox(argv ...string) (string, error) {
	var list []struct{ ID string }
	m.Read(m.t, &list, "sandbox", "ls")
	if len(list) != 1 {
		return "", fmt.Errorf("%d sandboxes", len(list))
	}
	return shared.Output(m.Command(append([]string{"sandbox", "exec", "-n", list[0].ID, "--"}, argv...)...))
}

// charged returns the number of calls of the tool.
func (m *machine) charged() int {
	ledger, _ := os.ReadFile(m.Path("ledger")) // the file exists after the first call
	return strings.Count(string(ledger), "charged")
}

// recorded returns the decisions about calls of the tool in the audit log.
func (m *machine) recorded() (decisions []string) {
	file, err := os.Open(m.Path("audit"))
	must(m.t, err)
	defer file.Close() // opened for reading only
	for s := bufio.NewScanner(file); s.Scan(); {
		var r audit.Record
		must(m.t, json.Unmarshal(s.Bytes(), &r))
		if r.Tool == "ledger.charge" {
			decisions = append(decisions, r.Decision)
		}
	}
	return decisions
}

// TestKilledRun kills a run while the agent's code calls a tool. Another command in the sandbox has no tools. The code
// detects the end of the connection and is killed when the run is resumed. Then the program runs again, and the audit
// log contains the calls of both.
func TestKilledRun(t *testing.T) {
	binary, err := commandtest.Build(t.TempDir())
	must(t, err)
	for _, engine := range enginetest.Names() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, binary, engine)
			p := m.Start(t, "run", m.Path("flow.yaml"), "--model", "scripted/"+m.Path("script.yaml"), "--audit", m.Path("audit"))
			eventually(t, "the tool is called", func() bool { return m.charged() == 1 })
			beside, err := m.inSandbox("python3", "-c", `
import os, socket
s = socket.socket(socket.AF_UNIX); s.connect("\0workcell-tools")
try:
    s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    print(s.recv(100), os.environ.get("WORKCELL_TOOLS"))
except OSError: print(b"", os.environ.get("WORKCELL_TOOLS"))`)
			if must(t, err); beside != "b'' None\n" {
				t.Errorf("a process that the run did not start: %q", beside)
			}
			p.Kill()
			var runs []struct{ ID, State string }
			m.Read(m.t, &runs, "runs", "ls")
			if len(runs) != 1 || runs[0].State != "interrupted" {
				t.Fatalf("runs: %+v", runs)
			}
			eventually(t, "the program reads the end of its connection", func() bool {
				_, err := m.inSandbox("sh", "-c", "test -e eof && kill -0 $(cat pid)")
				return err == nil
			})
			resumed := m.OK(t, "runs", "resume", runs[0].ID, "-o", "json")
			if !regexp.MustCompile(`before me [0-9]+ False True\\ncharged\\n`).MatchString(resumed) || m.charged() != 2 {
				t.Errorf("%d calls, the resumed run says %s", m.charged(), resumed)
			}
			if got := fmt.Sprint(m.recorded()); got != "[allowed allowed]" {
				t.Errorf("on record: %s", got)
			}
			var sandboxes []struct{ ID string }
			if m.Read(m.t, &sandboxes, "sandbox", "ls"); len(sandboxes) != 0 {
				t.Errorf("left: %+v", sandboxes)
			}
		})
	}
}
