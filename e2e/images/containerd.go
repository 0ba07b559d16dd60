//go:build !no_containerd

package images

import (
	"context"
	"io"
	"runtime"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	ctrdimages "github.com/containerd/containerd/v2/core/images"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
)

// progressEvery is the interval of progress checks during a pull.
const progressEvery = 500 * time.Millisecond

// containerdEngine is a containerd namespace for a Keeper.
type containerdEngine struct{ api *ctrd.Client }

// Containerd returns an Engine for the containerd behind api, in the client's default namespace. The caller must close
// the client.
func Containerd(api *ctrd.Client) Engine { return containerdEngine{api} }

// arch returns the host's architecture, because containerd uses only a Unix socket.
func (e containerdEngine) arch(ctx context.Context) (string, error) {
	_, err := e.api.Version(ctx)
	return runtime.GOARCH, err
}

// find treats an image as missing if it is not unpacked or the contents are gone, because the use would fail or be
// slow.
func (e containerdEngine) find(ctx context.Context, ref string) (map[string]string, bool, error) {
	name, err := fullName(ref)
	if err != nil {
		return nil, false, err
	}
	img, err := e.api.GetImage(ctx, name)
	if cerrdefs.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	unpacked, err := img.IsUnpacked(ctx, "")
	if cerrdefs.IsNotFound(err) || err == nil && !unpacked {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	spec, err := img.Spec(ctx)
	if cerrdefs.IsNotFound(err) {
		return nil, false, nil
	}
	return spec.Config.Labels, err == nil, err
}

func (e containerdEngine) load(ctx context.Context, archive io.Reader) error {
	// Without a lease, content without an image could be garbage-collected between the two steps.
	ctx, done, err := e.api.WithLease(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }() // the lease also expires
	loaded, err := e.api.Import(ctx, archive)
	if err != nil {
		return err
	}
	for _, img := range loaded {
		if err := unpack(ctx, ctrd.NewImage(e.api, img)); err != nil {
			return err
		}
	}
	return nil
}

// unpack unpacks an image. Layers of only the previous image of this name may be garbage-collected right after they
// were found. Afterwards, the image references them, so a second attempt succeeds.
func unpack(ctx context.Context, img ctrd.Image) error {
	is, err := false, error(nil)
	for i := 0; i < 2 && !is && err == nil; i++ {
		if err = img.Unpack(ctx, ""); err == nil {
			is, err = img.IsUnpacked(ctx, "")
		}
	}
	return err
}

func (e containerdEngine) tag(ctx context.Context, from, to string) error {
	source, err := fullName(from)
	if err != nil {
		return err
	}
	target, err := fullName(to)
	if err != nil {
		return err
	}
	store := e.api.ImageService()
	img, err := store.Get(ctx, source)
	if err != nil {
		return err
	}
	_, err = store.Create(ctx, ctrdimages.Image{Name: target, Target: img.Target})
	if cerrdefs.IsAlreadyExists(err) {
		_, err = store.Update(ctx, ctrdimages.Image{Name: target, Target: img.Target}, "target")
	}
	return err
}

func (e containerdEngine) pull(ctx context.Context, ref string, progress func()) error {
	name, err := fullName(ref)
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		e.watch(watching, progress)
	}()
	defer func() { stop(); <-watched }()
	_, err = e.api.Pull(ctx, name, ctrd.WithPullUnpack)
	return err
}

// watch calls progress when the number of fetched bytes changes.
func (e containerdEngine) watch(ctx context.Context, progress func()) {
	var last int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(progressEvery):
		}
		under, err := e.api.ContentStore().ListStatuses(ctx)
		if err != nil {
			continue // the pull reports the error
		}
		var sum int64
		for _, s := range under {
			sum += s.Offset
		}
		if sum != last {
			progress()
		}
		last = sum
	}
}

// fullName returns containerd's name of an image.
func fullName(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", err
	}
	return named.String(), nil
}
