package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// entryTime returns the time of every entry and of the image itself. It is constant, to ensure reproducible builds.
func entryTime() time.Time { return time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC) }

// layerWriter writes the entries of one layer. It writes each path once. The first entry for a path is used.
type layerWriter struct {
	tw   *tar.Writer
	seen map[string]bool
	omit map[string]bool
	// kept contains the files for the fix-ups of a base layer.
	kept map[string][]byte
}

func newLayerWriter(w io.Writer, omit []string) *layerWriter {
	l := &layerWriter{tw: tar.NewWriter(w), seen: map[string]bool{}, omit: map[string]bool{}, kept: map[string][]byte{}}
	for _, o := range omit {
		l.omit[o] = true
	}
	return l
}

// addPackage adds the files of a Debian package.
func (l *layerWriter) addPackage(files io.Reader) error {
	return l.addTar(files, func(name string) (string, bool) {
		name = mergeUsr(name)
		return name, name != "" && !isDocumentation(name)
	})
}

// addTarball adds the files of an npm tarball.
func (l *layerWriter) addTarball(file string, p NPMPackage) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("images: %s: %w", p.Name, err)
	}
	if err := l.addTar(zr, p.place); err != nil {
		return fmt.Errorf("images: %s: %w", p.Name, err)
	}
	return nil
}

// addTar copies the entries for which place returns a new name.
func (l *layerWriter) addTar(r io.Reader, place func(string) (string, bool)) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name, ok := place(path.Clean(h.Name))
		if !ok || l.omit[name] {
			continue
		}
		out := tar.Header{Typeflag: h.Typeflag, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid, Linkname: h.Linkname}
		switch h.Typeflag {
		case tar.TypeDir, tar.TypeSymlink:
		case tar.TypeReg:
			out.Size = h.Size
		case tar.TypeLink:
			target, ok := place(path.Clean(h.Linkname))
			if !ok || !l.seen[target] {
				return fmt.Errorf("%s is a hard link to the omitted file %s", name, h.Linkname)
			}
			out.Linkname = target
		default:
			return fmt.Errorf("%s: entry of type %q", name, h.Typeflag)
		}
		if err := l.add(name, out, tr); err != nil {
			return err
		}
	}
}

// add writes one entry and missing parent directories. It does nothing if the path was already written.
func (l *layerWriter) add(name string, h tar.Header, body io.Reader) error {
	if name == "." || l.seen[name] {
		return nil
	}
	if strings.HasPrefix(name, "../") || strings.HasPrefix(name, "/") {
		return fmt.Errorf("%s is outside the image", name)
	}
	if err := l.addDir(path.Dir(name), 0o755); err != nil {
		return err
	}
	l.seen[name] = true
	h.Name = name
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	h.ModTime = entryTime()
	if err := l.tw.WriteHeader(&h); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if h.Size == 0 {
		return nil
	}
	if wantedByFixups(name) {
		var buf bytes.Buffer
		body = io.TeeReader(body, &buf)
		defer func() { l.kept[name] = buf.Bytes() }()
	}
	if _, err := io.CopyN(l.tw, body, h.Size); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (l *layerWriter) addDir(name string, mode int64) error {
	if name == "." || l.seen[name] {
		return nil
	}
	return l.add(name, tar.Header{Typeflag: tar.TypeDir, Mode: mode}, nil)
}

func (l *layerWriter) addLink(name, target string) error {
	return l.add(name, tar.Header{Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target}, nil)
}

func (l *layerWriter) addFile(name string, content []byte) error {
	h := tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}
	return l.add(name, h, bytes.NewReader(content))
}

// startBase writes the entries before any package: links where older packages still have directories, and directories
// with a special mode.
func (l *layerWriter) startBase() error {
	for _, d := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := errors.Join(l.addDir("usr/"+d, 0o755), l.addLink(d, "usr/"+d)); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		name string
		mode int64
	}{
		{"dev", 0o755}, {"etc", 0o755}, {"home", 0o755}, {"mnt", 0o755}, {"opt", 0o755},
		{"proc", 0o755}, {"root", 0o700}, {"run", 0o755}, {"run/lock", 0o1777}, {"srv", 0o755},
		{"sys", 0o755}, {"tmp", 0o1777}, {"usr/local/bin", 0o755}, {"usr/local/lib", 0o755},
		{"usr/local/sbin", 0o755}, {"usr/local/share", 0o755}, {"var/tmp", 0o1777},
	} {
		if err := l.addDir(d.name, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// finishBase writes the usual files of maintainer scripts.
func (l *layerWriter) finishBase() error {
	var certs bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(l.kept)) {
		if strings.HasPrefix(name, certDir) {
			certs.Write(bytes.TrimSpace(l.kept[name]))
			certs.WriteByte('\n')
		}
	}
	if certs.Len() == 0 {
		return errors.New("images: the base layer has no certificates")
	}
	if err := l.addFile("etc/ssl/certs/ca-certificates.crt", certs.Bytes()); err != nil {
		return err
	}
	for _, from := range []string{passwdMaster, groupMaster, nsswitch} {
		if len(l.kept[from]) == 0 {
			return fmt.Errorf("images: the base layer has no %s", from)
		}
	}
	return errors.Join(
		l.addFile("etc/group", l.kept[groupMaster]),
		l.addFile("etc/nsswitch.conf", l.kept[nsswitch]),
		l.addFile("etc/passwd", l.kept[passwdMaster]),
		l.addFile("etc/timezone", []byte("Etc/UTC\n")),
		l.addLink("etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),
		l.addLink("var/lock", "/run/lock"),
		l.addLink("var/run", "/run"),
	)
}

const (
	certDir      = "usr/share/ca-certificates/"
	passwdMaster = "usr/share/base-passwd/passwd.master"
	groupMaster  = "usr/share/base-passwd/group.master"
	nsswitch     = "usr/share/libc-bin/nsswitch.conf"
)

func wantedByFixups(name string) bool {
	return name == passwdMaster || name == groupMaster || name == nsswitch ||
		strings.HasPrefix(name, certDir) && strings.HasSuffix(name, ".crt")
}

// mergeUsr maps paths in /bin, /sbin, and /lib of packages to the targets of the links in a merged system. It maps
// these directories themselves to the empty name.
func mergeUsr(name string) string {
	top, rest, below := strings.Cut(name, "/")
	switch top {
	case "bin", "sbin", "lib", "lib64", "lib32", "libx32":
		if !below {
			return ""
		}
		return "usr/" + top + "/" + rest
	}
	return name
}

// isDocumentation reports whether Debian's slim images omit a file too. Licenses are kept.
func isDocumentation(name string) bool {
	if strings.HasPrefix(name, "usr/share/doc/") {
		return path.Base(name) != "copyright"
	}
	for _, dir := range []string{"bug", "info", "linda", "lintian", "locale", "man", "groff"} {
		if strings.HasPrefix(name, "usr/share/"+dir+"/") {
			return true
		}
	}
	return false
}

// writeLayer writes the compressed layer of spec to w. debs and tarballs are the files of the packages.
func writeLayer(ctx context.Context, w io.Writer, spec Layer, debs []string, tarballs []string) error {
	zw, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	l := newLayerWriter(zw, spec.Omit)
	if spec.Base {
		if err := l.startBase(); err != nil {
			return fmt.Errorf("images: layer %s: %w", spec.Name, err)
		}
	}
	for _, deb := range debs {
		if err := packageFiles(ctx, deb, l.addPackage); err != nil {
			return err
		}
	}
	for i, file := range tarballs {
		if err := l.addTarball(file, spec.NPM[i]); err != nil {
			return err
		}
	}
	if spec.Base {
		if err := l.finishBase(); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Texts)) {
		if err := l.addFile(name, []byte(spec.Texts[name])); err != nil {
			return fmt.Errorf("images: layer %s: %w", spec.Name, err)
		}
	}
	if err := l.addLinks(spec.Links); err != nil {
		return fmt.Errorf("images: layer %s: %w", spec.Name, err)
	}
	if err := errors.Join(l.tw.Close(), zw.Close()); err != nil {
		return fmt.Errorf("images: layer %s: %w", spec.Name, err)
	}
	return nil
}

func (l *layerWriter) addLinks(links map[string]string) error {
	for _, n := range slices.Sorted(maps.Keys(links)) {
		if err := l.addLink(n, links[n]); err != nil {
			return err
		}
	}
	return nil
}
