package tools_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// newExample returns a Genkit instance with the plugin on the local backend, which needs no engine. Its model makes the
// tool calls one after the other. At a nil call, or after all calls, the model answers with the output of the latest
// call. done removes everything.
func newExample(ctx context.Context, calls ...*ai.ToolRequest) (g *genkit.Genkit, plugin *tools.Plugin, done func(), err error) {
	dir, err := os.MkdirTemp("", "state-")
	if err != nil {
		return nil, nil, nil, err
	}
	b, err := local.New(ctx, &local.Options{StateDir: dir})
	if err != nil {
		return nil, nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	m, err := session.NewManager(b, nil)
	if err != nil {
		return nil, nil, nil, errors.Join(err, b.Close(), os.RemoveAll(dir))
	}
	genkitCtx, stop := context.WithCancel(ctx)
	plugin = &tools.Plugin{Manager: m}
	g = genkit.Init(genkitCtx, genkit.WithPlugins(plugin), genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	genkit.DefineModelAction(g, "example/model", &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, Tools: true, SystemRole: true}},
		func(_ context.Context, req *ai.ModelRequest, _ any, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			var message *ai.Message
			last := req.Messages[len(req.Messages)-1].Content[0]
			switch answers := last.IsToolResponse(); {
			case answers && (len(calls) == 0 || calls[0] == nil): // nil ends a conversation
				output, _ := last.ToolResponse.Output.(map[string]any)
				message, calls = ai.NewModelTextMessage(fmt.Sprint(output["stdout"])), calls[min(1, len(calls)):]
			default:
				message, calls = ai.NewModelMessage(ai.NewToolRequestPart(calls[0])), calls[1:]
			}
			return &ai.ModelResponse{Request: req, Message: message, FinishReason: ai.FinishReasonStop}, nil
		})
	return g, plugin, func() {
		stop()
		if err := errors.Join(m.Close(ctx), b.Close(), os.RemoveAll(dir)); err != nil {
			log.Print(err)
		}
	}, nil
}

// Agents are prompt files. The sandboxes of an agent are closed when the run ends.
func ExampleLoadAgentsFS() {
	ctx := context.Background()
	g, _, done, err := newExample(ctx,
		&ai.ToolRequest{Name: "sandbox_fs_write", Input: map[string]any{"path": "hello.sh", "contents": "echo Hello, $1!"}},
		&ai.ToolRequest{Name: "sandbox_exec", Input: map[string]any{"cmd": []string{"sh", "hello.sh", "world"}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer done()
	agents, err := tools.LoadAgentsFS(g, fstest.MapFS{"coder.prompt": {Data: []byte(`---
model: example/model
sandbox: {mode: code, runtime: bash, image: host}
---
{{task}}
`)}})
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := agents["coder"].Run(ctx, map[string]any{"task": "greet the world"}, nil)
	fmt.Printf("%s%d calls, %v\n", res.Text, res.ToolCalls, err)
	// Output:
	// Hello, world!
	// 2 calls, <nil>
}

// Bind a run to the context to keep a sandbox over several Generate calls.
func ExamplePlugin_Use_run() {
	ctx := context.Background()
	g, plugin, done, err := newExample(ctx,
		&ai.ToolRequest{Name: "sandbox_exec", Input: map[string]any{"command": "echo 42 >answer; echo written"}}, nil,
		&ai.ToolRequest{Name: "sandbox_exec", Input: map[string]any{"command": "cat answer"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer done()
	run := session.Run{Namespace: record.NamespaceUser, ID: "conversation-7"}
	ctx = session.WithRun(ctx, run)
	sandbox := tools.Sandbox{Mode: frontmatter.ModeCode, Runtime: frontmatter.RuntimeBash, Image: "host"}
	for _, prompt := range []string{"Write the answer to a file.", "What is in the file?"} {
		resp, err := genkit.Generate(ctx, g, ai.WithModelName("example/model"), ai.WithPrompt(prompt), ai.WithUse(plugin.Use(sandbox)))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%q\n", resp.Text())
	}
	fmt.Println("closed:", plugin.Manager.CloseScope(ctx, run.Scope()))
	// Output:
	// "written\n"
	// "42\n"
	// closed: <nil>
}
