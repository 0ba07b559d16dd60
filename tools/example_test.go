package tools_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// CheckPrompt reports all problems of an invalid prompt file.
func ExampleCheckPrompt() {
	_, err := tools.CheckPrompt("coder.prompt", []byte(`---
model: googleai/gemini-2.5-flash
sandbox:
  mode: code
  imagee: python:3.11-slim
  limits: {memory_mb: -1}
---
{{task}}
`))
	fmt.Println(err)
	// Output:
	// coder.prompt:5:3: unknown key "imagee" in sandbox; did you mean "image"?
	// coder.prompt:6:23: limits.memory_mb must be 16 to 4194304, not -1
}

// PromptFS rewrites a prompt file to the form Genkit supports.
func ExamplePromptFS() {
	files := fstest.MapFS{"coder.prompt": {Data: []byte("---\nsandbox: python\n---\n{{task}}\n")}}
	src, err := fs.ReadFile(tools.PromptFS(files), "coder.prompt")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", src)
	// Output:
	// ---
	// maxTurns: 40
	// use: [{"config":{"runtime":"python"},"name":"workcell/sandbox"}]
	// ---
	// {{task}}
}

// Agents are prompt files in a directory. The sandboxes of an agent are closed when the run ends.
func ExampleLoadAgents() {
	ctx := context.Background()
	engine, err := docker.New(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	manager, err := session.NewManager(engine, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close(ctx)
	g := genkit.Init(ctx, genkit.WithPlugins(&tools.Plugin{Manager: manager} /* and a model's plugin */))

	agents, err := tools.LoadAgents(g, "agents")
	if err != nil {
		log.Fatal(err)
	}
	res, err := agents["coder"].Run(ctx, map[string]any{"task": "print the first ten primes"}, nil)
	if errors.Is(err, ai.ErrMaxTurnsExceeded) {
		log.Fatal("it took too long: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Text)
}

// In Go code, pass the middleware to a Generate call.
func ExamplePlugin_Use() {
	var (
		ctx    context.Context
		g      *genkit.Genkit
		plugin *tools.Plugin
	)
	resp, err := genkit.Generate(ctx, g,
		ai.WithModelName("googleai/gemini-2.5-flash"),
		ai.WithPrompt("How many primes are there below 10,000? Compute it."),
		ai.WithMaxTurns(10),
		ai.WithUse(plugin.Use(tools.Sandbox{Mode: frontmatter.ModeCompute, Runtime: frontmatter.RuntimePython})),
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(resp.Text())
}
