// Mkimages loads the sandbox images into Docker or containerd.
//
// Without flags, it loads the test images under the project's own tags. With -official, it loads the images used in the
// examples: it keeps existing images, pulls missing images, and otherwise builds a replacement from Debian packages
// under the same name and reports this. With -agents, it loads the images of CLI coding agents. With -newest, it also
// loads them in the newest versions on npm, and an unavailable image is only a warning.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/distribution/reference"

	"github.com/workcell-dev/workcell/e2e/images"
)

func main() {
	var o options
	flag.BoolVar(&o.official, "official", false, "the images in the examples; stand-ins if they are unavailable")
	flag.BoolVar(&o.agents, "agents", false, "the images of CLI coding agents instead")
	flag.BoolVar(&o.guest, "guest", false, "the image of the guest too, for pods of a cluster")
	flag.BoolVar(&o.newest, "newest", false, "with -agents: in the newest versions")
	flag.StringVar(&o.only, "only", "", "with -agents: these alone, with a comma between, as gemini,claude")
	flag.BoolVar(&o.force, "force", false, "reload existing images; official images are never replaced")
	flag.StringVar(&o.cache, "cache", "images-cache", "cache directory")
	flag.StringVar(&o.engines, "engine", "docker", "where to: docker, containerd, or both with a comma")
	flag.StringVar(&o.namespace, "namespace", "workcell", "containerd's namespace; the driver looks for images in workcell, Kubernetes in k8s.io")
	flag.StringVar(&o.address, "address", "/run/containerd/containerd.sock", "containerd's socket")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := ensure(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type options struct {
	official, agents, newest, guest, force bool

	only, cache, engines, address, namespace string
}

func ensure(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	builder := images.NewBuilder(o.cache, &images.BuilderOptions{Registry: os.Getenv("npm_config_registry"), Log: stderr})
	defer func() { err = errors.Join(err, builder.Close()) }()
	for name := range strings.SplitSeq(o.engines, ",") {
		if err := o.ensureOn(ctx, name, builder, stdout, stderr); err != nil {
			return err
		}
	}
	return nil
}

// ensureOn loads the images into one engine.
func (o options) ensureOn(ctx context.Context, name string, builder *images.Builder, stdout, stderr io.Writer) (err error) {
	engine, done, err := o.connect(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	keeper := images.NewKeeper(engine, builder, stderr)
	arch, err := keeper.Arch(ctx)
	if err != nil {
		return err
	}
	recipes := images.TestImages
	switch {
	case o.agents:
		recipes = images.Agents
	case o.official:
		recipes = images.StandIns
	}
	list, err := recipes(arch)
	if err != nil {
		return err
	}
	if o.guest {
		for _, ensure := range []func() (string, images.Outcome, error){
			func() (string, images.Outcome, error) { return keeper.EnsureGuest(ctx, o.force) },
			func() (string, images.Outcome, error) { return keeper.EnsureWithGuest(ctx, images.Python(), o.force) },
		} {
			start := time.Now()
			ref, how, err := ensure()
			if err != nil {
				return err
			}
			fmt.Fprintf(stdout, "%-11s %-22s %-8s %5.1f s\n", name, ref, how, time.Since(start).Seconds())
		}
	}
	for _, im := range list {
		start := time.Now()
		var how images.Outcome
		standIn := false
		if !o.wants(im) {
			continue
		}
		if o.newest {
			newest, err := images.Newest(ctx, im)
			if err != nil {
				fmt.Fprintf(stderr, "warning: %v\n", err)
				continue
			}
			im = newest
		}
		if o.official && !o.agents {
			how, standIn, err = keeper.EnsureOfficial(ctx, im, o.force)
		} else {
			how, err = keeper.EnsureTest(ctx, im, o.force)
		}
		if err != nil && o.newest {
			fmt.Fprintf(stderr, "warning: %s: %v\n", im.Ref, err)
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%-11s %-22s %-8s %5.1f s\n", name, im.Ref, how, time.Since(start).Seconds())
		if standIn {
			fmt.Fprintf(stdout, "  this is a stand-in made from Debian packages, not the published image\n"+
				"  (label %s=true; %s replaces it)\n", images.LabelStandIn, o.pullCommand(name, im.Ref))
		}
	}
	return nil
}

// wants reports whether -only includes an image.
func (o options) wants(im images.Image) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(im.Ref, "workcell/"), ":")
	return o.only == "" || slices.Contains(strings.Split(o.only, ","), name)
}

// connector returns an engine and its close function. The connector of an engine excluded by build tags is nil.
type connector func(o options) (images.Engine, func() error, error)

func (o options) connect(name string) (images.Engine, func() error, error) {
	c := map[string]connector{"docker": connectDocker, "containerd": connectContainerd}[name]
	if c == nil {
		return nil, nil, fmt.Errorf("no engine is called %q, or this build is without it: docker, containerd", name)
	}
	return c(o)
}

func (o options) pullCommand(engine, ref string) string {
	if engine == "docker" {
		return "`docker pull " + ref + "`"
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "pulling " + ref
	}
	return "`ctr -n " + o.namespace + " images pull " + named.String() + "`"
}
