package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/workcell-dev/workcell/internal/guestimage"
)

// defaultPullSilence is the maximum time without progress during a pull. Without a registry, the engine itself may
// retry for a minute or more.
const defaultPullSilence = 20 * time.Second

// errSilence means that a pull was canceled because it made no progress.
var errSilence = errors.New("no progress")

// Outcome is the way in which an image was loaded into the engine.
type Outcome string

// Outcomes of Ensure.
const (
	Present Outcome = "present" // the image existed
	Built   Outcome = "built"   // built and loaded
	Pulled  Outcome = "pulled"  // pulled from a registry
	Tagged  Outcome = "tagged"  // the official image with the project's tag
)

// Engine is a container engine for loading images. See Docker and Containerd.
type Engine interface {
	arch(ctx context.Context) (string, error)
	// find returns the labels of an image. present reports whether the image exists and is ready for use.
	find(ctx context.Context, ref string) (labels map[string]string, present bool, err error)
	load(ctx context.Context, archive io.Reader) error
	tag(ctx context.Context, from, to string) error
	pull(ctx context.Context, ref string, progress func()) error
}

// Keeper loads images into an engine.
type Keeper struct {
	engine  Engine
	builder *Builder
	log     io.Writer
	silence time.Duration
	// offline is the first error of a pull. After it, no other pulls are tried.
	offline error
}

// NewKeeper returns a keeper for an engine. The caller must close the builder. log may be nil.
func NewKeeper(engine Engine, builder *Builder, log io.Writer) *Keeper {
	if log == nil {
		log = io.Discard
	}
	return &Keeper{engine: engine, builder: builder, log: log, silence: defaultPullSilence}
}

// Arch returns the architecture of the engine's host, in Go's naming.
func (k *Keeper) Arch(ctx context.Context) (string, error) {
	arch, err := k.engine.arch(ctx)
	if err != nil {
		return "", fmt.Errorf("images: no engine answers: %w", err)
	}
	return arch, nil
}

// EnsureTest loads a test image into the engine. It builds the image from packages, or else uses the official image
// with the test's tag.
func (k *Keeper) EnsureTest(ctx context.Context, im Image, force bool) (Outcome, error) {
	arch, err := k.Arch(ctx)
	if err != nil {
		return "", err
	}
	cannot := k.cannotBuild(arch)
	labels, present, err := k.find(ctx, im.Ref)
	if err != nil {
		return "", err
	}
	if present && !force && (cannot != nil || labels[LabelRecipe] == im.Hash(arch)) {
		return Present, nil
	}
	if cannot == nil {
		return Built, k.buildAndLoad(ctx, im)
	}
	if im.Official == "" {
		return "", cannot
	}
	fmt.Fprintf(k.log, "%v: taking %s instead\n", cannot, im.Official)
	if _, present, err := k.find(ctx, im.Official); err != nil {
		return "", err
	} else if !present {
		if err := k.pull(ctx, im.Official); err != nil {
			return "", errors.Join(cannot, err)
		}
	}
	if err := k.engine.tag(ctx, im.Official, im.Ref); err != nil {
		return "", fmt.Errorf("images: tag %s: %w", im.Ref, err)
	}
	return Tagged, nil
}

// EnsureGuest loads the guest-agent image into the engine and returns the reference.
func (k *Keeper) EnsureGuest(ctx context.Context, force bool) (ref string, _ Outcome, _ error) {
	ref = guestimage.Reference()
	if _, present, err := k.find(ctx, ref); err != nil || present && !force {
		return ref, Present, err
	}
	arch, err := k.Arch(ctx)
	if err != nil {
		return ref, "", err
	}
	img, err := guestimage.Image(arch)
	if err != nil {
		return ref, "", err
	}
	return ref, Built, k.load(ctx, ref, img)
}

// WithGuest returns the reference of an image to which EnsureWithGuest added the guest agent.
func WithGuest(ref string) string {
	name, tag, _ := strings.Cut(ref, ":")
	_, version, _ := strings.Cut(guestimage.Reference(), ":")
	return name + "-guest:" + tag + "-" + version
}

// EnsureWithGuest loads an image with the guest agent added, like operators of clusters add it to their images.
func (k *Keeper) EnsureWithGuest(ctx context.Context, im Image, force bool) (ref string, _ Outcome, _ error) {
	ref = WithGuest(im.Ref)
	if _, present, err := k.find(ctx, ref); err != nil || present && !force {
		return ref, Present, err
	}
	arch, err := k.Arch(ctx)
	if err != nil {
		return ref, "", err
	}
	guest, err := guestimage.Image(arch)
	if err != nil {
		return ref, "", err
	}
	layers, err := guest.Layers()
	if err != nil {
		return ref, "", err
	}
	img, err := k.builder.Build(ctx, im)
	if err == nil {
		img, err = mutate.AppendLayers(img, layers...)
	}
	if err != nil {
		return ref, "", err
	}
	return ref, Built, k.load(ctx, ref, img)
}

// EnsureOfficial loads an official image into the engine. It keeps an existing image, pulls a missing image, and
// otherwise builds a replacement. standIn reports whether the tag now refers to a replacement.
func (k *Keeper) EnsureOfficial(ctx context.Context, im Image, force bool) (_ Outcome, standIn bool, _ error) {
	labels, present, err := k.find(ctx, im.Ref)
	if err != nil {
		return "", false, err
	}
	ours := labels[LabelStandIn] == "true"
	if present && !ours {
		return Present, false, nil
	}
	arch, err := k.Arch(ctx)
	if err != nil {
		return "", false, err
	}
	if present && !force && (labels[LabelRecipe] == im.Hash(arch) || k.cannotBuild(arch) != nil) {
		return Present, true, nil
	}
	perr := k.pull(ctx, im.Ref)
	if perr == nil {
		return Pulled, false, nil
	}
	if cannot := k.cannotBuild(arch); cannot != nil {
		return "", false, errors.Join(perr, cannot)
	}
	return Built, true, k.buildAndLoad(ctx, im)
}

func (k *Keeper) cannotBuild(arch string) error {
	if arch != runtime.GOARCH {
		return fmt.Errorf("images: the engine runs on %s, packages here are for %s", arch, runtime.GOARCH)
	}
	return CanBuild()
}

// find returns the labels of an image, and whether it exists.
func (k *Keeper) find(ctx context.Context, ref string) (map[string]string, bool, error) {
	labels, present, err := k.engine.find(ctx, ref)
	if err != nil {
		return nil, false, fmt.Errorf("images: look for %s: %w", ref, err)
	}
	return labels, present, nil
}

func (k *Keeper) buildAndLoad(ctx context.Context, im Image) error {
	img, err := k.builder.Build(ctx, im)
	if err != nil {
		return err
	}
	return k.load(ctx, im.Ref, img)
}

func (k *Keeper) load(ctx context.Context, ref string, img v1.Image) error {
	pr, pw := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := Write(pw, ref, img)
		pw.CloseWithError(err)
		written <- err
	}()
	err := k.engine.load(ctx, pr)
	// Stops the writer if the engine stopped reading.
	pr.CloseWithError(io.ErrClosedPipe)
	werr := <-written
	if err != nil {
		return fmt.Errorf("images: load %s: %w, %v", ref, err, werr)
	}
	if _, present, err := k.find(ctx, ref); err != nil || !present {
		return errors.Join(fmt.Errorf("images: %s is not there after loading it", ref), err)
	}
	return nil
}

// pull pulls an image as long as it makes progress.
func (k *Keeper) pull(ctx context.Context, ref string) error {
	if k.offline != nil {
		return fmt.Errorf("images: pull %s: not tried, %w", ref, k.offline)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(k.silence, func() { cancel(errSilence) })
	defer silence.Stop()
	start := time.Now()
	err := k.engine.pull(ctx, ref, func() { silence.Reset(k.silence) })
	if errors.Is(context.Cause(ctx), errSilence) {
		err = fmt.Errorf("%w for %v", errSilence, k.silence)
	}
	if err != nil {
		k.offline = fmt.Errorf("images: pull %s failed after %.1f s: %w", ref, time.Since(start).Seconds(), err)
		fmt.Fprintln(k.log, k.offline)
		return k.offline
	}
	return nil
}
