package containerd_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/workcell-dev/workcell/backend"
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
	api, err := newAPI() // the test's own client may be closed by now
	if err != nil {
		t.Error(err)
		return
	}
	defer api.Close()
	list, err := api.ImageService().List(context.Background())
	if err != nil {
		t.Error(err)
	}
	for _, i := range list {
		if strings.HasPrefix(i.Name, repo+":") || strings.HasPrefix(i.Name, repo+"@") {
			if err := api.ImageService().Delete(context.Background(), i.Name); err != nil && !cerrdefs.IsNotFound(err) {
				t.Error(err)
			}
		}
	}
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
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, cfg
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// archived writes an image as "docker save" does, under a name of its own, which goes with the test.
func archived(t *testing.T, img v1.Image) (ref string, data *bytes.Buffer) {
	t.Helper()
	tag, err := name.NewTag(fmt.Sprintf("workcelltest/%s/%s:1", instance, strings.ToLower(rand.Text())))
	if err != nil {
		t.Fatal(err)
	}
	data = &bytes.Buffer{}
	if err := tarball.Write(tag, img, data); err != nil {
		t.Fatal(err)
	}
	ref = strings.TrimPrefix(tag.Name(), "index.docker.io/")
	t.Cleanup(func() { removeImages(t, "docker.io/"+strings.TrimSuffix(ref, ":1")) })
	return ref, data
}

// loadImage imports an image.
func loadImage(t *testing.T, img v1.Image) (ref string) {
	t.Helper()
	ref, data := archived(t, img)
	refs, err := newBackend(t, nil).ImportImage(t.Context(), data)
	if err != nil || len(refs) != 1 || refs[0] != ref {
		t.Fatalf("ImportImage: %q, %v, want %s", refs, err, ref)
	}
	return ref
}

// loadAnyImage imports an image for whatever machine, as containerd's own tools can.
func loadAnyImage(t *testing.T, img v1.Image) (ref string) {
	t.Helper()
	ref, data := archived(t, img)
	if _, err := engineAPI(t).Import(t.Context(), data, ctrd.WithAllPlatforms(true)); err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestImport(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	img := buildImage(t, v1.Config{Env: []string{"A=b"}}, unique())
	spec := newSpec()
	spec.Image = loadImage(t, img)
	if info := create(t, b, spec); len(info.ImageEnv) != 1 {
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
	_, data := archived(t, foreign)
	if refs, err := b.ImportImage(t.Context(), data); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("an image for another machine: %q, %v, want ErrUnsupported", refs, err)
	}
	for _, junk := range []string{"", "not an archive", strings.Repeat("\x00", 10240)} {
		if refs, err := b.ImportImage(t.Context(), strings.NewReader(junk)); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%.10q: %q, %v, want ErrInvalid", junk, refs, err)
		}
	}
	_, data = archived(t, buildImage(t, v1.Config{}, unique()))
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
