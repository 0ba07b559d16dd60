package images

import (
	"context"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// WriteTestLayer writes a layer from package archives that are given as tar
// streams.
func WriteTestLayer(w io.Writer, omit []string, archives ...io.Reader) error {
	l := newLayerWriter(w, omit)
	if err := l.startBase(); err != nil {
		return err
	}
	for _, a := range archives {
		if err := l.addPackage(a); err != nil {
			return err
		}
	}
	if err := l.finishBase(); err != nil {
		return err
	}
	return l.tw.Close()
}

// WriteTestTarball writes a layer from one npm tarball.
func WriteTestTarball(w io.Writer, file string, p NPMPackage) error {
	l := newLayerWriter(w, nil)
	if err := l.addTarball(file, p); err != nil {
		return err
	}
	return l.tw.Close()
}

// Download fetches a tarball over HTTP as on a machine without npm.
func Download(ctx context.Context, registry string, p NPMPackage, file string) error {
	if err := download(ctx, tarballURL(registry, p), file); err != nil {
		return err
	}
	return checkIntegrity(file, p.Integrity)
}

// ParseURIs parses apt's list of files.
var ParseURIs = parseURIs

// Pull pulls as Ensure does, giving up after silence.
func (k *Keeper) Pull(ctx context.Context, ref string, silence time.Duration) error {
	k.silence = silence
	return k.pull(ctx, ref)
}

// SetOffline makes pulls fail as after a first failure.
func (k *Keeper) SetOffline(err error) { k.offline = err }

// LayerFile is where a cache keeps the top layer of a stack.
func LayerFile(cache string, stack []Layer) string {
	return layerFile(cache, stack)
}

// LoadTestImage brings an image into an engine as a Keeper does.
func LoadTestImage(ctx context.Context, e Engine, ref string, img v1.Image) error {
	return NewKeeper(e, nil, nil).load(ctx, ref, img)
}
