package hosttools

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
	"github.com/workcell-dev/workcell/gateway/hosttools/serverfile"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/session"
)

// bombVariable makes this binary an MCP server whose tools have schemas that do harm; it is the address of another document.
const bombVariable = "HOSTTOOLS_TEST_BOMBS"

// bombs are the schemas, by the names of their tools.
func bombs(remote string) map[string]string {
	return map[string]string{
		"good":   `{"type":"object","properties":{"word":{"type":"string","pattern":"^(x+x+)+$"}}}`,
		"cycle":  `{"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}}}`,
		"deep":   strings.Repeat(`{"type":"object","properties":{"a":`, 1e5) + "{}" + strings.Repeat("}}", 1e5),
		"huge":   `{"type":"object","description":"` + strings.Repeat("x", 100<<20) + `"}`,
		"regex":  `{"type":"object","properties":{"a":{"type":"string","pattern":"(((a{100}){100}){100}){100}"}}}`,
		"remote": `{"type":"object","properties":{"a":{"$ref":"` + remote + `"}}}`,
		"wide":   `{"type":"object","enum":[` + strings.Repeat("1,", 5000) + `1]}`,
		"double": doubling(),
	}
}

// doubling is a small schema that stands for 2^40 others.
func doubling() string {
	var defs []string
	for i := range 40 {
		defs = append(defs, fmt.Sprintf(`"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, i+1, i+1))
	}
	return `{"type":"object","properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{` + strings.Join(defs, ",") + `,"d40":{}}}`
}

// bombServer speaks MCP by itself: a library would not let it.
func bombServer() int {
	in, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	in.Buffer(nil, 1<<20)
	schemas := bombs(os.Getenv(bombVariable))
	for in.Scan() {
		var req struct {
			ID     json.RawMessage
			Method string
			Params struct{ ProtocolVersion string }
		}
		if err := json.Unmarshal(in.Bytes(), &req); err != nil {
			return 1
		}
		if req.ID == nil {
			continue
		}
		answer := `"error":{"code":-32601,"message":"there is no such method"}`
		switch req.Method {
		case "initialize":
			answer = fmt.Sprintf(`"result":{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"bombs","version":"1"}}`, req.Params.ProtocolVersion)
		case "tools/list":
			var list []string
			for name, schema := range schemas {
				list = append(list, fmt.Sprintf(`{"name":%q,"inputSchema":%s}`, name, schema))
			}
			answer = `"result":{"tools":[` + strings.Join(list, ",") + `]}`
		case "tools/call":
			answer = `"result":{"content":[{"type":"text","text":"still here"}]}`
		}
		fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,%s}`+"\n", req.ID, answer)
		if out.Flush() != nil {
			return 1
		}
	}
	return 0
}

// Tools with schemas that do harm are left out, which is said, and those beside them work. Of a cycle only the cycle is cut.
func TestSchemaBombs(t *testing.T) {
	var fetched atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Add(1) }))
	t.Cleanup(web.Close)
	self, err := os.Executable()
	must(t, err)
	on(t, func(t *testing.T, m *session.Manager) {
		log := &buffertest.Buffer{}
		source := mcpsource.New(serverfile.Server{
			Name: "bombs", Command: []string{self}, Timeout: patience,
			Env: map[string]serverfile.Secret{bombVariable: serverfile.NewSecret(web.URL)},
		}, &mcpsource.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
		began := time.Now()
		_, err := source.Tools(t.Context())
		must(t, err)
		if took := time.Since(began); took > patience { // about a second on a machine that does nothing else, of which the server needs some
			t.Errorf("it took %v to list the tools", took)
		}
		r := newRig(t, m, source, orders(nil))
		outputs := r.run(t.Context(), "desk", script("['bombs.*', orders.lookup]"), `
from workcell import tools, ToolError
print(tools.bombs.good(word="x" * 100000), tools.orders.lookup(id="1")["total"], tools.bombs.cycle(x={"a": [1]}))
try: tools.bombs.good(word="x" * 100000 + "y")
except ToolError as e: print(e.code)
for name in ("deep", "huge", "regex", "remote", "wide", "double"):
    try: tools.call("bombs." + name)
    except ToolError as e: print(e.code)`)
		if want := "still here 12.5 still here\ninvalid_argument\n" + strings.Repeat("not_found\n", 6); len(outputs) != 1 || outputs[0]["stdout"] != want {
			t.Errorf("%v, want %q", outputs, want)
		}
		for _, name := range []string{"deep", "huge", "regex", "remote", "wide", "double"} {
			if !slices.ContainsFunc(strings.Split(log.String()+r.log.String(), "\n"), func(line string) bool {
				return strings.Contains(line, "is left out") && strings.Contains(line, "tool="+name)
			}) {
				t.Errorf("nothing says that %s is left out: %s", name, log.String()+r.log.String())
			}
		}
		if n := fetched.Load(); n != 0 {
			t.Errorf("%d requests for what a schema refers to", n)
		}
	})
}
