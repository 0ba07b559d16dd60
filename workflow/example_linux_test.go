package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

// The steps of a run share a sandbox, which is removed when the run ends. Commands need no model.
func ExampleEngine_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dir, err := os.MkdirTemp("", "state-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	b, err := local.New(ctx, &local.Options{StateDir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	manager, err := session.NewManager(b, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		if err := errors.Join(manager.Close(context.Background()), b.Close()); err != nil {
			log.Print(err)
		}
	}()
	genkit.Init(ctx)
	wf, err := workflow.Parse("count.yaml", []byte(`
id: count
sandbox: {image: host}
steps:
  - {id: write, type: exec, command: "seq ${ input.upto } >numbers"}
  - {id: add, type: exec, command: "paste -sd+ numbers | tr -d '\\n'"}
  - {id: done, type: end, output: "${ steps.add.output.stdout }"}
`), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := workflow.NewEngine(manager, nil, nil).Run(ctx, wf, map[string]any{"upto": 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(result.Outcome, result.Output)
	// Output: succeeded 1+2+3+4
}
