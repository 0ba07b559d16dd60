package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	imagetypes "github.com/docker/docker/api/types/image"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// testRegistry is a real registry on loopback, from which the engine pulls.
type testRegistry struct {
	host string // "127.0.0.1:port"
	hook atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	hits atomic.Int64 // manifests asked for by the engine
	user string       // empty when the registry asks for no password
}

const registryPassword = "canary-s3cret-pw"

// on sets what sees every request first; when it gives false the request is answered already.
func (r *testRegistry) on(f func(http.ResponseWriter, *http.Request) bool) { r.hook.Store(&f) }

func newRegistry(t *testing.T, user string) *testRegistry {
	t.Helper()
	r := &testRegistry{user: user}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if r.user != "" {
			if u, p, ok := q.BasicAuth(); !ok || u != r.user || p != registryPassword {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
				return
			}
		}
		if f := r.hook.Load(); f != nil && !(*f)(w, q) {
			return
		}
		if strings.Contains(q.URL.Path, "/manifests/") {
			r.hits.Add(1)
		}
		inner.ServeHTTP(w, q)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// basic puts the registry's password into requests.
type basic struct{ user string }

func (b basic) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.user != "" {
		r = r.Clone(r.Context())
		r.SetBasicAuth(b.user, registryPassword)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// push stores an image and gives its reference and digest. The engine's copy, should it get one, goes with the test.
func (r *testRegistry) push(t *testing.T, repo string, img v1.Image) (ref string, digest v1.Hash) {
	t.Helper()
	ref = r.host + "/" + repo
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img, remote.WithTransport(basic{r.user})); err != nil {
		t.Fatal(err)
	}
	digest, err = img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeImages(t, tag.Context().Name()) })
	return ref, digest
}

// removeImages deletes every tag and digest of a repository from the engine.
func removeImages(t *testing.T, repo string) {
	t.Helper()
	api := engineAPI(t)
	list, err := api.ImageList(context.Background(), imagetypes.ListOptions{})
	if err != nil {
		t.Error(err)
	}
	for _, i := range list {
		for _, ref := range append(i.RepoTags, i.RepoDigests...) {
			if strings.HasPrefix(ref, repo+":") || strings.HasPrefix(ref, repo+"@") {
				_, _ = api.ImageRemove(context.Background(), ref, imagetypes.RemoveOptions{Force: true}) // another name may have taken it along
			}
		}
	}
}

// removeLater deletes images of the engine at the end of the test.
func removeLater(t *testing.T, refs ...string) {
	t.Helper()
	api := engineAPI(t)
	t.Cleanup(func() {
		for _, ref := range refs {
			if _, err := api.ImageRemove(context.Background(), ref, imagetypes.RemoveOptions{Force: true}); err != nil {
				t.Error(err)
			}
		}
	})
}

// entry is a file, directory ("/" at the end of the name) or link of a test image.
type entry struct {
	name, link, data string
	mode             int64
}

// buildImage makes an image of one layer.
func buildImage(t *testing.T, cfg v1.Config, entries ...entry) v1.Image {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range append([]entry{{name: "etc/"}}, entries...) {
		h := &tar.Header{Name: e.name, Mode: e.mode, Linkname: e.link, Size: int64(len(e.data)), Typeflag: tar.TypeReg}
		switch {
		case e.link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil },
		tarball.WithMediaType(types.DockerLayer))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", engineArch(t), cfg
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// loadImage puts an image into the engine under a name of its own, which goes with the test.
func loadImage(t *testing.T, img v1.Image) (ref string) {
	t.Helper()
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(fmt.Sprintf("workcelltest/%s:%s", instance, digest.Hex[:20]))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tarball.Write(tag, img, &buf); err != nil {
		t.Fatal(err)
	}
	api := engineAPI(t)
	res, err := api.ImageLoad(t.Context(), &buf)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	ref = strings.TrimPrefix(tag.Name(), "index.docker.io/")
	info, err := api.ImageInspect(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	removeLater(t, info.ID) // with every name it has by then
	return ref
}

func engineArch(t *testing.T) string {
	t.Helper()
	info, err := engineAPI(t).ServerVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.Arch
}

// dockerConfig writes a Docker configuration with credentials for the registry.
func (r *testRegistry) dockerConfig(t *testing.T, password string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	auth := base64.StdEncoding.EncodeToString([]byte(r.user + ":" + password))
	cfg := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, r.host, auth)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
