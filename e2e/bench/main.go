// Command bench compares Workcell's sandboxes on every engine with the engines' own APIs and with plain processes on
// the host, in the same run. It prints tables and writes e2e/bench/out/latest.json.
//
// Times on a shared host vary, so only the ratios within one run are meaningful. Every figure is the median over rounds
// in which the contestants take turns. An unavailable engine is an error if it was requested, because a table without
// the engine's column would prove nothing about it.
package main

import (
	"cmp"
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
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/e2e/images"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: error:", err)
		os.Exit(1)
	}
}

// options are the flags of the program.
type options struct {
	image   string
	out     string
	engines string
	rounds  int
	scale   int
	// only is the only benchmark to run; empty for all.
	only string
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	single := []string{"cluster", "codemode", "forward", "pool", "snapshots"}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.image, "image", "workcell/python:3.11", "image of every sandbox")
	flags.StringVar(&o.out, "out", "e2e/bench/out/latest.json", "file for the figures")
	flags.StringVar(&o.engines, "engines", "docker,containerd,local", "engines to measure; all must be available")
	flags.IntVar(&o.rounds, "rounds", 3, "rounds in which the contestants take turns")
	flags.IntVar(&o.scale, "scale", 100, "percentage of the usual number of calls")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch what := flags.Args(); {
	case len(what) == 0:
	case len(what) == 1 && slices.Contains(single, what[0]):
		o.only = what[0]
	default:
		return fmt.Errorf("there is no benchmark %q; %s are, and without a name all that need no more than the engines are run", what, strings.Join(single, ", "))
	}
	bench := &contest{opts: o, all: []contestant{host{}}, figures: figures{}}
	defer func() {
		for _, who := range slices.Backward(bench.all) {
			err = errors.Join(err, who.close())
		}
	}()
	for _, engine := range o.takesPart() {
		some, err := enter(ctx, engine, o)
		bench.all = append(bench.all, some...)
		if err != nil {
			return fmt.Errorf("engine %s cannot be measured: %w", engine, err)
		}
	}
	if err := bench.run(ctx); err != nil {
		return err
	}
	bench.figures.print(stdout, bench.all)
	fmt.Fprintln(stdout)
	bench.figures.judge(stdout)
	return bench.figures.write(o.out, o.only != "")
}

// takesPart returns the measured engines.
func (o *options) takesPart() []string {
	if o.only == "cluster" {
		return []string{"kubernetes"}
	}
	return strings.Split(o.engines, ",")
}

// enter returns the contestants of an engine: the engine's API, if available, and our driver. The caller must
// close them even if enter returns an error.
func enter(ctx context.Context, engine string, o options) (all []contestant, err error) {
	var driver backend.SandboxBackend
	switch engine {
	case "docker":
		raw, err := newDockerAPI(o.image)
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
		driver, err = docker.New(ctx, &docker.Options{Host: os.Getenv("DOCKER_HOST")})
		if err != nil {
			return all, err
		}
	case "containerd":
		address := cmp.Or(os.Getenv("CONTAINERD_ADDRESS"), containerd.DefaultAddress)
		raw, err := newContainerdAPI(ctx, address, o.image)
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
		driver, err = containerd.New(ctx, &containerd.Options{Address: address})
		if err != nil {
			return all, err
		}
	case "local":
		if driver, err = local.New(ctx, nil); err != nil {
			return nil, err
		}
	case "kubernetes":
		raw, err := newClientGo(ctx, o.image)
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
		opts := clusterOptions(raw)
		o.image = images.WithGuest(o.image)
		driver, err = kubernetes.New(ctx, opts)
		if err != nil {
			return all, err
		}
	default:
		return nil, errors.New("there is no such engine")
	}
	w, err := newWorkcell(engine, driver, o.image)
	if err != nil {
		return all, err
	}
	return append(all, w), nil
}

// clusterOptions returns the options of our driver for the comparison with the baseline. Volumes do not outlive their
// pod, and the image contains everything necessary.
func clusterOptions(raw *clientGo) *kubernetes.Options {
	opts := clustertest.Options(raw.namespace)
	opts.StorageClass, opts.GuestImage, opts.Limits = "", "", backend.Limits{}
	return opts
}

// figures maps a key, "<what>.<contestant>", to the value, for example "exec_p50_ms.host".
type figures map[string]float64

// print prints a table with one column per contestant, and one line for each figure without a contestant.
func (f figures) print(w io.Writer, all []contestant) {
	var rows, others []string
	for key := range f {
		what, whose, _ := strings.Cut(key, ".")
		if !slices.ContainsFunc(all, func(who contestant) bool { return who.name() == whose }) {
			others = append(others, key)
		} else if !slices.Contains(rows, what) {
			rows = append(rows, what)
		}
	}
	slices.Sort(rows)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "figure\t")
	for _, who := range all {
		fmt.Fprintf(table, "%s\t", who.name())
	}
	fmt.Fprintln(table)
	for _, what := range rows {
		fmt.Fprintf(table, "%s\t", what)
		for _, who := range all {
			cell := "-"
			if v, ok := f[what+"."+who.name()]; ok {
				cell = fmt.Sprintf("%.3f", v)
			}
			fmt.Fprintf(table, "%s\t", cell)
		}
		fmt.Fprintln(table)
	}
	table.Flush()
	slices.Sort(others)
	for _, key := range others {
		fmt.Fprintf(w, "%s  %.4g\n", key, f[key])
	}
}

// write writes the figures to a file. If the second argument is true, it keeps the existing figures of other runs.
func (f figures) write(path string, beside bool) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if beside {
		all := figures{}
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &all)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w", path, err)
		}
		maps.Copy(all, f)
		f = all
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
