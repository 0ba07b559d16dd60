package runcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/runtrace"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// Output formats of `runs trace`.
const (
	traceText = "text"
	traceSVG  = "svg"
	traceJSON = "json"
)

func newRunsTraceCmd(a *command) *cobra.Command {
	out, all := traceText, false
	cmd := &cobra.Command{
		Use:   "trace [RUN]",
		Short: "Show the trace of a run",
		Long: `Show the trace of a workflow or agent run: its agents, model calls, tool calls, and sandbox commands, with
their start times and durations. Without RUN, the command shows the latest trace. Traces are kept with the run, even
if they are not exported. For runs of a worker (--detach), they are only exported.

With -o json, you can send the spans to an OpenTelemetry collector:

  workcell runs trace RUN -o json | curl -H 'Content-Type: application/json' -d @- http://localhost:4318/v1/traces`,
		Example: "  workcell runs trace run_…\n  workcell runs trace run_… -o svg > trace.svg",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			return a.drawTrace(ctx, j, strings.Join(args, ""), out, all)
		}),
	}
	cmd.Flags().VarP(cli.OneOf(&out, traceText, traceSVG, traceJSON), "output", "o",
		"output format: text, an SVG image, or OpenTelemetry JSON")
	cmd.Flags().BoolVar(&all, "all", false, "show all spans, including Genkit internals and each sandbox call")
	return cmd
}

// drawTrace prints the traces of a run, one for each process of the run.
func (a *command) drawTrace(ctx context.Context, j runstore.Store, id, out string, all bool) error {
	dir, err := a.RunFiles()
	if err != nil {
		return err
	}
	r, err := tracedRun(ctx, j, dir, id)
	if err != nil {
		return err
	}
	file, err := os.Open(dir.Of(r.ID, runtrace.FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return app.Fail(app.ExitNotFound, fmt.Errorf("trace of run %s not found", r.ID),
			"no trace is kept by a worker, with OTEL_SDK_DISABLED=true, or if TRACEPARENT excludes the run from sampling")
	}
	if err != nil {
		return err
	}
	defer file.Close() // opened for reading only
	if out == traceJSON {
		doc, err := runtrace.Document(file)
		if err != nil {
			return err
		}
		_, err = a.Contents().Write(doc)
		return err
	}
	traces, err := runtrace.Read(file)
	if err != nil {
		return app.Fail(app.ExitFailed, fmt.Errorf("run %s: %w", r.ID, err), "")
	}
	if out == traceSVG {
		if n := len(traces); n > 1 {
			a.Notice("run %s was resumed; the image shows the last of its %d traces, -o text shows all", r.ID, n)
		}
		return traces[len(traces)-1].SVG(a.Contents(), r.Workflow+" · "+r.ID, runtrace.Options{All: all})
	}
	for i, t := range traces {
		if i > 0 {
			fmt.Fprintln(a.Stdout)
		}
		o := runtrace.Options{All: all, Width: 120}
		if width, ok := cli.TerminalWidth(a.Stdout); ok {
			o.Color = a.Options.Env.Get("NO_COLOR") == "" && a.Options.Env.Get("TERM") != "dumb"
			o.Width = cmp.Or(width, o.Width)
		}
		if err := t.Text(a.Stdout, o); err != nil {
			return err
		}
	}
	return nil
}

// tracedRun returns a run by id or id prefix. Without an id, it returns the latest run with a trace.
func tracedRun(ctx context.Context, j runstore.Store, dir runfiles.Dir, id string) (runstore.Run, error) {
	if id != "" {
		return app.FindRun(ctx, j, id)
	}
	page, err := j.Runs(ctx, runstore.Query{Limit: app.MaxRuns})
	if err != nil {
		return runstore.Run{}, err
	}
	for _, r := range page.Runs {
		if _, err := os.Stat(dir.Of(r.ID, runtrace.FileName)); err == nil {
			return r, nil
		}
	}
	return runstore.Run{}, app.Fail(app.ExitNotFound, errors.New("no traces found"), "")
}
