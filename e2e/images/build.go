package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Builder builds images and stores their layers in a cache directory. It is not safe for concurrent use. Several
// builders may share a cache.
type Builder struct {
	cache    string
	registry string
	log      io.Writer
	// Created for the first uncached layer.
	work     string
	packages *packageSource
}

// BuilderOptions are the optional settings of a Builder.
type BuilderOptions struct {
	// Registry is the npm registry used if the npm command is not installed. If empty, it defaults to the public registry.
	Registry string
	// Log receives progress lines. If nil, they are discarded.
	Log io.Writer
}

// NewBuilder returns a builder with cacheDir as the cache of layers. The caller must close it.
func NewBuilder(cacheDir string, o *BuilderOptions) *Builder {
	b := &Builder{cache: cacheDir, registry: "https://registry.npmjs.org", log: io.Discard}
	if o != nil && o.Registry != "" {
		b.registry = o.Registry
	}
	if o != nil && o.Log != nil {
		b.log = o.Log
	}
	return b
}

// Close removes downloaded files. The cache stays.
func (b *Builder) Close() error {
	if b.work == "" {
		return nil
	}
	if err := os.RemoveAll(b.work); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	b.work = ""
	return nil
}

// Build builds the image for the host's architecture. It uses cached layers if possible.
func (b *Builder) Build(ctx context.Context, im Image) (v1.Image, error) {
	img := empty.Image
	for i := range im.Layers {
		file, err := b.layer(ctx, im.Layers[:i+1])
		if err != nil {
			return nil, err
		}
		l, err := tarball.LayerFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("images: layer %s: %w", im.Layers[i].Name, err)
		}
		if img, err = mutate.Append(img, mutate.Addendum{
			Layer:   l,
			History: v1.History{CreatedBy: "workcell images: " + im.Layers[i].Name, Created: v1.Time{Time: entryTime()}},
		}); err != nil {
			return nil, fmt.Errorf("images: layer %s: %w", im.Layers[i].Name, err)
		}
	}
	return b.configure(img, im)
}

func (b *Builder) configure(img v1.Image, im Image) (v1.Image, error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("images: %s: %w", im.Ref, err)
	}
	cfg = cfg.DeepCopy()
	cfg.Architecture, cfg.OS = runtime.GOARCH, "linux"
	cfg.Created = v1.Time{Time: entryTime()}
	cfg.Config = v1.Config{
		Env:    im.Env,
		Cmd:    im.Cmd,
		Labels: map[string]string{LabelRecipe: im.Hash(runtime.GOARCH)},
	}
	if im.StandIn {
		cfg.Config.Labels[LabelStandIn] = "true"
	}
	if im.Private {
		cfg.Config.Labels[LabelPrivate] = "true"
	}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		return nil, fmt.Errorf("images: %s: %w", im.Ref, err)
	}
	return img, nil
}

// Write writes the image as an archive for engines.
func Write(w io.Writer, ref string, img v1.Image) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	if err := tarball.Write(tag, img, w); err != nil {
		return fmt.Errorf("images: write %s: %w", ref, err)
	}
	return nil
}

// layer returns the file of the top layer of the stack.
func (b *Builder) layer(ctx context.Context, stack []Layer) (_ string, err error) {
	file := layerFile(b.cache, stack)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := CanBuild(); err != nil {
		return "", err
	}
	spec := stack[len(stack)-1]
	debs, tarballs, err := b.fetch(ctx, stack)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(b.log, "layer %s: %d packages, %d tarballs\n", spec.Name, len(debs), len(tarballs))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", fmt.Errorf("images: cache: %w", err)
	}
	// Rename the file when it is complete, to prevent the use of an incomplete layer.
	tmp, err := os.CreateTemp(filepath.Dir(file), "new-*")
	if err != nil {
		return "", fmt.Errorf("images: cache: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	if err := errors.Join(writeLayer(ctx, tmp, spec, debs, tarballs), tmp.Close()); err != nil {
		return "", err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return "", fmt.Errorf("images: cache: %w", err)
	}
	return file, nil
}

func layerFile(cache string, stack []Layer) string {
	return filepath.Join(cache, "layers", layerKey(runtime.GOARCH, stack)+".tar.gz")
}

// fetch downloads the packages and tarballs added by the top layer.
func (b *Builder) fetch(ctx context.Context, stack []Layer) (debs, tarballs []string, err error) {
	if b.work == "" {
		if err := os.MkdirAll(b.cache, 0o755); err != nil {
			return nil, nil, fmt.Errorf("images: cache: %w", err)
		}
		if b.work, err = os.MkdirTemp(b.cache, "work-*"); err != nil {
			return nil, nil, fmt.Errorf("images: cache: %w", err)
		}
		if b.packages, err = newPackageSource(b.work, b.log); err != nil {
			return nil, nil, err
		}
	}
	var want []string
	below := map[string]bool{}
	for i, l := range stack {
		want = append(want, l.Packages...)
		all, err := b.packages.fetch(ctx, want)
		if err != nil {
			return nil, nil, err
		}
		for _, deb := range all {
			if i == len(stack)-1 && !below[packageName(deb)] {
				debs = append(debs, deb)
			}
			below[packageName(deb)] = true
		}
	}
	for _, p := range stack[len(stack)-1].NPM {
		file, err := fetchNPM(ctx, p, b.work, b.registry)
		if err != nil {
			return nil, nil, err
		}
		tarballs = append(tarballs, file)
	}
	return debs, tarballs, nil
}

// packageName returns the part of a package file's name before the version.
func packageName(file string) string {
	n, _, _ := strings.Cut(filepath.Base(file), "_")
	return n
}
