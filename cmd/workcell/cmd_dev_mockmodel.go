package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/llmmock"
)

// mockScript is the file of `dev mockmodel`: an answer for each turn of a conversation, the last for all further ones.
type mockScript struct {
	Answers []struct {
		Text  string `yaml:"text"`
		Tools []struct {
			Name  string         `yaml:"name"` // as it is offered, or its end: "orders_lookup" is "mcp__workcell__orders_lookup", too
			Input llmmock.Object `yaml:"input"`
		} `yaml:"tools"`
	} `yaml:"answers"`
}

func newMockModelCmd(a *app) *cobra.Command {
	listen, script := "127.0.0.1:0", ""
	cmd := a.verb(0, &cobra.Command{
		Use: "mockmodel", Short: "Serve scripted model answers to coding agents", Args: cobra.NoArgs,
		Long: `Serve scripted model answers over HTTP until you interrupt the command, with the APIs of Anthropic, OpenAI,
Gemini, and Ollama. The first line of output is the server's address. A script has a list of answers:

  answers:
    - tools: [{name: orders_lookup, input: {id: "42"}}]
    - text: The order comes to 12.50.

A conversation gets the first answer, then the next answer after each tool result. The last answer is repeated.`,
		Example: `  workcell dev mockmodel --listen 127.0.0.1:8899 --script model.yaml &
  ANTHROPIC_BASE_URL=http://127.0.0.1:8899 ANTHROPIC_API_KEY=none workcell agent run fixer.prompt 'fix the tests'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serveMockModel(cmd.Context(), listen, script) },
	})
	cmd.Flags().StringVar(&listen, "listen", listen, "`ADDRESS` to listen on")
	cmd.Flags().StringVar(&script, "script", "", "`FILE` with the answers (default: always answer \"ok\")")
	return cmd
}

func (a *app) serveMockModel(ctx context.Context, listen, script string) error {
	var s mockScript
	if script != "" {
		raw, err := os.ReadFile(script)
		if err != nil {
			return fail(exitInvalid, err, "")
		}
		d := yaml.NewDecoder(strings.NewReader(string(raw)))
		d.KnownFields(true)
		if err := d.Decode(&s); err != nil {
			return fail(exitInvalid, fmt.Errorf("%s: %w", script, err), "")
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return fail(exitUnavailable, err, "")
	}
	server := &http.Server{Handler: llmmock.New(s.answer), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	fmt.Fprintf(a.stdout, "http://%s\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// answer returns the answer to a request.
func (s mockScript) answer(_ int, r llmmock.Request) llmmock.Answer {
	if len(s.Answers) == 0 {
		return llmmock.Answer{Text: "ok"}
	}
	turn := s.Answers[min(len(r.Results()), len(s.Answers)-1)]
	answer := llmmock.Answer{Text: turn.Text}
	for _, t := range turn.Tools {
		for name := range r.Tools() {
			if strings.HasSuffix(name, t.Name) {
				answer.Calls = append(answer.Calls, llmmock.Call{Name: name, Input: t.Input})
				break
			}
		}
	}
	if len(answer.Calls) == 0 && answer.Text == "" {
		answer.Text = "the tools in the script are not available"
	}
	return answer
}
