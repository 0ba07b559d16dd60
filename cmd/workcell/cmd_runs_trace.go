package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/internal/runtrace"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// Formats of `runs trace`.
const (
	traceText = "text"
	traceSVG  = "svg"
	traceJSON = "json"
)

func newRunsTraceCmd(a *app) *cobra.Command {
	out, all := traceText, false
	cmd := a.verb(0, &cobra.Command{
		Use:   "trace [RUN]",
		Short: "Show the trace of a run",
		Long: `Show the trace of a workflow or agent run: its agents, model calls, tool calls, and sandbox commands, with
their start times and durations. Without RUN, the command shows the latest trace. Traces are kept with the run, even
if they are not exported.

With -o json, you can send the spans to an OpenTelemetry collector:

  workcell runs trace RUN -o json | curl -H 'Content-Type: application/json' -d @- http://localhost:4318/v1/traces`,
		Example: "  workcell runs trace run_…\n  workcell runs trace run_… -o svg > trace.svg",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			return a.drawTrace(ctx, j, strings.Join(args, ""), out, all)
		}),
	})
	cmd.Flags().VarP(oneOf(&out, traceText, traceSVG, traceJSON), "output", "o", "output format: text, an SVG image, or OpenTelemetry JSON")
	cmd.Flags().BoolVar(&all, "all", false, "show all spans, including Genkit internals and each sandbox call")
	return cmd
}

// drawTrace draws the traces of a run: one for each process that worked on it.
func (a *app) drawTrace(ctx context.Context, j runstore.Store, id, out string, all bool) error {
	id, title, err := a.tracedRun(ctx, j, id)
	if err != nil {
		return err
	}
	dir, err := a.runFiles()
	if err != nil {
		return err
	}
	file, err := os.Open(filepath.Join(dir.Of(id), runtrace.FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return fail(exitNotFound, fmt.Errorf("trace of run %s not found", id), "no trace is kept with OTEL_SDK_DISABLED=true, or if TRACEPARENT excludes the run from sampling")
	}
	if err != nil {
		return err
	}
	defer file.Close() // only read from
	if out == traceJSON {
		doc, err := runtrace.Document(file)
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(doc)
		return err
	}
	traces, err := runtrace.Read(file)
	if err != nil {
		return fail(exitFailed, fmt.Errorf("run %s: %w", id, err), "")
	}
	if out == traceSVG {
		if n := len(traces); n > 1 {
			a.notice("run %s was resumed; the image shows the last of its %d traces, -o text shows all", id, n)
		}
		return traces[len(traces)-1].SVG(a.stdout, title, runtrace.Options{All: all})
	}
	for i, t := range traces {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		o := runtrace.Options{All: all, Width: 120}
		if f, ok := a.stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			o.Color = a.env.Get("NO_COLOR") == ""
			if width, _, err := term.GetSize(int(f.Fd())); err == nil {
				o.Width = width
			}
		}
		if err := t.Text(a.stdout, o); err != nil {
			return err
		}
	}
	return nil
}

// latestTrace returns the run of which a span was kept last.
func latestTrace(dir runfiles.Dir, runs []string) (latest string, err error) {
	var last time.Time
	for _, run := range runs {
		if st, err := os.Stat(filepath.Join(dir.Of(run), runtrace.FileName)); err == nil && st.ModTime().After(last) {
			latest, last = run, st.ModTime()
		}
	}
	if latest == "" {
		return "", fail(exitNotFound, errors.New("no traces found"), "")
	}
	return latest, nil
}

// tracedRun returns the id of a run that is named by its id or the beginning of that, empty for the latest, and what it was
// a run of. Runs of agents have no journal.
func (a *app) tracedRun(ctx context.Context, j runstore.Store, id string) (full, title string, err error) {
	dir, err := a.runFiles()
	if err != nil {
		return "", "", err
	}
	kept, err := dir.Runs()
	if err != nil {
		return "", "", err
	}
	if id == "" {
		if id, err = latestTrace(dir, kept); err != nil {
			return "", "", err
		}
	}
	r, err := findRun(ctx, j, id)
	if err == nil {
		return r.ID, r.Workflow + " · " + r.ID, nil
	}
	if !errors.Is(err, errNoRun) {
		return "", "", err
	}
	var found []string
	for _, name := range kept {
		if name == id || abbreviates(id, name) {
			found = append(found, name)
		}
	}
	if len(found) != 1 {
		return "", "", err
	}
	return found[0], found[0], nil
}
