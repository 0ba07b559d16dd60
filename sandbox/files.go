package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// FileType is the type of a directory entry.
type FileType string

// File types.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// FileInfo describes an entry in the workspace or /tmp.
type FileInfo struct {
	Path    string // slash-separated, relative to the workspace (".") or absolute below /tmp; valid UTF-8
	RawPath []byte // exact bytes of the path; set only if they are not valid UTF-8
	Type    FileType
	Size    int64
	Mode    fs.FileMode // permission bits, setuid, setgid, and sticky
	ModTime time.Time
}

// WriteFileOptions are options for WriteFile.
type WriteFileOptions struct {
	Mode      fs.FileMode // permission bits; if zero, the mode of the existing file or 0644
	Overwrite bool        // replace an existing file; if false, the error wraps backend.ErrExists
	// Size is the exact number of bytes. If the reader returns fewer or more bytes, WriteFile fails and keeps the old
	// file. If zero or negative, the size is unknown.
	Size int64
}

// ReadFileOptions are options for ReadFile.
type ReadFileOptions struct {
	Offset int64
	// Limit is the maximum number of bytes to read; the file may be longer. If zero or above Options.MaxFileBytes,
	// ReadFile reads to the end. If the rest is then longer than Options.MaxFileBytes, the error wraps
	// backend.ErrTooLarge.
	Limit int64
}

// ListFilesOptions are options for ListFiles.
type ListFilesOptions struct {
	Recursive bool
	Limit     int // maximum number of entries, up to MaxListEntries; default DefaultListEntries
}

// FileList is the result of ListFiles. Each directory's entries are sorted by name. In a recursive list, a directory's
// contents follow the directory. Symlinks are not followed.
type FileList struct {
	Entries   []FileInfo
	Total     int64 // number of entries, or a lower bound
	Truncated bool
}

// WriteFile writes a whole file in the workspace or /tmp atomically: a reader sees either the old file or the new one.
// If WriteFile fails, the old file is kept. If the sandbox's user may not write to the old file, the error wraps
// backend.ErrPermission. Parent directories are created. If the file is larger than Options.MaxFileBytes, the error
// wraps backend.ErrTooLarge. If ctx or the handle ends, WriteFile may return while a Read of r is still running.
//
// If the transfer, including the calls to r, takes more than 18 minutes, the error wraps backend.ErrUnavailable. If
// Options.MaxFileBytes is above 1 GiB, the time limit is proportionally longer.
func (s *Sandbox) WriteFile(ctx context.Context, name string, r io.Reader, opts WriteFileOptions) (
	info FileInfo, err error) {
	ctx, span := s.start(ctx, telemetry.SpanWriteFile)
	defer func() { s.end(span, "WriteFile", &err) }()
	if err := validPath(name); err != nil {
		return FileInfo{}, err
	}
	if opts.Mode&^fs.ModePerm != 0 {
		return FileInfo{}, fmt.Errorf("%w: mode %v must contain only permission bits", backend.ErrInvalid, opts.Mode)
	}
	limit := s.o.MaxFileBytes
	if opts.Size > limit {
		return FileInfo{}, fileTooLarge(limit)
	}
	size := opts.Size
	if size <= 0 {
		size = -1
	} else {
		r = &exactReader{r: r, size: size, left: size}
	}
	var body *cappedReader // set when the call starts
	answer, err := s.transfer(ctx, func(ctx context.Context, conn *client.Conn) (wire.FileInfo, error) {
		body = &cappedReader{ctx: ctx, r: r, left: limit, limit: limit}
		return putFile(ctx, conn, wire.FilePutRequest{
			Path: name, Mode: uint32(opts.Mode), Overwrite: opts.Overwrite, Size: size,
		}, body)
	})
	if err != nil && body != nil {
		err = cmp.Or(body.failure(), err) // the guest only knows of an incomplete body
	}
	if err != nil {
		return FileInfo{}, err
	}
	span.SetAttributes(telemetry.KeyFileBytes.Int64(answer.Size))
	return newFileInfo(answer), nil
}

// putFile transfers a file. If ctx ends, it returns even if body blocks.
func putFile(ctx context.Context, conn *client.Conn, req wire.FilePutRequest, body io.Reader) (wire.FileInfo, error) {
	type result struct {
		info wire.FileInfo
		err  error
	}
	done := make(chan result, 1)
	go func() {
		info, err := conn.PutFile(ctx, req, body)
		done <- result{info, err}
	}()
	select {
	case r := <-done:
		return r.info, r.err
	case <-ctx.Done():
		return wire.FileInfo{}, ctx.Err()
	}
}

// ReadFile copies a regular file in the workspace or /tmp to w and returns the actual size. If ReadFile fails, w may
// have received part of the file. The same time limit as for WriteFile applies.
func (s *Sandbox) ReadFile(ctx context.Context, name string, w io.Writer, opts ReadFileOptions) (
	info FileInfo, err error) {
	ctx, span := s.start(ctx, telemetry.SpanReadFile)
	defer func() { s.end(span, "ReadFile", &err) }()
	if err := validPath(name); err != nil {
		return FileInfo{}, err
	}
	if opts.Offset < 0 || opts.Limit < 0 {
		return FileInfo{}, fmt.Errorf("%w: offset and limit must not be negative", backend.ErrInvalid)
	}
	maxBytes := s.o.MaxFileBytes
	length := min(cmp.Or(opts.Limit, maxBytes+1), maxBytes+1) // one more byte to detect a file above the limit
	dst := &cappedWriter{w: w, left: maxBytes, limit: maxBytes}
	// After the first write to w, the read cannot be repeated.
	answer, err := s.transfer(ctx, func(ctx context.Context, conn *client.Conn) (wire.FileInfo, error) {
		return conn.GetFile(ctx, wire.FileGetRequest{Path: name, Offset: opts.Offset, Length: length}, dst)
	})
	span.SetAttributes(telemetry.KeyFileBytes.Int64(dst.written))
	return fileInfoOrError(answer, cmp.Or(dst.err, err))
}

// ReadFileBytes is like ReadFile, but returns the contents.
func (s *Sandbox) ReadFileBytes(ctx context.Context, name string, opts ReadFileOptions) ([]byte, FileInfo, error) {
	var buf bytes.Buffer
	info, err := s.ReadFile(ctx, name, &buf, opts)
	if err != nil {
		return nil, FileInfo{}, err
	}
	return buf.Bytes(), info, nil
}

// fileAnswerLimit is the time limit of a call about a path. A walk through a million entries needs minutes on a slow
// disk.
const fileAnswerLimit = 5 * time.Minute

// editAttempts is how often EditFile tries to edit a file despite writes of other programs.
const editAttempts = 10

// EditFile replaces a file's contents with the result of edit, atomically like WriteFile. The file keeps its mode, and
// links are followed. If another program changes the file in between, EditFile calls edit again with the new contents.
// If programs change the file repeatedly, the error wraps backend.ErrTimeout. If edit fails, the file is unchanged and
// the returned error wraps edit's error. If the old or new contents exceed limit bytes, the error wraps
// backend.ErrTooLarge. If limit is zero, it is Options.MaxFileBytes. A negative limit is invalid.
func (s *Sandbox) EditFile(ctx context.Context, name string, limit int64, edit func(old []byte) ([]byte, error)) (
	info FileInfo, err error) {
	ctx, span := s.start(ctx, telemetry.SpanEditFile)
	defer func() { s.end(span, "EditFile", &err) }()
	if limit < 0 {
		return FileInfo{}, fmt.Errorf("%w: limit must not be negative", backend.ErrInvalid)
	}
	limit = min(cmp.Or(limit, s.o.MaxFileBytes), s.o.MaxFileBytes)
	for range editAttempts {
		old, info, err := s.ReadFileBytes(ctx, name, ReadFileOptions{Limit: min(limit+1, s.o.MaxFileBytes)})
		if err != nil {
			return FileInfo{}, err
		}
		if max(int64(len(old)), info.Size) > limit {
			return FileInfo{}, fileTooLarge(limit)
		}
		data, err := edit(old)
		if err != nil {
			return FileInfo{}, err
		}
		if int64(len(data)) > limit {
			return FileInfo{}, fileTooLarge(limit)
		}
		sum := sha256.Sum256(old)
		answer, err := s.transfer(ctx, func(ctx context.Context, conn *client.Conn) (wire.FileInfo, error) {
			return conn.PutFile(ctx, wire.FilePutRequest{Path: name, Size: int64(len(data)), Was: sum[:]}, bytes.NewReader(data))
		})
		if refusedAs(err, wire.CodeChanged) {
			continue
		}
		if err != nil {
			return FileInfo{}, err
		}
		span.SetAttributes(telemetry.KeyFileBytes.Int64(answer.Size))
		return newFileInfo(answer), nil
	}
	return FileInfo{}, fmt.Errorf("%w: the file was changed by other processes in each of %d attempts",
		backend.ErrTimeout, editAttempts)
}

// ListFiles lists a directory in the workspace or /tmp.
func (s *Sandbox) ListFiles(ctx context.Context, name string, opts ListFilesOptions) (list FileList, err error) {
	ctx, span := s.start(ctx, telemetry.SpanListFiles)
	defer func() { s.end(span, "ListFiles", &err) }()
	if opts.Limit < 0 || opts.Limit > MaxListEntries {
		return FileList{}, fmt.Errorf("%w: limit %d is out of range, must be 0 to %d",
			backend.ErrInvalid, opts.Limit, MaxListEntries)
	}
	opts.Limit = cmp.Or(opts.Limit, DefaultListEntries)
	list, err = s.list(ctx, name, opts)
	span.SetAttributes(telemetry.KeyEntries.Int(len(list.Entries)))
	return list, err
}

// list implements ListFiles without a span, to allow one span for many directories.
func (s *Sandbox) list(ctx context.Context, name string, opts ListFilesOptions) (list FileList, err error) {
	req := wire.ListRequest{Path: name, Recursive: opts.Recursive, Limit: opts.Limit}
	answer, err := askFile(ctx, s, repeatable, name, (*client.Conn).List, req)
	if err != nil {
		return FileList{}, publicError(err)
	}
	list = FileList{Entries: make([]FileInfo, 0, len(answer.Entries)), Total: answer.Total, Truncated: answer.Truncated}
	for _, entry := range answer.Entries {
		list.Entries = append(list.Entries, newFileInfo(entry))
	}
	return list, nil
}

// StatFile describes an entry. If the last component of the path is a symlink, StatFile describes the link.
func (s *Sandbox) StatFile(ctx context.Context, name string) (info FileInfo, err error) {
	ctx, span := s.start(ctx, telemetry.SpanStatFile)
	defer func() { s.end(span, "StatFile", &err) }()
	return fileInfoOrError(askFile(ctx, s, repeatable, name, (*client.Conn).Stat, wire.PathRequest{Path: name}))
}

// RemoveFile deletes an entry and returns the number of deleted entries. If recursive is true, it deletes whole
// directories. It refuses to delete the workspace itself.
func (s *Sandbox) RemoveFile(ctx context.Context, name string, recursive bool) (deleted int64, err error) {
	ctx, span := s.start(ctx, telemetry.SpanRemoveFile)
	defer func() { s.end(span, "RemoveFile", &err) }()
	req := wire.PathRequest{Path: name, Recursive: recursive}
	answer, err := askFile(ctx, s, once, name, (*client.Conn).Remove, req)
	if err != nil {
		return 0, err
	}
	span.SetAttributes(telemetry.KeyEntries.Int64(answer.Deleted))
	return answer.Deleted, nil
}

// MakeDir creates a directory and all parents. An existing directory is not an error. If mode is zero, it is 0755.
func (s *Sandbox) MakeDir(ctx context.Context, name string, mode fs.FileMode) (info FileInfo, err error) {
	ctx, span := s.start(ctx, telemetry.SpanMakeDir)
	defer func() { s.end(span, "MakeDir", &err) }()
	if mode&^fs.ModePerm != 0 {
		return FileInfo{}, fmt.Errorf("%w: mode %v must contain only permission bits", backend.ErrInvalid, mode)
	}
	req := wire.PathRequest{Path: name, Mode: uint32(mode)}
	return fileInfoOrError(askFile(ctx, s, repeatable, name, (*client.Conn).Mkdir, req))
}

// RenameFile moves an entry. If the target exists and overwrite is false, the error wraps backend.ErrExists.
func (s *Sandbox) RenameFile(ctx context.Context, from, to string, overwrite bool) (err error) {
	ctx, span := s.start(ctx, telemetry.SpanRenameFile)
	defer func() { s.end(span, "RenameFile", &err) }()
	if err := validPath(to); err != nil {
		return err
	}
	rename := func(conn *client.Conn, ctx context.Context, req wire.RenameRequest) (struct{}, error) {
		return struct{}{}, conn.Rename(ctx, req)
	}
	_, err = askFile(ctx, s, once, from, rename, wire.RenameRequest{From: from, To: to, Overwrite: overwrite})
	return err
}

// askFile makes a call about a path, without a body and with a time limit.
func askFile[Q, A any](ctx context.Context, s *Sandbox, again bool, name string,
	method func(*client.Conn, context.Context, Q) (A, error), req Q) (none A, _ error) {
	if err := validPath(name); err != nil {
		return none, err
	}
	return ask(ctx, s, again, fileAnswerLimit, func(ctx context.Context, conn *client.Conn) (A, error) {
		return method(conn, ctx, req)
	})
}

// transfer makes a call with a file's contents. It is not repeated, because the contents may be used up.
func (s *Sandbox) transfer(ctx context.Context, call func(context.Context, *client.Conn) (wire.FileInfo, error)) (
	wire.FileInfo, error) {
	return ask(ctx, s, once, transferTime(s.o.MaxFileBytes), call)
}

// transferTime returns the time limit of one transfer: maxBytes at 1 MB/s, but at least 18 minutes.
func transferTime(maxBytes int64) time.Duration {
	const most = 1 << 32 // seconds; prevents an overflow
	return max(18*time.Minute, time.Duration(min(maxBytes/1_000_000, most))*time.Second)
}

// validPath validates a path before the guest resolves it.
func validPath(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: empty path", backend.ErrInvalid)
	case len(name) > maxPathBytes:
		return fmt.Errorf("%w: the path has %d bytes, the limit is %d", backend.ErrInvalid, len(name), maxPathBytes)
	case strings.Contains(name, "\x00"):
		return fmt.Errorf("%w: the path contains NUL", backend.ErrInvalid)
	}
	return nil
}

// fileTooLarge returns the error for a file above a limit.
func fileTooLarge(limit int64) error {
	return fmt.Errorf("%w: the file limit is %d bytes", backend.ErrTooLarge, limit)
}

// fileInfoOrError converts the answer of a call about one entry.
func fileInfoOrError(answer wire.FileInfo, err error) (FileInfo, error) {
	if err != nil {
		return FileInfo{}, err
	}
	return newFileInfo(answer), nil
}

// newFileInfo converts an entry. An unknown type becomes "other".
func newFileInfo(w wire.FileInfo) FileInfo {
	info := FileInfo{
		Path: w.Path, Type: FileType(w.Type), Size: w.Size,
		Mode: fs.FileMode(w.Mode) & fs.ModePerm, ModTime: time.Unix(w.ModTimeUnix, 0),
	}
	if !utf8.ValidString(w.Path) {
		info.Path, info.RawPath = strings.ToValidUTF8(w.Path, "�"), []byte(w.Path)
	}
	switch info.Type {
	case TypeFile, TypeDir, TypeSymlink:
	default:
		info.Type = TypeOther
	}
	if w.Mode&0o4000 != 0 {
		info.Mode |= fs.ModeSetuid
	}
	if w.Mode&0o2000 != 0 {
		info.Mode |= fs.ModeSetgid
	}
	if w.Mode&0o1000 != 0 {
		info.Mode |= fs.ModeSticky
	}
	return info
}

// cappedWriter fails after left bytes and keeps the first error.
type cappedWriter struct {
	w       io.Writer
	left    int64
	limit   int64
	written int64
	err     error
}

func (c *cappedWriter) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if int64(len(p)) > c.left {
		c.err = fileTooLarge(c.limit)
		return 0, c.err
	}
	n, err := c.w.Write(p)
	c.left -= int64(n)
	c.written += int64(n)
	c.err = err
	return n, err
}
