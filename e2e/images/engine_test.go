package images_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	dockerclient "github.com/docker/docker/client"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/workcell-dev/workcell/e2e/images"
)

func dockerClient(t *testing.T) *dockerclient.Client {
	t.Helper()
	c, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
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

// The images that the tests of the whole project stand on do what their names
// promise, for a user that has no account, without a network.
func TestImagesWork(t *testing.T) {
	t.Parallel()
	for ref, checks := range map[string]map[string]string{
		"workcell/debian:12": {
			"cat /etc/debian_version | cut -d. -f1": "12",
			"bash -c 'echo $LANG'":                  "C.UTF-8",
			"echo a b | awk '{print $2}'":           "b",
			"stat -c %a /tmp":                       "1777",
		},
		"workcell/python:3.11": {
			"python -c 'import sys; print(sys.version_info[:2])'":                                         "(3, 11)",
			"python3 -c 'import ssl; print(ssl.create_default_context().cert_store_stats()[\"x509\"]>0)'": "True",
			"python -c 'import sqlite3, lzma, ctypes, venv; print(1)'":                                    "1",
			"pip --version | cut -d' ' -f1":                                                               "pip",
		},
		"workcell/node:22": {
			"node --version | cut -d. -f1": "v22",
			"npm --version | cut -d. -f1":  "10",
			"node -p 'require(\"node:crypto\").createHash(\"sha1\").update(\"\").digest(\"hex\").slice(0,6)'": "da39a3",
		},
	} {
		t.Run(ref, func(t *testing.T) {
			t.Parallel()
			var script, want strings.Builder
			for cmd, out := range checks {
				script.WriteString(cmd + "\n")
				want.WriteString(out + "\n")
			}
			out, err := exec.Command("docker", "run", "--rm", "--network=none", "--user=1000:1000", "--read-only",
				"--tmpfs=/tmp", "--env=HOME=/tmp", "--label=dev.workcell.test=images", ref, "sh", "-c", script.String()).CombinedOutput()
			if diff := cmp.Diff(want.String(), string(out)); diff != "" || err != nil {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
		})
	}
}

func TestEnsureFindsWhatIsThere(t *testing.T) {
	t.Parallel()
	docker := dockerClient(t)
	builder := images.NewBuilder(t.TempDir(), nil)
	list, err := images.TestImages(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	for _, im := range list {
		// The empty cache shows that nothing is built: that would take long
		// and fail without package lists.
		how, err := images.NewKeeper(images.Docker(docker), builder, nil).EnsureTest(context.Background(), im, false)
		if how != images.Present || err != nil {
			t.Errorf("%s: %s, %v", im.Ref, how, err)
		}
	}
}

// A layer in the cache becomes an image that is written the same way twice,
// is loaded, and carries the labels that tell it apart.
func TestStandInIsLabelled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	docker := dockerClient(t)
	ref := "workcell/images-test:stand-in"
	im := images.Image{
		Ref: ref, Official: ref, StandIn: true, Cmd: []string{"true"}, Env: []string{"A=b"},
		Layers: []images.Layer{{Name: "links", Links: map[string]string{"etc/x": "y"}, Packages: []string{"base-files"}}},
	}
	builder := images.NewBuilder(cachedLayer(t, im), nil)
	t.Cleanup(func() { removeImage(t, docker, ref) })

	var first, second bytes.Buffer
	for _, buf := range []*bytes.Buffer{&first, &second} {
		img, err := builder.Build(ctx, im)
		if err != nil {
			t.Fatal(err)
		}
		if err := images.Write(buf, ref, img); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the archive differs when written twice")
	}

	keeper := images.NewKeeper(images.Docker(docker), builder, nil)
	keeper.SetOffline(errors.New("no registry in this test"))
	for _, want := range []images.Outcome{images.Built, images.Present} {
		how, standIn, err := keeper.EnsureOfficial(ctx, im, false)
		if how != want || !standIn || err != nil {
			t.Fatalf("%s, stand-in %v, %v; want %s", how, standIn, err, want)
		}
	}
	info, err := docker.ImageInspect(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{images.LabelStandIn: "true", images.LabelRecipe: im.Hash(runtime.GOARCH)}
	if diff := cmp.Diff(want, info.Config.Labels); diff != "" {
		t.Errorf("labels (-want +got)\n%s", diff)
	}
}

// An image that is already there under the official name is never replaced.
func TestOfficialImageIsLeftAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	docker := dockerClient(t)
	ref := "workcell/images-test:official"
	var buf bytes.Buffer
	if err := images.Write(&buf, ref, empty.Image); err != nil {
		t.Fatal(err)
	}
	resp, err := docker.ImageLoad(ctx, &buf, dockerclient.ImageLoadWithQuiet(true))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	t.Cleanup(func() { removeImage(t, docker, ref) })
	var sink bytes.Buffer
	if _, err := sink.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	im := images.Image{Ref: ref, Official: ref, StandIn: true}
	how, standIn, err := images.NewKeeper(images.Docker(docker), images.NewBuilder(t.TempDir(), nil), nil).EnsureOfficial(ctx, im, true)
	if how != images.Present || standIn || err != nil {
		t.Errorf("%s, stand-in %v, %v", how, standIn, err)
	}
}

// A registry that accepts connections and says nothing does not hold us up,
// and the next image is not tried on it.
func TestPullGivesUp(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan net.Conn, 16)
	go func() {
		defer close(accepted)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	keeper := images.NewKeeper(images.Docker(dockerClient(t)), images.NewBuilder(t.TempDir(), nil), nil)
	ref := ln.Addr().String() + "/silent:1"
	err = keeper.Pull(context.Background(), ref, 300*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "no progress") {
		t.Errorf("a silent registry: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := keeper.Pull(ctx, ref, time.Hour); err == nil || !strings.Contains(err.Error(), "not tried") {
		t.Errorf("the second pull: %v", err)
	}
	_ = ln.Close() // ends the accept loop, which the range below waits for
	for c := range accepted {
		_ = c.Close() // the engine's end is gone already
	}
}

// cachedLayer returns a cache that holds the image's only layer.
func cachedLayer(t *testing.T, im images.Image) string {
	t.Helper()
	dir := t.TempDir()
	file := images.LayerFile(dir, im.Layers)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	body := archive(t, time.Unix(0, 0), entry{"etc/", "", 0o755}, entry{"etc/x", "->y", 0o777})
	if err := os.WriteFile(file, body.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := tarball.LayerFromFile(file); err != nil {
		t.Fatal(err)
	}
	return dir
}

func removeImage(t *testing.T, docker *dockerclient.Client, ref string) {
	t.Helper()
	if err := exec.Command("docker", "image", "rm", "--force", ref).Run(); err != nil {
		t.Error(err)
	}
	if _, err := docker.ImageInspect(context.Background(), ref); !cerrdefs.IsNotFound(err) {
		t.Errorf("%s is still there: %v", ref, err)
	}
}
