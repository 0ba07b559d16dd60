package guestimage_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guestimage"
)

var must = checktest.Must

// TestWrite reads the archive in the same way as an engine. The archive must contain the exact content of every file of
// the guest agent, and be the same each time.
func TestWrite(t *testing.T) {
	t.Parallel()
	var one, two bytes.Buffer
	for _, w := range []io.Writer{&one, &two} {
		must(t, guestimage.Write(w, guestimage.Reference(), "amd64"))
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two images of one version differ")
	}
	tag, err := name.NewTag(guestimage.Reference())
	must(t, err)
	img, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(one.Bytes())), nil }, &tag)
	must(t, err)
	guest, err := embed.Binary("amd64")
	must(t, err)
	files, err := embed.Files(guest)
	must(t, err)
	want := map[string]string{}
	for _, f := range files {
		want[strings.TrimPrefix(embed.Dir, "/")+"/"+f.Path] = string(f.Data)
	}
	contents := mutate.Extract(img)
	defer contents.Close() //nolint:errcheck // only read
	for r := tar.NewReader(contents); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if h.Typeflag == tar.TypeDir {
			continue
		}
		data, err := io.ReadAll(r)
		must(t, err)
		if data := string(data) + h.Linkname; data != want[h.Name] {
			t.Errorf("%s has %d bytes, want %d", h.Name, len(data), len(want[h.Name]))
		}
		delete(want, h.Name)
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}
