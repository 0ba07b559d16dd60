// Command mockmodel serves scripted model answers over HTTP, with the APIs of Anthropic, OpenAI, Gemini, and Ollama,
// until it is interrupted. The first line of output is the server's address. A script has a list of answers, in JSON
// or YAML:
//
//	answers:
//	  - tools: [{name: orders_lookup, input: {id: "42"}}]
//	  - text: The order comes to 12.50.
//
// A conversation gets the first answer, then the next answer after each tool result. The last answer is repeated.
//
//	go run ./examples/mockmodel --listen 127.0.0.1:8899 --script model.yaml &
//	ANTHROPIC_BASE_URL=http://127.0.0.1:8899 ANTHROPIC_API_KEY=none workcell agent run fixer.prompt 'fix the tests'
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/llmtest"
)

// mockScript contains an answer for each turn of a conversation.
type mockScript struct {
	Answers []struct {
		Text  string `yaml:"text"`
		Tools []struct {
			Name  string         `yaml:"name"` // full name or suffix: orders_lookup matches mcp__workcell__orders_lookup
			Input llmtest.Object `yaml:"input"`
		} `yaml:"tools"`
	} `yaml:"answers"`
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "`ADDRESS` to listen on")
	script := flag.String("script", "", "`FILE` with the answers (default: always answer \"ok\")")
	flag.Parse()
	log.Fatal(serve(*listen, *script))
}

func serve(listen, script string) error {
	var s mockScript
	if script != "" {
		raw, err := os.ReadFile(script)
		if err != nil {
			return err
		}
		d := yaml.NewDecoder(strings.NewReader(string(raw)))
		d.KnownFields(true)
		if err := d.Decode(&s); err != nil {
			return fmt.Errorf("%s: %w", script, err)
		}
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", l.Addr())
	server := &http.Server{Handler: llmtest.New(s.answer), ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(l)
}

// answer returns the answer to a request.
func (s mockScript) answer(_ int, r llmtest.Request) llmtest.Answer {
	if len(s.Answers) == 0 {
		return llmtest.Answer{Text: "ok"}
	}
	turn := s.Answers[min(len(r.Results()), len(s.Answers)-1)]
	answer := llmtest.Answer{Text: turn.Text}
	for _, t := range turn.Tools {
		for name := range r.Tools() {
			if strings.HasSuffix(name, t.Name) {
				answer.Calls = append(answer.Calls, llmtest.Call{Name: name, Input: t.Input})
				break
			}
		}
	}
	if len(answer.Calls) == 0 && answer.Text == "" {
		answer.Text = "the tools in the script are not available"
	}
	return answer
}
