// Mkimages brings the sandbox images into the Docker engine.
//
// Without flags these are the images of the tests, under the project's own
// tags. With -official they are the images that the examples name: an image
// that is there is left alone, one that can be pulled is pulled, and else a
// stand-in made from Debian packages gets the name, which is said plainly.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/images"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	fs := flag.NewFlagSet("mkimages", flag.ContinueOnError)
	fs.SetOutput(stderr)
	official := fs.Bool("official", false, "the images the examples name, stand-ins where they cannot be had")
	force := fs.Bool("force", false, "load images again that are there; an official image is never replaced")
	cache := fs.String("cache", "", "cache directory (default the user's)")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "usage: mkimages [-official] [-force] [-cache DIR] [IMAGE...]")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if err := ensure(ctx, *official, *force, *cache, fs.Args(), stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	return 0
}

func ensure(ctx context.Context, official, force bool, cache string, only []string, stdout, stderr io.Writer) (err error) {
	if cache == "" {
		if cache, err = defaultCache(); err != nil {
			return err
		}
	}
	docker, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, docker.Close()) }()
	builder := images.NewBuilder(cache, &images.BuilderOptions{Registry: os.Getenv("npm_config_registry"), Log: stderr})
	defer func() { err = errors.Join(err, builder.Close()) }()
	keeper := images.NewKeeper(docker, builder, stderr)

	arch, err := keeper.Arch(ctx)
	if err != nil {
		return err
	}
	list, err := images.TestImages(arch)
	if official {
		list, err = images.StandIns(arch)
	}
	if err != nil {
		return err
	}
	if list, err = choose(list, only); err != nil {
		return err
	}
	for _, im := range list {
		start := time.Now()
		var how images.Outcome
		standIn := false
		if official {
			how, standIn, err = keeper.EnsureOfficial(ctx, im, force)
		} else {
			how, err = keeper.EnsureTest(ctx, im, force)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%-22s %-8s %5.1f s\n", im.Ref, how, time.Since(start).Seconds())
		if standIn {
			fmt.Fprintf(stdout, "  this is a stand-in made from Debian packages, not the published image\n"+
				"  (label %s=true; `docker pull %s` replaces it)\n", images.LabelStandIn, im.Ref)
		}
	}
	return nil
}

func choose(list []images.Image, only []string) ([]images.Image, error) {
	if len(only) == 0 {
		return list, nil
	}
	var out []images.Image
	for _, ref := range only {
		i := slices.IndexFunc(list, func(im images.Image) bool { return im.Ref == ref })
		if i < 0 {
			return nil, fmt.Errorf("no recipe for %s", ref)
		}
		out = append(out, list[i])
	}
	return out, nil
}

// defaultCache is the user's cache directory, found without HOME as well.
func defaultCache() (string, error) {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "workcell", "images"), nil
	}
	u, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("no cache directory, give one with -cache: %w", err)
	}
	return filepath.Join(u.HomeDir, ".cache", "workcell", "images"), nil
}
