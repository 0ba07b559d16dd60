package backendtest

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
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/workcell-dev/workcell/backend"
)

// Images contains the suite's functions for an engine with images.
type Images struct {
	// New is like Harness.New, with options.
	New func(testing.TB, ImageOptions) backend.SandboxBackend
	// Save writes an image of the engine in the format of "docker save".
	Save func(ctx context.Context, ref string, w io.Writer) error
	// Load loads such an archive, for any platform.
	Load func(ctx context.Context, archive io.Reader) error
	// Remove deletes every tag and digest of a repository. repo is the full form. Remove does nothing if the repository
	// does not exist.
	Remove func(ctx context.Context, repo string) error
}

// ImageOptions are options of drivers. The zero value of a field is the driver's default.
type ImageOptions struct {
	ConfigDir   string               // directory of Docker's config.json
	Policy      *backend.ImagePolicy // policy for allowed images
	PullTimeout time.Duration        // maximum time of one pull
}

// testRegistry is a real registry on loopback, from which the engine pulls.
type testRegistry struct {
	host string // "127.0.0.1:port"
	hook atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	hits atomic.Int64 // number of manifest requests of the engine
	user string       // empty if the registry requires no password
}

const registryPassword = "canary-s3cret-pw"

// on sets a function to run first for every request. If it returns false, it has already answered the request.
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

// basic adds the registry's user and password to requests.
type basic struct{ user string }

func (b basic) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.user != "" {
		r = r.Clone(r.Context())
		r.SetBasicAuth(b.user, registryPassword)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// push uploads an image and returns its reference and digest. The end of the test removes the engine's copy, if any.
func (r *testRegistry) push(t *testing.T, images *Images, repo string, img v1.Image) (ref string, digest v1.Hash) {
	t.Helper()
	ref = r.host + "/" + repo
	tag, err := name.NewTag(ref, name.Insecure)
	must(t, err)
	must(t, remote.Write(tag, img, remote.WithTransport(basic{r.user})))
	digest, err = img.Digest()
	must(t, err)
	t.Cleanup(func() { must(t, images.Remove(context.Background(), tag.Context().Name())) })
	return ref, digest
}

// Entry is a file, directory, or link in a test image. The name of a directory ends with "/".
type Entry struct {
	Name, Link, Data string
	Mode             int64 // zero is 0755
	Pipe             bool
}

// BuildImage returns an image with one layer for the platform of this host.
func BuildImage(t testing.TB, cfg v1.Config, entries ...Entry) v1.Image {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range append([]Entry{{Name: "etc/"}}, entries...) {
		h := &tar.Header{Name: e.Name, Mode: e.Mode, Linkname: e.Link, Size: int64(len(e.Data)), Typeflag: tar.TypeReg}
		switch {
		case e.Pipe:
			h.Typeflag = tar.TypeFifo
		case e.Link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(e.Name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		must(t, tw.WriteHeader(h))
		must(t, second(io.WriteString(tw, e.Data)))
	}
	must(t, tw.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil },
		tarball.WithMediaType(types.DockerLayer))
	must(t, err)
	img, err := mutate.AppendLayers(empty.Image, layer)
	must(t, err)
	file, err := img.ConfigFile()
	must(t, err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, cfg
	img, err = mutate.ConfigFile(img, file)
	must(t, err)
	return img
}

// dockerConfig writes a Docker configuration with credentials for the registry.
func (r *testRegistry) dockerConfig(t *testing.T, password string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	auth := base64.StdEncoding.EncodeToString([]byte(r.user + ":" + password))
	cfg := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, r.host, auth)
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(cfg), 0o600))
	return dir
}

// Unique makes an image unique to prevent its use by other tests.
func Unique() Entry { return Entry{Name: "unique", Data: rand.Text()} }

// Put loads an image into the engine under a unique name. The end of the test removes it.
func (im *Images) Put(t *testing.T, img v1.Image) (ref string) {
	t.Helper()
	repo := "workcelltest/" + freshInstance()
	tag, err := name.NewTag(repo + ":1")
	must(t, err)
	var buf bytes.Buffer
	must(t, tarball.Write(tag, img, &buf))
	must(t, im.Load(t.Context(), &buf))
	t.Cleanup(func() { must(t, im.Remove(context.Background(), "docker.io/"+repo)) })
	return repo + ":1"
}

// exported returns an unmodified image of the engine. The layers are not compressed, because compression would take the
// most time.
func (im *Images) exported(t *testing.T, ref string) v1.Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(path)
	must(t, err)
	must(t, im.Save(t.Context(), ref, f))
	must(t, f.Close())
	saved, err := tarball.ImageFromPath(path, nil) // the archive contains only this image
	must(t, err)
	config, err := saved.ConfigFile()
	must(t, err)
	layers, err := saved.Layers()
	must(t, err)
	img := empty.Image
	for _, l := range layers {
		r, err := l.Uncompressed()
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, errors.Join(err, r.Close()))
		img, err = mutate.AppendLayers(img, static.NewLayer(data, types.DockerUncompressedLayer))
		must(t, err)
	}
	file, err := img.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.RootFS, config.History = file.RootFS, file.History
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	return img
}
