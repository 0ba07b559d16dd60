package images

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	ctrdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	dockerclient "github.com/docker/docker/client"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

// onEngines runs a test on Docker and in a containerd namespace.
func onEngines(t *testing.T, namespace string, test func(t *testing.T, e Engine)) {
	t.Helper()
	t.Parallel()
	docker, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	must(t, err)
	t.Cleanup(func() { must(t, docker.Close()) })
	containerd, err := ctrd.New("/run/containerd/containerd.sock", ctrd.WithDefaultNamespace(namespace), ctrd.WithTimeout(2*time.Minute))
	must(t, err)
	t.Cleanup(func() { must(t, containerd.Close()) })
	if namespace != "workcell" {
		t.Cleanup(func() { removeNamespace(t, containerd, namespace) })
	}
	for name, e := range map[string]Engine{"docker": Docker(docker), "containerd": Containerd(containerd)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, e)
		})
	}
}

// TestImagesWork: the test images contain the programs suggested by their names, for a user without an account or a
// network.
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
		"workcell/net:12": {
			"curl --version | cut -d' ' -f1 | head -n1":    "curl",
			"git --version | cut -d' ' -f1":                "git",
			"command -v ssh":                               "/usr/bin/ssh", // ssh itself needs a user with a name
			"apt-get --version | cut -d' ' -f1 | head -n1": "apt",
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

// TestEnsureFindsWhatIsThere: existing images are neither built nor loaded. The cache is empty, so a build would take
// long and fail without package lists.
func TestEnsureFindsWhatIsThere(t *testing.T) {
	onEngines(t, "workcell", func(t *testing.T, e Engine) {
		list, err := TestImages(runtime.GOARCH)
		must(t, err)
		for _, im := range list {
			how, err := NewKeeper(e, NewBuilder(t.TempDir(), nil), nil).EnsureTest(t.Context(), im, false)
			if how != Present || err != nil {
				t.Errorf("%s: %s, %v", im.Ref, how, err)
			}
		}
	})
}

// TestStandIn: a cached layer becomes a reproducible image, which is loaded with labels. An official image under the
// same name is kept.
func TestStandIn(t *testing.T) {
	onEngines(t, "workcell-test-"+strings.ToLower(rand.Text()), func(t *testing.T, e Engine) {
		ctx := t.Context()
		im := Image{
			Ref: "workcell/images-test:stand-in", StandIn: true, Cmd: []string{"true"}, Env: []string{"A=b"},
			Layers: []Layer{{Name: "links", Links: map[string]string{"etc/x": "y"}, Packages: []string{"base-files"}}},
		}
		im.Official = im.Ref
		builder := NewBuilder(cachedLayer(t, im), nil)
		t.Cleanup(func() {
			if _, ok := e.(dockerEngine); ok {
				must(t, exec.Command("docker", "image", "rm", "--force", im.Ref).Run())
			}
		})
		var written [2]bytes.Buffer
		for i := range written {
			img, err := builder.Build(ctx, im)
			must(t, err)
			must(t, Write(&written[i], im.Ref, img))
		}
		if !bytes.Equal(written[0].Bytes(), written[1].Bytes()) {
			t.Error("the archive differs when written twice")
		}
		keeper := NewKeeper(e, builder, nil)
		keeper.offline = errors.New("no registry in this test")
		for _, want := range []Outcome{Built, Present} {
			how, standIn, err := keeper.EnsureOfficial(ctx, im, false)
			if how != want || !standIn || err != nil {
				t.Fatalf("%s, stand-in %v, %v; want %s", how, standIn, err, want)
			}
		}
		labels, _, err := e.find(ctx, im.Ref)
		must(t, err)
		if diff := cmp.Diff(map[string]string{LabelStandIn: "true", LabelRecipe: im.Hash(runtime.GOARCH)}, labels); diff != "" {
			t.Errorf("labels (-want +got)\n%s", diff)
		}
		published := im
		published.StandIn = false
		official, err := builder.Build(ctx, published)
		must(t, err)
		must(t, keeper.load(ctx, im.Ref, official))
		if how, standIn, err := keeper.EnsureOfficial(ctx, im, true); how != Present || standIn || err != nil {
			t.Errorf("an official image: %s, stand-in %v, %v", how, standIn, err)
		}
	})
}

// TestPullGivesUp: a registry that accepts connections and never answers causes a limited delay, and the next image is
// not tried.
func TestPullGivesUp(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // connections are never accepted
	must(t, err)
	defer ln.Close()
	docker, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	must(t, err)
	defer docker.Close() //nolint:errcheck // only asked
	keeper := NewKeeper(Docker(docker), NewBuilder(t.TempDir(), nil), nil)
	keeper.silence = 300 * time.Millisecond
	ref := ln.Addr().String() + "/silent:1"
	if err := keeper.pull(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "no progress") {
		t.Errorf("a silent registry: %v", err)
	}
	if err := keeper.pull(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "not tried") {
		t.Errorf("the second pull: %v", err)
	}
}

// cachedLayer returns a cache with the image's only layer.
func cachedLayer(t *testing.T, im Image) string {
	t.Helper()
	dir := t.TempDir()
	file := layerFile(dir, im.Layers)
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	var body bytes.Buffer
	l := newLayerWriter(&body, nil)
	must(t, errors.Join(l.addLink("etc/x", "y"), l.tw.Close()))
	must(t, os.WriteFile(file, body.Bytes(), 0o644))
	return dir
}

// TestIntegrity: a file with a digest other than the pinned digest is an error.
func TestIntegrity(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "thing.tgz")
	must(t, os.WriteFile(file, []byte("thing"), 0o600))
	sum := sha512.Sum512([]byte("thing"))
	must(t, checkIntegrity(file, "sha512-"+base64.StdEncoding.EncodeToString(sum[:])))
	if err := checkIntegrity(file, "sha512-AAAA"); !errors.Is(err, ErrIntegrity) {
		t.Errorf("another digest: %v, want ErrIntegrity", err)
	}
}

// removeNamespace removes a namespace with all objects of a test.
func removeNamespace(t *testing.T, client *ctrd.Client, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), namespace), 5*time.Minute)
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
	// The contents of the images may still be garbage-collected.
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
