package workflow_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// The steps of a workflow run agents of package tools. The example defines its own model.
func ExampleAgents() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	g := genkit.Init(ctx) // no agent of this workflow has a sandbox
	genkit.DefineModelAction(g, "example/echo", nil,
		func(_ context.Context, req *ai.ModelRequest, _ any, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			return &ai.ModelResponse{Request: req, Message: ai.NewModelTextMessage(req.Messages[0].Text())}, nil
		})
	dir, err := os.MkdirTemp("", "agents")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const greeter = "---\nmodel: example/echo\ninput: {schema: {name: string}}\n---\nHello, {{name}}!"
	if err := os.WriteFile(filepath.Join(dir, "greeter.prompt"), []byte(greeter), 0o600); err != nil {
		log.Fatal(err)
	}
	loaded, err := tools.LoadAgents(g, dir)
	if err != nil {
		log.Fatal(err)
	}
	agents := workflow.Agents(loaded)
	wf, err := workflow.Parse("greet.yaml", []byte(`
id: greet
steps:
  - {id: greet, type: agent, agent: greeter, input: {name: "${ input.who }"}}
  - {id: done, type: end, output: "${ steps.greet.output }"}
`), &workflow.LoadOptions{Agents: agents.File})
	if err != nil {
		log.Fatal(err)
	}
	result, err := workflow.NewEngine(nil, agents, nil).Run(ctx, wf, map[string]any{"who": "world"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Output)
	_, err = agents.File("greter")
	fmt.Println(err)
	// Output:
	// Hello, world!
	// unknown agent "greter", available: greeter
}
