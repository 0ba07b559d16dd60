package main

import (
	"context"
	"fmt"
	"os"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/local"
)

// openEngine opens Docker or, if Docker does not answer, the local backend. That needs Linux.
func openEngine(ctx context.Context) backend.SandboxBackend {
	if engine, err := docker.New(ctx, &docker.Options{Host: os.Getenv("DOCKER_HOST")}); err == nil {
		fmt.Println("The sandbox is a container of Docker.")
		return engine
	}
	fmt.Println("Docker does not answer. The sandbox has the programs of this machine, and isolates less than a container.")
	return must(local.New(ctx, nil))
}

// recorded is a model that needs no key. It plays one recorded tool call, and its answer is the output of the real program.
const recorded = "recorded/primes"

const program = "print(sum(all(n % d for d in range(2, int(n**.5) + 1)) for n in range(2, 10000)), 'primes are below 10,000')"

func defineRecorded(g *genkit.Genkit) {
	genkit.DefineModelAction(g, recorded, &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, Tools: true}},
		func(_ context.Context, req *ai.ModelRequest, _ map[string]any, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			part := ai.NewToolRequestPart(&ai.ToolRequest{Name: "sandbox_run", Input: map[string]any{"code": program}})
			if last := req.Messages[len(req.Messages)-1].Content[0]; last.IsToolResponse() {
				output, _ := last.ToolResponse.Output.(map[string]any)
				part = ai.NewTextPart(fmt.Sprint(output["stdout"], output["stderr"]))
			}
			return &ai.ModelResponse{Request: req, Message: ai.NewModelMessage(part)}, nil
		})
}

// must panics, so that deferred calls remove the sandbox.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
