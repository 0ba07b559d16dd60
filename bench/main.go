// Command bench compares Workcell's Docker sandboxes with the Docker Engine API and with plain processes of the host,
// side by side in one run, prints a table and writes bench/out/latest.json.
//
// Times on a shared machine drift; only the ratios within one run count. Every figure is the median over rounds in
// which the contestants take turns.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"text/tabwriter"

	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/session"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		os.Exit(1)
	}
}

// options are the flags of the program.
type options struct {
	image  string
	out    string
	rounds int
	scale  int
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.image, "image", "workcell/python:3.11", "image of every sandbox")
	flags.StringVar(&o.out, "out", "bench/out/latest.json", "file for the figures")
	flags.IntVar(&o.rounds, "rounds", 3, "rounds in which the contestants take turns")
	flags.IntVar(&o.scale, "scale", 100, "percentage of the usual number of calls")
	if err := flags.Parse(args); err != nil {
		return err
	}
	api, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer api.Close()
	b, err := docker.New(ctx, &docker.Options{Host: os.Getenv("DOCKER_HOST")})
	if err != nil {
		return err
	}
	defer b.Close()
	m, err := session.NewManager(b, &session.Options{IdleTimeout: -1})
	if err != nil {
		return err
	}
	bench := &contest{opts: o, engine: &engine{api: api, image: o.image}, manager: m, figures: figures{}}
	err = errors.Join(bench.run(ctx), m.Close(context.WithoutCancel(ctx)))
	if err != nil {
		return err
	}
	bench.figures.print(stdout)
	return bench.figures.write(o.out)
}

// figures maps a flat key, "<what>.<contestant>", to its value.
type figures map[string]float64

func (f figures) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "figure\tvalue\t")
	for _, key := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(table, "%s\t%.3f\t\n", key, f[key])
	}
	table.Flush()
}

func (f figures) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
