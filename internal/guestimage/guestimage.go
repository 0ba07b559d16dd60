// Package guestimage builds the image with the guest agent. Pods need the image, because no engine copies files into
// their containers.
package guestimage

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// Reference returns the usual name of the image, for example workcell/guest:VERSION.
func Reference() string { return "workcell/guest:" + embed.Version() }

// Image returns the image for an architecture. It contains only the guest agent and the other files in [embed.Dir]. The
// same version produces the same image on every host.
func Image(arch string) (v1.Image, error) {
	guest, err := embed.Binary(arch)
	if err != nil {
		return nil, err
	}
	layer, err := archive(guest)
	if err != nil {
		return nil, fmt.Errorf("guest image: %w", err)
	}
	img := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	blob, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err == nil {
		img, err = mutate.Append(img, mutate.Addendum{Layer: blob, History: v1.History{CreatedBy: "workcell guest image"}})
	}
	if err != nil {
		return nil, fmt.Errorf("guest image: %w", err)
	}
	return mutate.ConfigFile(img, withConfig(img, arch))
}

// withConfig returns the configuration of the image.
func withConfig(img v1.Image, arch string) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil { // the image was just created
		c = &v1.ConfigFile{}
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", arch
	c.Config = v1.Config{Entrypoint: []string{embed.Path}, User: "65532:65532", Labels: map[string]string{
		"org.opencontainers.image.title": "Workcell guest", "org.opencontainers.image.version": embed.Version(),
	}}
	return c
}

// archive returns the files as a layer. All users can read the guest agent, because the starting user must be able to
// copy it.
func archive(guest []byte) ([]byte, error) {
	files, err := embed.Files(guest)
	if err != nil {
		return nil, err
	}
	for i := range files {
		files[i].Path = strings.TrimPrefix(path.Join(embed.Dir, files[i].Path), "/")
		files[i].Mode |= 0o444
	}
	var buf bytes.Buffer
	err = embed.Tar(&buf, files...)
	return buf.Bytes(), err
}

// Write writes the image in the format of `docker save`, under the name ref. `docker load`, `ctr images import`, and
// `kind load` can read it.
func Write(w io.Writer, ref, arch string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	img, err := Image(arch)
	if err != nil {
		return err
	}
	return tarball.Write(tag, img, w)
}
