package ui

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Bounds of views and downloads.
const (
	piece    = 256 << 10 // bytes of a text on one page
	maxImage = 8 << 20
	hexBytes = 512
)

// fileView is a part of a file.
type fileView struct {
	Name      string
	Size      int64
	From, To  int64 // the shown part
	Prev      int64 // start of the part before it
	IsImage   bool
	Text, Hex string
	Raw       string // URL of the whole file
}

// viewFile shows the requested part of a file. read returns at most n bytes from offset.
func viewFile(
	r *http.Request, raw, name string, size int64, read func(offset, n int64) ([]byte, error),
) (*fileView, error) {
	from, _ := strconv.ParseInt(r.FormValue("offset"), 10, 64) // anything else means the start
	from = min(max(from, 0), size)
	data, err := read(from, piece)
	if err != nil {
		return nil, err
	}
	if at := bytes.LastIndexByte(data, '\n'); at >= 0 && from+int64(len(data)) < size {
		data = data[:at+1] // a part ends with a line
	}
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	v := &fileView{Name: name, Size: size, From: from, To: from + int64(len(data)), Prev: max(from-piece, 0)}
	if v.Raw = raw + strings.Join(parts, "/"); path.IsAbs(name) {
		v.Raw = raw + url.PathEscape(name) // the server would merge two slashes
	}
	switch {
	case from == 0 && size <= maxImage && imageType(data) != "":
		v.IsImage = true
	case bytes.IndexByte(data, 0) >= 0:
		v.Hex = hex.Dump(data[:min(len(data), hexBytes)])
	default:
		v.Text = string(data)
	}
	return v, nil
}

// imageType returns the type of an image without active content, from the first bytes.
func imageType(data []byte) string {
	t := http.DetectContentType(data[:min(len(data), 512)])
	if slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, t) {
		return t
	}
	return ""
}

// download sets the headers of a download. The browser never shows it as a page.
func download(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	w.Header().Set("Content-Type", "application/octet-stream")
	with := mime.FormatMediaType("attachment", map[string]string{"filename": sanitize.Strip(path.Base(name))})
	w.Header().Set("Content-Disposition", cmp.Or(with, "attachment"))
}

// send downloads a file. With the parameter inline, it sends an image for an <img> element.
func send(w http.ResponseWriter, r *http.Request, name string, f io.Reader) error {
	head := make([]byte, 512)
	n, err := io.ReadFull(f, head)
	if n == 0 && err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	download(w, name)
	if t := imageType(head[:n]); t != "" && r.FormValue("inline") != "" {
		w.Header().Set("Content-Type", t)
		w.Header().Set("Content-Disposition", "inline")
		f = io.LimitReader(f, maxImage)
	}
	if _, err := io.Copy(w, io.MultiReader(bytes.NewReader(head[:n]), f)); err != nil {
		return http.ErrAbortHandler // otherwise the client would take the file for complete
	}
	return nil
}
