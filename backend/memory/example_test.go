package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// newExample returns a backend without sandboxes and a manager for it. done closes both.
func newExample() (b *memory.Backend, m *session.Manager, done func()) {
	b, err := memory.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	if m, err = session.NewManager(b, nil); err != nil {
		log.Fatal(err)
	}
	return b, m, func() {
		if err := errors.Join(m.Close(context.Background()), b.Close()); err != nil {
			log.Print(err)
		}
	}
}

// The backend stores files, answers commands, and records calls for later checks.
func Example() {
	b, m, done := newExample()
	defer done()
	b.On("go test ./...", memory.Answer{Stdout: "FAIL\n", ExitCode: 1, Files: map[string]string{"report.txt": "1 failed\n"}})

	ctx := context.Background()
	s, _, err := m.Open(ctx, session.UserKey("example"), session.Request{Image: "golang:1"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := s.WriteFile(ctx, "main.go", strings.NewReader("package main\n"), sandbox.WriteFileOptions{}); err != nil {
		log.Fatal(err)
	}
	res, err := s.Exec(ctx, sandbox.ExecRequest{Command: "go test ./..."})
	if err != nil {
		log.Fatal(err)
	}
	var report strings.Builder
	if _, err := s.ReadFile(ctx, "report.txt", &report, sandbox.ReadFileOptions{}); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("exit code %d, %s", res.ExitCode, report.String())
	for _, c := range b.Calls() {
		switch c.Op {
		case memory.OpPut, memory.OpRead:
			fmt.Println(c.Op, c.Path)
		case memory.OpExec:
			fmt.Println(c.Op, c.Command.Line())
		}
	}
	// Output:
	// exit code 1, 1 failed
	// Put main.go
	// Exec go test ./...
	// Read report.txt
}

// A mock model calls a tool and answers with the tool's result.
func Example_tools() {
	b, m, done := newExample()
	defer done()
	b.OnPrefix("git log", memory.Answer{Stdout: "3f2a1c first commit\n"})

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	g := genkit.Init(ctx, genkit.WithPlugins(&tools.Plugin{Manager: m}), genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	genkit.DefineModelAction(g, "example/model", &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, Tools: true, SystemRole: true}},
		func(_ context.Context, req *ai.ModelRequest, _ any, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			message := ai.NewModelMessage(ai.NewToolRequestPart(&ai.ToolRequest{Name: "sandbox_exec", Input: map[string]any{"command": "git log --oneline"}}))
			if last := req.Messages[len(req.Messages)-1].Content[0]; last.IsToolResponse() {
				output, _ := last.ToolResponse.Output.(map[string]any)
				message = ai.NewModelTextMessage(fmt.Sprint("The history: ", output["stdout"]))
			}
			return &ai.ModelResponse{Request: req, Message: message, FinishReason: ai.FinishReasonStop}, nil
		})
	agents, err := tools.LoadAgentsFS(g, fstest.MapFS{"historian.prompt": {Data: []byte(`---
model: example/model
sandbox: {mode: code, runtime: bash, image: debian}
---
{{task}}
`)}})
	if err != nil {
		log.Fatal(err)
	}
	res, err := agents["historian"].Run(ctx, map[string]any{"task": "What happened?"}, nil)
	fmt.Print(res.Text, err, "\n", b.Commands(), "\n")
	// Output:
	// The history: 3f2a1c first commit
	// <nil>
	// [git log --oneline]
}

// The steps of a workflow share a sandbox.
func Example_workflow() {
	b, m, done := newExample()
	defer done()
	b.On("make", memory.Answer{Files: map[string]string{"out/version": "1.4"}})
	b.Script(func(c memory.Command) (memory.Answer, bool) {
		version, ok := c.File("out/version")
		return memory.Answer{Stdout: version}, ok && c.Line() == "cat out/version"
	})

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	genkit.Init(ctx)
	wf, err := workflow.Parse("build.yaml", []byte(`
id: build
sandbox: {image: golang}
steps:
  - {id: build, type: exec, command: make}
  - {id: version, type: exec, command: cat out/version}
  - {id: done, type: end, output: "${ steps.version.output.stdout }"}
`), nil)
	if err != nil {
		log.Fatal(err)
	}
	result, err := workflow.NewEngine(m, nil, nil).Run(ctx, wf, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Outcome, result.Output, b.Commands())
	// Output: succeeded 1.4 [make cat out/version]
}
