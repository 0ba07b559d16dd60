package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Limits of the file tools.
const (
	defaultReadBytes = 256 << 10
	maxTransfer      = 64 << 20 // of one file per call, in both directions
)

func (b *binding) fsWrite(ctx context.Context, in fsWriteInput) (out fsWriteOutput, err error) {
	data, given, fail := eitherForm("contents", in.Contents, "contents_b64", in.ContentsB64)
	switch {
	case fail != nil:
		return out, fail
	case !given:
		return out, toolspec.Failf(toolspec.CodeInvalid, "contents or contents_b64 is required").
			WithRemediation("Pass the text as contents; an empty file is contents: \"\".")
	case len(data) > maxTransfer:
		return out, toolspec.Failf(toolspec.CodeTooLarge, "the contents have %d bytes, the limit of one call is %d",
			len(data), maxTransfer)
	}
	mode, fail := fileMode(in.Mode)
	if fail != nil {
		return out, fail
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	info, err := s.WriteFile(ctx, in.Path, bytes.NewReader(data), sandbox.WriteFileOptions{
		Mode: mode, Overwrite: in.Overwrite, Size: int64(len(data)),
	})
	if errors.Is(err, backend.ErrExists) && !in.Overwrite {
		err = toolspec.Failf(toolspec.CodeExists, "%s already exists", sanitize.Clip(in.Path)).
			WithRemediation("Pass overwrite: true to replace it, or write to another path.")
	}
	return fsWriteOutput{done: done{OK: true}, Path: absolute(s, info.Path), SizeBytes: info.Size}, err
}

// fileMode parses octal permissions. If text is empty, it returns zero, and the sandbox uses the default.
func fileMode(text string) (fs.FileMode, *toolspec.Error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 || n == 0 {
		return 0, toolspec.Failf(toolspec.CodeInvalid,
			"mode %q must be permissions in octal between 0001 and 0777, for example 0755", sanitize.Clip(text))
	}
	return fs.FileMode(n), nil
}

// absolute returns the absolute path in the sandbox for a path of the file tools.
func absolute(s *session.Session, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(cmp.Or(s.Info().Workdir, backend.Workdir), name)
}

func (b *binding) fsRead(ctx context.Context, in fsReadInput) (out fsReadOutput, err error) {
	byLines := in.LineOffset > 0 || in.LineLimit > 0
	if byLines && in.Offset > 0 {
		return out, toolspec.Failf(toolspec.CodeInvalid, "offset counts bytes; do not use line_offset or line_limit")
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	whole := !byLines && in.Offset == 0 && in.MaxBytes == 0
	in.MaxBytes = cmp.Or(in.MaxBytes, b.readBytes)
	read := readBytes
	if byLines {
		read = readLines
	}
	out, err = read(ctx, s, in)
	if err == nil && whole {
		err = b.asImage(ctx, s, in.Path, &out)
	}
	if err == nil {
		if fail := b.check(ctx, toolspec.Args{Files: map[string]int64{in.Path: out.SizeBytes}}); fail != nil {
			return fsReadOutput{}, b.refused(ctx, fail)
		}
	}
	return out, err
}

func readBytes(ctx context.Context, s *session.Session, in fsReadInput) (out fsReadOutput, err error) {
	data, info, err := s.ReadFileBytes(ctx, in.Path, sandbox.ReadFileOptions{Offset: in.Offset, Limit: in.MaxBytes})
	if err != nil {
		return out, err
	}
	out.SizeBytes = info.Size
	// The reported size is too small for files in /proc and for growing files.
	more := in.Offset+int64(len(data)) < info.Size || int64(len(data)) == in.MaxBytes && info.Size == 0
	if more {
		data = wholeText(data)
	}
	out.set(data)
	if len(data) == 0 && in.Offset > 0 {
		out.Note = fmt.Sprintf("offset %d is past the end of the file, which has %d bytes", in.Offset, info.Size)
	}
	if more {
		next := in.Offset + int64(len(data))
		follow := fmt.Sprintf("%d more bytes", info.Size-next)
		if next >= info.Size {
			follow = "more bytes may follow"
		}
		out.Truncated, out.NextOffset = true, &next
		out.Note = fmt.Sprintf("%s; call again with offset %d to continue", follow, next)
	}
	return out, nil
}

// wholeText removes an incomplete character from the end of data if the rest is text. It never removes all data, because
// the next call would start at the same byte.
func wholeText(data []byte) []byte {
	if cut := wholeRunes(data); len(cut) > 0 && utf8.Valid(cut) {
		return cut
	}
	return data
}

func (o *fsReadOutput) set(data []byte) {
	o.data = data
	text := string(data)
	if utf8.ValidString(text) {
		o.Contents = &text
		return
	}
	text = base64.StdEncoding.EncodeToString(data)
	o.ContentsB64 = &text
}

func readLines(ctx context.Context, s *session.Session, in fsReadInput) (out fsReadOutput, err error) {
	first := max(in.LineOffset, 1)
	w := &lineWriter{skip: first - 1, lines: in.LineLimit, room: in.MaxBytes}
	info, err := s.ReadFile(ctx, in.Path, w, sandbox.ReadFileOptions{})
	if err != nil && !w.full {
		return out, err
	}
	if w.full {
		// The copy was stopped early, so get the size with another call.
		if info, err = s.ReadFile(ctx, in.Path, io.Discard, sandbox.ReadFileOptions{Limit: 1}); err != nil {
			return out, err
		}
	}
	out.SizeBytes = info.Size
	data := w.buf.Bytes()
	if w.cut {
		data = wholeText(data)
	}
	out.set(data)
	switch {
	case w.cut && w.taken == 0:
		next := w.start + int64(len(data))
		out.Truncated, out.NextOffset = true, &next
		out.Note = fmt.Sprintf("line %d is longer than max_bytes; call again with offset %d to continue", first, next)
	case w.full:
		next := first + w.taken
		out.Truncated, out.NextLineOffset = true, &next
		out.Note = fmt.Sprintf("more lines follow; call again with line_offset %d to continue", next)
	case w.skip > 0:
		out.Note = fmt.Sprintf("the file has no line %d", first)
	}
	return out, nil
}

// errEnough stops a copy after enough data was read.
var errEnough = errors.New("enough was read")

// lineWriter keeps some of the lines written to it. It skips the first skip lines, and then keeps up to lines lines (0
// means no limit) and up to room bytes. It keeps whole lines only, unless the first line is longer than room.
type lineWriter struct {
	skip, lines, room int64
	start             int64 // offset of the first kept line
	taken             int64 // number of kept lines
	partial           int   // bytes of the incomplete line
	buf               bytes.Buffer
	full              bool // data followed after the kept lines
	cut               bool // the last line is truncated
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if w.full || (w.lines > 0 && w.taken == w.lines) {
			w.full = true
			return 0, errEnough
		}
		line := p
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			line = p[:i+1]
		}
		p = p[len(line):]
		w.add(line)
	}
	return n, nil
}

func (w *lineWriter) add(line []byte) {
	ends := line[len(line)-1] == '\n'
	if w.skip > 0 {
		w.start += int64(len(line))
		if ends {
			w.skip--
		}
		return
	}
	if left := w.room - int64(w.buf.Len()); int64(len(line)) > left {
		w.full = true
		if w.taken == 0 {
			w.buf.Write(line[:left])
			w.cut = true
		} else {
			w.buf.Truncate(w.buf.Len() - w.partial)
		}
		return
	}
	w.buf.Write(line)
	w.partial += len(line)
	if ends {
		w.taken++
		w.partial = 0
	}
}

func (b *binding) fsList(ctx context.Context, in fsListInput) (out fsListOutput, err error) {
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	list, err := s.ListFiles(ctx, cmp.Or(in.Path, "."),
		sandbox.ListFilesOptions{Recursive: in.Recursive, Limit: int(in.Limit)})
	out = fsListOutput{Entries: make([]fsEntry, len(list.Entries)), Truncated: list.Truncated, Total: list.Total}
	for i, e := range list.Entries {
		out.Entries[i] = fsEntry{
			Path: e.Path, PathB64: base64.StdEncoding.EncodeToString(e.RawPath), Type: string(e.Type), Size: e.Size,
			Mode: fmt.Sprintf("%04o", octal(e.Mode)), MtimeUnix: e.ModTime.Unix(),
		}
	}
	return out, err
}

// octal returns m as a mode for chmod.
func octal(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for bit, mode := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&mode != 0 {
			bits |= bit
		}
	}
	return bits
}

func (b *binding) fsDelete(ctx context.Context, in fsDeleteInput) (out fsDeleteOutput, err error) {
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	deleted, err := s.RemoveFile(ctx, in.Path, in.Recursive)
	return fsDeleteOutput{done: done{OK: true}, Deleted: deleted}, err
}
