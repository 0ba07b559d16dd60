package images_test

import (
	"context"
	"crypto/rand"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	ctrdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/e2e/images"
)

// containerdClient gives a client of the engine's containerd.
func containerdClient(t *testing.T, namespace string) *ctrd.Client {
	t.Helper()
	c, err := ctrd.New("/run/containerd/containerd.sock", ctrd.WithDefaultNamespace(namespace), ctrd.WithTimeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestContainerdHasTheTestImages(t *testing.T) {
	t.Parallel()
	engine := images.Containerd(containerdClient(t, "workcell"))
	list, err := images.TestImages(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	for _, im := range list {
		// The empty cache shows that nothing is built.
		how, err := images.NewKeeper(engine, images.NewBuilder(t.TempDir(), nil), nil).EnsureTest(context.Background(), im, false)
		if how != images.Present || err != nil {
			t.Errorf("%s: %s, %v", im.Ref, how, err)
		}
	}
}

// A stand-in gets into a containerd with its labels, is found there, and an
// official image in its place is left alone.
func TestContainerdStandIn(t *testing.T) {
	t.Parallel()
	namespace := "workcell-test-" + strings.ToLower(rand.Text())
	client := containerdClient(t, namespace)
	ctx := namespaces.WithNamespace(context.Background(), namespace)
	t.Cleanup(func() { removeNamespace(t, client, namespace) })
	engine := images.Containerd(client)
	im := images.Image{
		Ref: "workcell/images-test:stand-in", StandIn: true, Cmd: []string{"true"},
		Layers: []images.Layer{{Name: "links", Links: map[string]string{"etc/x": "y"}, Packages: []string{"base-files"}}},
	}
	im.Official = im.Ref
	builder := images.NewBuilder(cachedLayer(t, im), nil)
	keeper := images.NewKeeper(engine, builder, nil)
	keeper.SetOffline(errors.New("no registry in this test"))
	for _, want := range []images.Outcome{images.Built, images.Present} {
		how, standIn, err := keeper.EnsureOfficial(ctx, im, false)
		if how != want || !standIn || err != nil {
			t.Fatalf("%s, stand-in %v, %v; want %s", how, standIn, err, want)
		}
	}
	img, err := client.GetImage(ctx, "docker.io/"+im.Ref)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := img.Spec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{images.LabelStandIn: "true", images.LabelRecipe: im.Hash(runtime.GOARCH)}
	if diff := cmp.Diff(want, spec.Config.Labels); diff != "" {
		t.Errorf("labels (-want +got)\n%s", diff)
	}

	published := im
	published.StandIn = false
	official, err := builder.Build(ctx, published)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.LoadTestImage(ctx, engine, im.Ref, official); err != nil {
		t.Fatal(err)
	}
	if how, standIn, err := keeper.EnsureOfficial(ctx, im, true); how != images.Present || standIn || err != nil {
		t.Errorf("an official image: %s, stand-in %v, %v", how, standIn, err)
	}
}

// removeNamespace removes a namespace with all that a test put into it.
func removeNamespace(t *testing.T, client *ctrd.Client, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), namespace), time.Minute)
	defer cancel()
	list, err := client.ListImages(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, img := range list {
		if err := client.ImageService().Delete(ctx, img.Name(), ctrdimages.SynchronousDelete()); err != nil {
			t.Error(err)
		}
	}
	// What the images held may still be under collection.
	for {
		err := client.NamespaceService().Delete(ctx, namespace)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("namespace %s stays: %v", namespace, err)
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}
