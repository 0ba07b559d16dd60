//go:build linux

package containerd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images/archive"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
)

func imageStore(t testing.TB) *backendtest.Images {
	api := engineAPI(t)
	return &backendtest.Images{
		New: func(t testing.TB, o backendtest.ImageOptions) backend.SandboxBackend {
			return newBackend(t, func(c *containerd.Options) {
				c.ConfigDir, c.Images, c.PullTimeout = o.ConfigDir, o.Policy, o.PullTimeout
			})
		},
		Save: func(ctx context.Context, ref string, w io.Writer) error {
			full, err := backend.NormalizeImage(ref)
			if err != nil {
				return err
			}
			return api.Export(ctx, w, archive.WithImage(api.ImageService(), full))
		},
		Load: func(ctx context.Context, r io.Reader) error {
			_, err := api.Import(ctx, r, ctrd.WithAllPlatforms(true))
			return err
		},
		Remove: func(ctx context.Context, repo string) error { return removeImages(ctx, api, repo) },
	}
}

// removeImages deletes every tag and digest of a repository from the engine.
func removeImages(ctx context.Context, api *ctrd.Client, repo string) error {
	list, err := api.ImageService().List(ctx)
	for _, i := range list {
		if strings.HasPrefix(i.Name, repo+":") || strings.HasPrefix(i.Name, repo+"@") {
			if gone := api.ImageService().Delete(ctx, i.Name); !cerrdefs.IsNotFound(gone) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}

// archived writes an image as "docker save" does, under a name of its own, which goes with the test.
func archived(t *testing.T, img v1.Image) (ref string, data *bytes.Buffer) {
	t.Helper()
	repo := "workcelltest/" + strings.TrimPrefix(newSpec().ID, "sbx_")
	tag, err := name.NewTag(repo + ":1")
	if err != nil {
		t.Fatal(err)
	}
	data = &bytes.Buffer{}
	if err := tarball.Write(tag, img, data); err != nil {
		t.Fatal(err)
	}
	api := engineAPI(t)
	t.Cleanup(func() {
		if err := removeImages(context.Background(), api, "docker.io/"+repo); err != nil {
			t.Error(err)
		}
	})
	return repo + ":1", data
}

func TestImport(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	img := backendtest.BuildImage(t, v1.Config{Env: []string{"A=b"}}, backendtest.Unique())
	ref, data := archived(t, img)
	if refs, err := b.ImportImage(t.Context(), data); err != nil || len(refs) != 1 || refs[0] != ref {
		t.Fatalf("ImportImage: %q, %v, want %s", refs, err, ref)
	}
	spec := newSpec()
	spec.Image = ref
	if info := backendtest.Create(t, b, spec); len(info.ImageEnv) != 1 {
		t.Errorf("environment %q", info.ImageEnv)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Architecture = "s390x"
	foreign, err := mutate.ConfigFile(img, file)
	if err != nil {
		t.Fatal(err)
	}
	_, data = archived(t, foreign)
	if refs, err := b.ImportImage(t.Context(), data); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("an image for another machine: %q, %v, want ErrUnsupported", refs, err)
	}
}

func TestImportRefused(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	for _, junk := range []string{"", "not an archive", strings.Repeat("\x00", 10240)} {
		if refs, err := b.ImportImage(t.Context(), strings.NewReader(junk)); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%.10q: %q, %v, want ErrInvalid", junk, refs, err)
		}
	}
	_, data := archived(t, backendtest.BuildImage(t, v1.Config{}, backendtest.Unique()))
	data.Truncate(data.Len() / 2)
	if refs, err := b.ImportImage(t.Context(), data); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("half an archive: %q, %v, want ErrInvalid", refs, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.ImportImage(ctx, strings.NewReader("")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
