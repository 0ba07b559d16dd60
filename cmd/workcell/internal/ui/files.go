package ui

import (
	"bytes"
	"encoding/hex"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxEntries = 1000      // files in a list
	piece      = 256 << 10 // bytes of a text on one page
	maxImage   = 8 << 20
	hexBytes   = 512
)

// fileView is a part of a file.
type fileView struct {
	Name      string
	Size      int64
	From, To  int64 // the part that is shown
	Prev      int64 // start of the part before it
	IsImage   bool
	Text, Hex string
	Raw       string // URL of the whole file
}

// viewFile shows the part of a file that the request asks for. read returns at most n bytes from offset.
func viewFile(r *http.Request, name string, size int64, read func(offset, n int64) ([]byte, error)) (*fileView, error) {
	v := &fileView{Name: name, Size: size}
	if from, err := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64); err == nil {
		v.From = min(max(from, 0), size)
	}
	data, err := read(v.From, piece)
	if err != nil {
		return nil, err
	}
	if at := bytes.LastIndexByte(data, '\n'); at >= 0 && v.From+int64(len(data)) < size {
		data = data[:at+1] // a part ends with a line
	}
	v.To, v.Prev = v.From+int64(len(data)), max(v.From-piece, 0)
	switch {
	case v.From == 0 && size <= maxImage && imageType(data) != "":
		v.IsImage = true
	case bytes.IndexByte(data, 0) >= 0 || !mostlyText(data):
		v.Hex = hex.Dump(data[:min(len(data), hexBytes)])
	default:
		v.Text = string(data)
	}
	return v, nil
}

// mostlyText reports whether at most a tenth of the data is invalid UTF-8.
func mostlyText(data []byte) bool {
	bad := 0
	for rest := data; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			bad++
		}
		rest = rest[n:]
	}
	return bad*10 <= len(data)
}

// imageType returns the type of an image that browsers show without running anything in it, from its first bytes.
func imageType(data []byte) string {
	t := http.DetectContentType(data[:min(len(data), 512)])
	if slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, t) {
		return t
	}
	return ""
}

// download sets the headers of a download. The browser never shows it as a page.
func download(w http.ResponseWriter, name string) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Type", "application/octet-stream")
	disposition := mime.FormatMediaType("attachment", map[string]string{"filename": strings.ToValidUTF8(path.Base(name), "_")})
	if disposition == "" {
		disposition = "attachment"
	}
	h.Set("Content-Disposition", disposition)
}

func attach(w http.ResponseWriter, name string, data []byte) error {
	download(w, name)
	_, _ = w.Write(data) // a disconnected client needs no file
	return nil
}

// send downloads a file. With the parameter inline, it sends an image for an <img> element.
func send(w http.ResponseWriter, r *http.Request, name string, f io.Reader) error {
	download(w, name)
	head := make([]byte, 512)
	n, err := io.ReadFull(f, head)
	if err != nil && n == 0 && err != io.EOF {
		return err
	}
	if t := imageType(head[:n]); t != "" && r.URL.Query().Has("inline") {
		w.Header().Set("Content-Type", t)
		w.Header().Set("Content-Disposition", "inline")
		f = io.LimitReader(f, maxImage)
	}
	_, _ = io.Copy(w, io.MultiReader(bytes.NewReader(head[:n]), f)) // as in attach
	return nil
}

// escapePath escapes a path for a URL, with its slashes.
func escapePath(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}
