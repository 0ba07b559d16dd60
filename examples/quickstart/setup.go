package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/local"
)

// interruptible returns a context that Ctrl-C and SIGTERM cancel. genkit.Init catches both, so otherwise they would not
// stop the program.
func interruptible() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // until the program ends
	return ctx
}

// openEngine connects to Docker. If Docker is not available, it uses the local backend, which requires Linux.
func openEngine(ctx context.Context) backend.SandboxBackend {
	if engine, err := docker.New(ctx, &docker.Options{Host: os.Getenv("DOCKER_HOST")}); err == nil {
		fmt.Println("Using a Docker container as the sandbox.")
		return engine
	}
	fmt.Println("Docker is not available. Using the local backend, which isolates less than a container.")
	return must(local.New(ctx, nil))
}

// recorded is a model that needs no key. It makes one recorded tool call and returns the program's output.
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

// must panics on an error, so that deferred calls remove the sandbox.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
