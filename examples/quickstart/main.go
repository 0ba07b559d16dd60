// Command quickstart lets a model run code in a sandbox. It uses Gemini if GEMINI_API_KEY is set, or else a recorded
// model.
package main

import (
	"fmt"
	"os"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"
	"github.com/firebase/genkit/go/plugins/googlegenai"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

func main() {
	ctx := interruptible()
	engine := openEngine(ctx)
	defer engine.Close()
	manager := must(session.NewManager(engine, nil))
	defer manager.Close(ctx) // removes its sandboxes
	sandboxes := &tools.Plugin{Manager: manager}

	plugins, model := []api.Plugin{sandboxes}, recorded
	if os.Getenv("GEMINI_API_KEY")+os.Getenv("GOOGLE_API_KEY") != "" {
		plugins, model = append(plugins, &googlegenai.GoogleAI{}), "googleai/gemini-2.5-flash"
	}
	g := genkit.Init(ctx, genkit.WithPlugins(plugins...))
	defineRecorded(g)
	answer := must(genkit.GenerateText(ctx, g,
		ai.WithModelName(model),
		ai.WithPrompt("How many primes are below 10,000? Run a program to find out."),
		ai.WithUse(sandboxes.Use(tools.Sandbox{Runtime: frontmatter.RuntimePython})),
	))
	fmt.Println(answer)
}
