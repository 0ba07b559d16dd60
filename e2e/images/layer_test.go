package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// entry is one entry of an archive; a content of "->x" makes a symbolic link
// to x and "=>x" a hard link.
type entry struct {
	name, content string
	mode          int64
}

func archive(t *testing.T, when time.Time, entries ...entry) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, ModTime: when, Uname: "builder"}
		body := e.content
		switch {
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		case strings.HasPrefix(body, "->"):
			h.Typeflag, h.Linkname, body = tar.TypeSymlink, body[2:], ""
		case strings.HasPrefix(body, "=>"):
			h.Typeflag, h.Linkname, body = tar.TypeLink, body[2:], ""
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(body))
		}
		must(t, tw.WriteHeader(h))
		if _, err := io.WriteString(tw, body); err != nil {
			t.Fatal(err)
		}
	}
	must(t, tw.Close())
	return &buf
}

// listed returns "name mode content" of every entry.
func listed(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	out := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := out[h.Name]; twice {
			t.Errorf("%s is in the layer twice", h.Name)
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			body = []byte("->" + h.Linkname)
		case tar.TypeLink:
			body = []byte("=>" + h.Linkname)
		}
		out[h.Name] = fmt.Sprintf("%o %s", h.Mode, body)
	}
}

// writeTestLayer writes a layer from package archives that are given as tar streams.
func writeTestLayer(w io.Writer, omit []string, archives ...io.Reader) error {
	l := newLayerWriter(w, omit)
	if err := l.startBase(); err != nil {
		return err
	}
	for _, a := range archives {
		if err := l.addPackage(a); err != nil {
			return err
		}
	}
	return errors.Join(l.finishBase(), l.tw.Close())
}

// writeTestTarball writes a layer from one npm tarball.
func writeTestTarball(w io.Writer, file string, p NPMPackage) error {
	l := newLayerWriter(w, nil)
	return errors.Join(l.addTarball(file, p), l.tw.Close())
}

func basePackage(t *testing.T, when time.Time) *bytes.Buffer {
	return archive(t, when,
		entry{"./", "", 0o755},
		entry{"./bin/", "", 0o755},
		entry{"./bin/sh", "shell", 0o755},
		entry{"./bin/dash", "=>./bin/sh", 0o755},
		entry{"./lib64/ld.so", "->/lib/real-ld.so", 0o777},
		entry{"./tmp/", "", 0o700},
		entry{"./usr/bin/su", "su", 0o4755},
		entry{"./usr/share/doc/x/README.gz", "no", 0o644},
		entry{"./usr/share/doc/x/copyright", "yes", 0o644},
		entry{"./usr/share/man/man1/x.1.gz", "no", 0o644},
		entry{"./usr/share/base-passwd/passwd.master", "root:*:0:0::/root:/bin/bash\n", 0o644},
		entry{"./usr/share/base-passwd/group.master", "root:*:0:\n", 0o644},
		entry{"./usr/share/libc-bin/nsswitch.conf", "passwd: files\n", 0o644},
		entry{"./usr/share/ca-certificates/mozilla/b.crt", "BBB\n", 0o644},
		entry{"./usr/share/ca-certificates/mozilla/a.crt", "AAA\n\n", 0o644},
		entry{"./usr/lib/unwanted", "no", 0o644},
	)
}

// TestLayer: a layer of packages is that of a merged system, without documentation and with the files of maintainer scripts.
func TestLayer(t *testing.T) {
	t.Parallel()
	var layer bytes.Buffer
	must(t, writeTestLayer(&layer, []string{"usr/lib/unwanted"}, basePackage(t, time.Now())))
	got := listed(t, &layer)
	want := map[string]string{
		"bin":                               "777 ->usr/bin",
		"lib64":                             "777 ->usr/lib64",
		"usr/bin/sh":                        "755 shell",
		"usr/bin/dash":                      "755 =>usr/bin/sh",
		"usr/bin/su":                        "4755 su",
		"usr/lib64/ld.so":                   "777 ->/lib/real-ld.so",
		"tmp/":                              "1777 ",
		"root/":                             "700 ",
		"usr/share/doc/x/copyright":         "644 yes",
		"etc/passwd":                        "644 root:*:0:0::/root:/bin/bash\n",
		"etc/ssl/certs/ca-certificates.crt": "644 AAA\nBBB\n",
	}
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s is %q, want %q", name, got[name], w)
		}
	}
	for _, name := range []string{"usr/lib/unwanted", "usr/share/doc/x/README.gz", "usr/share/man/man1/x.1.gz", "bin/sh", "bin/"} {
		if v, ok := got[name]; ok {
			t.Errorf("%s is in the layer: %q", name, v)
		}
	}
}

// TestLayerDoesNotDependOnTime: layers of the same files are the same.
func TestLayerDoesNotDependOnTime(t *testing.T) {
	t.Parallel()
	var a, b bytes.Buffer
	err := errors.Join(writeTestLayer(&a, nil, basePackage(t, time.Unix(1, 0))), writeTestLayer(&b, nil, basePackage(t, time.Unix(1e9, 0))))
	if err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("two layers of the same files differ, %v", err)
	}
}

// TestLayerRefuses: entries that lie outside, and hard links to what is left out, are errors.
func TestLayerRefuses(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]entry{
		"escape":            {"../../etc/x", "x", 0o644},
		"absolute":          {"/etc/x", "x", 0o644},
		"dangling hardlink": {"./usr/bin/x", "=>./usr/bin/absent", 0o755},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := writeTestLayer(io.Discard, nil, archive(t, time.Now(), bad)); err == nil {
				t.Error("no error")
			}
		})
	}
}

// TestParseURIs: apt's answer names the files, and nothing else is taken from it.
func TestParseURIs(t *testing.T) {
	t.Parallel()
	got, err := parseURIs([]byte("'http://x/z_2.deb' z_2_amd64.deb 12 SHA256:aa\n\n'http://x/a.deb' a_1%3a1_all.deb 3 MD5Sum:bb\n"))
	if diff := cmp.Diff([]string{"a_1%3a1_all.deb", "z_2_amd64.deb"}, got); diff != "" || err != nil {
		t.Errorf("(-want +got)\n%s%v", diff, err)
	}
	for _, bad := range []string{"", "Reading package lists...\n", "'http://x/a' ../a.deb 3 x\n"} {
		if got, err := parseURIs([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// TestTarball: a pinned tarball is downloaded, checked, and its files are placed.
func TestTarball(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	if _, err := io.Copy(zw, archive(t, time.Now(),
		entry{"package/bin/node", "node", 0o755},
		entry{"package/LICENSE", "licence", 0o644},
		entry{"package/include/v8.h", "no", 0o644},
	)); err != nil {
		t.Fatal(err)
	}
	must(t, zw.Close())
	sum := sha512.Sum512(zipped.Bytes())
	pkg := NPMPackage{
		Name: "thing", Version: "1.2.3",
		Integrity: "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
		Files:     map[string]string{"bin/node": "usr/local/bin/node"},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/thing/-/thing-1.2.3.tgz" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(zipped.Bytes()) // a client that went away is its own test's failure
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "thing.tgz")
	fetch := func(registry string) error {
		if err := download(t.Context(), tarballURL(registry, pkg), file); err != nil {
			return err
		}
		return checkIntegrity(file, pkg.Integrity)
	}
	must(t, fetch(srv.URL+"/"))

	var layer bytes.Buffer
	must(t, writeTestTarball(&layer, file, pkg))
	want := map[string]string{"usr/": "755 ", "usr/local/": "755 ", "usr/local/bin/": "755 ", "usr/local/bin/node": "755 node"}
	if diff := cmp.Diff(want, listed(t, &layer)); diff != "" {
		t.Errorf("one file (-want +got)\n%s", diff)
	}
	layer.Reset()
	pkg.Files = map[string]string{"./": "opt/thing/"}
	must(t, writeTestTarball(&layer, file, pkg))
	if got := listed(t, &layer)["opt/thing/include/v8.h"]; got != "644 no" {
		t.Errorf("all files: include/v8.h is %q", got)
	}

	pkg.Integrity = "sha512-AAAA"
	if err := fetch(srv.URL); !errors.Is(err, ErrIntegrity) {
		t.Errorf("another digest: %v", err)
	}
	pkg.Name = "absent"
	if err := fetch(srv.URL); err == nil || errors.Is(err, ErrIntegrity) {
		t.Errorf("absent tarball: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
