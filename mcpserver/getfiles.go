package mcpserver

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Limits of one get_files call. The whole result is one message, and base64 adds a third.
const (
	maxGotFiles   = 1000
	maxGotBytes   = 10 << 20
	maxSkipped    = 100
	formatFiles   = "files"
	formatArchive = "zip"
	formatPatch   = "patch"
)

func (s *Server) getFiles(ctx context.Context, c call, in getFilesInput) (getFilesOutput, error) {
	if !slices.Contains([]string{"", formatFiles, formatArchive, formatPatch}, in.Format) {
		return getFilesOutput{}, toolspec.Failf(toolspec.CodeInvalid, "format %q must be files, zip or patch",
			sanitize.Clip(in.Format))
	}
	if len(in.Paths) > maxGotFiles {
		return getFilesOutput{}, toolspec.Failf(toolspec.CodeTooLarge, "%d paths, the limit is %d",
			len(in.Paths), maxGotFiles)
	}
	sandbox, err := s.one(ctx, c.scope, in.SessionID)
	if err != nil {
		return getFilesOutput{}, err
	}
	g := &gathering{
		server: s, sandbox: sandbox, seen: map[string]bool{},
		elsewhere: c.scope.shared() && sandbox.Key().Scope() != c.scope.run.Scope(),
	}
	if in.Format == formatArchive {
		g.archive = zip.NewWriter(&g.buf)
	}
	if in.Format == formatPatch {
		leave, err := c.scope.patches.Enter(ctx)
		if err != nil {
			return getFilesOutput{}, err
		}
		defer leave()
		return g.patch(ctx, in.Paths)
	}
	if len(in.Paths) == 0 {
		in.Paths = []string{"."}
	}
	for _, p := range in.Paths {
		if err := g.path(ctx, p); err != nil {
			return getFilesOutput{}, err
		}
	}
	if g.archive != nil {
		err = g.archive.Close()
		g.out.ZipB64 = base64.StdEncoding.EncodeToString(g.buf.Bytes())
	}
	return g.out, err
}

// patch returns the changes at paths, or all changes if paths is empty. If the sandbox started empty, the changes
// include all files.
func (g *gathering) patch(ctx context.Context, paths []string) (getFilesOutput, error) {
	var p *patch.Patch
	var err error
	if g.server.opts.Diff != nil {
		p, err = g.server.opts.Diff(ctx, g.sandbox)
	}
	if p == nil && err == nil && g.elsewhere {
		err = toolspec.Failf(toolspec.CodeUnavailable,
			"this server has no copy of the session's initial files, but another server may have it").
			WithRemediation("Try again to reach another server, or get the files themselves.")
	}
	if p == nil && err == nil {
		p, err = g.sandbox.Diff(ctx, patch.Tree{})
	}
	if err != nil {
		return g.out, err
	}
	for _, o := range p.Omitted {
		g.skip(o.Path, o.Reason)
	}
	p.Changes = slices.DeleteFunc(p.Changes, func(c patch.Change) bool { return !among(paths, c) || g.withholds(c) })
	var b shortBuffer
	switch err := p.Format(&b); {
	case errors.Is(err, errTooLong):
		return g.out, toolspec.Failf(toolspec.CodeTooLarge, "the patch has more than %d bytes", maxGotBytes).
			WithRemediation("Pass the paths of fewer files or directories as paths.")
	case err != nil:
		return g.out, err
	}
	g.out.Count, g.out.TotalBytes = len(p.Changes), int64(len(b.bytes))
	if utf8.Valid(b.bytes) {
		g.out.Patch = string(b.bytes)
	} else {
		g.out.PatchB64 = base64.StdEncoding.EncodeToString(b.bytes)
	}
	return g.out, nil
}

// shortBuffer is limited to the size of one result, because a sandbox may produce a patch of any size.
type shortBuffer struct{ bytes []byte }

var errTooLong = errors.New("too long")

func (b *shortBuffer) Write(p []byte) (int, error) {
	if len(b.bytes)+len(p) > maxGotBytes {
		return 0, errTooLong
	}
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}

// among reports whether a change is at one of the paths or below it.
func among(paths []string, c patch.Change) bool {
	return len(paths) == 0 || slices.ContainsFunc(paths, func(p string) bool {
		at := strings.TrimPrefix(path.Clean(p), backend.Workdir+"/")
		return at == "." || at == backend.Workdir || c.Path == at || strings.HasPrefix(c.Path, at+"/")
	})
}

// withholds reports whether the policy hides a file of a change from the client.
func (g *gathering) withholds(c patch.Change) bool {
	for _, e := range []*patch.Entry{c.Old, c.New} {
		if e == nil {
			continue
		}
		if fail := g.server.checkFile(c.Path, int64(len(e.Content))); fail != nil {
			g.skip(c.Path, fail.Message)
			return true
		}
	}
	return false
}

// gathering collects the files for one get_files call.
type gathering struct {
	server  *Server
	sandbox *session.Session
	// elsewhere reports whether the original files of the sandbox may be on another server.
	elsewhere bool
	seen      map[string]bool
	out       getFilesOutput
	buf       bytes.Buffer
	archive   *zip.Writer // nil if files are returned separately
}

// path adds a file, or all files of a directory. The sandbox checks the path: it opens nothing outside of the
// workspace, even through links.
func (g *gathering) path(ctx context.Context, p string) error {
	info, err := g.sandbox.StatFile(ctx, p)
	if err != nil {
		return named(p, err)
	}
	if info.Type != sandbox.TypeDir {
		return g.entry(ctx, info)
	}
	list, err := g.sandbox.ListFiles(ctx, p, sandbox.ListFilesOptions{Recursive: true, Limit: sandbox.MaxListEntries})
	if err != nil {
		return named(p, err)
	}
	g.out.Truncated = g.out.Truncated || list.Truncated
	for _, e := range list.Entries {
		if e.Type == sandbox.TypeDir {
			continue
		}
		if err := g.entry(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// named adds the path to an error.
func named(p string, err error) error {
	if errors.As(err, new(*toolspec.Error)) {
		return err
	}
	e := toolspec.ErrorOf(err)
	e.Message = fmt.Sprintf("%q: %s", sanitize.Clip(p), e.Message)
	return e
}

func (g *gathering) entry(ctx context.Context, e sandbox.FileInfo) error {
	if g.seen[e.Path] {
		return nil
	}
	g.seen[e.Path] = true
	if reason := g.refused(e); reason != "" {
		g.skip(e.Path, reason)
		return nil
	}
	room := maxGotBytes - g.out.TotalBytes
	data, _, err := g.sandbox.ReadFileBytes(ctx, e.Path, sandbox.ReadFileOptions{Limit: room + 1})
	e.Size = int64(len(data)) // it may have grown after it was listed
	switch reason := g.refused(e); {
	case errors.Is(err, backend.ErrNotFound), errors.Is(err, backend.ErrPermission), errors.Is(err, backend.ErrInvalid):
		g.skip(e.Path, "cannot read the file") // it may have been deleted after it was listed
		return nil
	case err != nil:
		return err
	case reason != "":
		g.skip(e.Path, reason)
		return nil
	}
	return g.add(e, data)
}

// refused returns the reason for leaving out an entry, or an empty string if get_files returns it.
func (g *gathering) refused(e sandbox.FileInfo) string {
	if !isFile(e) {
		return "it is not a regular file, or its name is not UTF-8"
	}
	if fail := g.server.checkFile(e.Path, e.Size); fail != nil {
		return fail.Message
	}
	if g.archive != nil && strings.ContainsAny(e.Path, `\:`) {
		return `names with \ or : are unsafe in archives on Windows; use the format files`
	}
	if g.out.TotalBytes+e.Size > maxGotBytes || g.out.Count >= maxGotFiles {
		g.out.Truncated = true
		return fmt.Sprintf("one call returns up to %d files and %d MiB", maxGotFiles, maxGotBytes>>20)
	}
	return ""
}

// isFile reports whether get_files can return an entry: it must be a regular file with a UTF-8 name.
func isFile(e sandbox.FileInfo) bool { return e.Type == sandbox.TypeFile && len(e.RawPath) == 0 }

func (g *gathering) add(e sandbox.FileInfo, data []byte) error {
	g.out.Count++
	g.out.TotalBytes += int64(len(data))
	if g.archive == nil {
		g.out.Files = append(g.out.Files, gotFile{
			Path: e.Path, SizeBytes: int64(len(data)), ContentsB64: base64.StdEncoding.EncodeToString(data),
		})
		return nil
	}
	header := &zip.FileHeader{Name: strings.TrimPrefix(e.Path, "/"), Method: zip.Deflate, Modified: e.ModTime}
	header.SetMode(e.Mode.Perm())
	w, err := g.archive.CreateHeader(header)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

func (g *gathering) skip(path, reason string) {
	if len(g.out.Skipped) < maxSkipped {
		g.out.Skipped = append(g.out.Skipped, skippedFile{Path: path, Reason: reason})
		return
	}
	g.out.Truncated = true
}
