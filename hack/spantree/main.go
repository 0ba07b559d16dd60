// Spantree prints the newest trace of a service as a tree, as Jaeger's query
// API returns it. It waits a little for a trace that is still on its way.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/workcell-dev/workcell/e2e/jaegerapi"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("spantree", flag.ContinueOnError)
	fs.SetOutput(stderr)
	url := fs.String("url", "http://localhost:16686", "Jaeger's query API")
	service := fs.String("service", "workcell", "name of the service")
	operation := fs.String("operation", "workflow.run", "name of a span in the trace")
	since := fs.Int64("since", 0, "only traces that began after this Unix time (default one hour ago)")
	wait := fs.Duration("wait", 10*time.Second, "how long to wait for the trace")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	search := jaegerapi.Search{Service: *service, Operation: *operation}
	if *since > 0 {
		search.Since = time.Unix(*since, 0)
	}
	client := &jaegerapi.Client{URL: *url}
	ctx, cancel := context.WithTimeout(ctx, *wait)
	defer cancel()
	trace, err := newest(ctx, client, search)
	if err == nil {
		err = trace.WriteTree(stdout, "workcell.step.id", "genkit:type", "workcell.exec.exit_code")
	}
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	fmt.Fprintf(stdout, "\nin Jaeger's pages: %s/trace/%s\nas JSON:           %s/api/traces/%s\n", *url, trace.ID, *url, trace.ID)
	return 0
}

func newest(ctx context.Context, client *jaegerapi.Client, search jaegerapi.Search) (*jaegerapi.Trace, error) {
	for {
		traces, err := client.Find(ctx, search)
		if err != nil {
			return nil, err
		}
		if len(traces) > 0 {
			return traces[0], nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no trace of %s with a span %s", search.Service, search.Operation)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
