package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/tools"
)

type obj = map[string]any

// TestAgent verifies the allowed hosts in an agent's file. The model gets the list of hosts, and the reason why a
// program could not connect to another host. Attempts are in the audit log, and in the trace below the command.
func TestAgent(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d := newDesk(t, engine, egress.Limits{})
		port := server(t, says("hello from outside"))
		commands := []string{"curl -sS http://good.test:" + port, "curl -sS --fail http://evil.test:" + port + "/secret-path"}
		file := fmt.Sprintf("---\nmodel: test/m\nsandbox: {runtime: bash, image: %q, network: {allow: ['good.test:%s']}}\n---\nGo on.\n", d.netImage(), port)
		m := d.agents(map[string]string{"a": file}, commands...)
		trail := filepath.Join(t.TempDir(), "audit")
		record, err := audit.Open(trail, audit.Options{})
		must(t, err)
		_, err = m.agents["a"].Run(audit.NewContext(t.Context(), record), nil, nil)
		must(t, errors.Join(err, record.Close()))
		if !strings.Contains(m.offered, "Network access is limited to these hosts") || !strings.Contains(m.offered, "good.test:"+port) {
			t.Errorf("the model is offered %s", m.offered)
		}
		if out := m.outputs[0]["stdout"]; out != "hello from outside" || m.outputs[0]["network_refused"] != nil {
			t.Errorf("%v", m.outputs[0])
		}
		text, err := json.Marshal(m.outputs[1]["network_refused"])
		must(t, err)
		want := `[{"hint":"The sandbox can reach only the hosts in network.allow. Continue without this host, or report which host is needed and why.","host":"evil.test:` + port + `","rule":"network.allow does not name it"}]`
		if string(text) != want {
			t.Errorf("refused %s, want %s", text, want)
		}
		d.recorded(trail, []string{"good.test:" + port + " allowed", "evil.test:" + port + " refused"})
		d.traced(len(commands))
	})
}

// scripted are agents with a model that calls sandbox_run with each of several programs, and then answers.
type scripted struct {
	agents  map[string]*tools.Agent
	offered string // description of the tool
	outputs []obj  // outputs of the calls
}

// agents loads agents from their files, by name.
func (d *desk) agents(files map[string]string, programs ...string) *scripted {
	d.t.Helper()
	m := &scripted{}
	g := genkit.Init(d.t.Context(), genkit.WithPlugins(&tools.Plugin{Manager: d.m}),
		genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	supports := &ai.ModelSupports{Multiturn: true, Tools: true, SystemRole: true}
	genkit.DefineModelAction(g, "test/m", &ai.ModelOptions{Supports: supports},
		func(_ context.Context, req *ai.ModelRequest, _ obj, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			m.offered = req.Tools[0].Description
			var answers []obj
			for _, message := range req.Messages {
				if part := message.Content[0]; part.ToolResponse != nil {
					answers = append(answers, part.ToolResponse.Output.(obj))
				}
			}
			message := ai.NewModelTextMessage("done")
			if n := len(answers); n > 0 {
				m.outputs = append(m.outputs, answers[n-1])
			}
			if n := len(answers); n < len(programs) {
				call := &ai.ToolRequest{Name: "sandbox_run", Input: obj{"code": programs[n]}}
				message = ai.NewModelMessage(ai.NewToolRequestPart(call))
			}
			return &ai.ModelResponse{Request: req, Message: message, FinishReason: ai.FinishReasonStop}, nil
		})
	prompts := fstest.MapFS{}
	for name, text := range files {
		prompts[name+".prompt"] = &fstest.MapFile{Data: []byte(text)}
	}
	var err error
	m.agents, err = tools.LoadAgentsFS(g, prompts)
	must(d.t, err)
	return m
}

// recorded verifies the entries for hosts in an audit log.
func (d *desk) recorded(file string, want []string) {
	d.t.Helper()
	text, err := os.ReadFile(file)
	must(d.t, err)
	var got []string
	for line := range strings.Lines(string(text)) {
		var r audit.Record
		must(d.t, json.Unmarshal([]byte(line), &r))
		if r.Event == audit.EventEgress {
			got = append(got, r.Host+" "+r.Decision)
			if r.Agent != "a" || r.Sandbox == "" || r.Run == "" || r.Rule == "" {
				d.t.Errorf("%s", line)
			}
		}
	}
	if !slices.Equal(got, want) {
		d.t.Errorf("on record %q, want %q", got, want)
	}
}

// traced verifies that the spans of n connections are below spans of commands.
func (d *desk) traced(n int) {
	d.t.Helper()
	spans := d.ended(n)
	for _, span := range spans {
		if span.Name != "egress.Connect" {
			continue
		}
		n--
		if i := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.SpanContext.Equal(span.Parent) }); i < 0 || spans[i].Name != "session.Exec" {
			d.t.Errorf("%s is not below a command", span.Name)
		}
	}
	if n != 0 {
		d.t.Errorf("%d spans of connections too few", n)
	}
}
