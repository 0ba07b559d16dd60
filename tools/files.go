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
	"github.com/workcell-dev/workcell/session"
)

// Bounds of the file tools.
const (
	defaultReadBytes = 256 << 10
	maxTransfer      = 64 << 20 // of one file in one call, either way
)

func (b *binding) fsWrite(ctx context.Context, in fsWriteInput) (fsWriteOutput, error) {
	data, fail := writeContents(in)
	if fail != nil {
		return fsWriteOutput{}, fail
	}
	mode, fail := fileMode(in.Mode)
	if fail != nil {
		return fsWriteOutput{}, fail
	}
	s, unlock, err := b.lock(ctx, in.SandboxID, in.Path)
	if err != nil {
		return fsWriteOutput{}, err
	}
	defer unlock()
	info, err := s.WriteFile(ctx, in.Path, bytes.NewReader(data), session.WriteFileOptions{
		Mode: mode, Overwrite: in.Overwrite, Size: int64(len(data)),
	})
	if errors.Is(err, backend.ErrExists) && !in.Overwrite {
		return fsWriteOutput{}, failure(CodeExists, "%s exists already", clip(in.Path)).
			withRemediation("Pass overwrite: true to replace it, or write to another path.")
	}
	if err != nil {
		return fsWriteOutput{}, err
	}
	return fsWriteOutput{OK: true, Path: absolute(s, info.Path), SizeBytes: info.Size}, nil
}

// lock returns the sandbox of a call that writes to a path, once no other does; unlock must be called when err is nil.
func (b *binding) lock(ctx context.Context, id, name string) (s *session.Session, unlock func(), err error) {
	if s, err = b.sandbox(ctx, id); err == nil {
		unlock, err = b.box.lockPath(ctx, s.ID(), absolute(s, name))
	}
	return s, unlock, err
}

func writeContents(in fsWriteInput) ([]byte, *ToolError) {
	if in.Path == "" {
		return nil, failure(CodeInvalid, "path is empty")
	}
	var data []byte
	switch {
	case in.Contents != nil && in.ContentsB64 != nil:
		return nil, failure(CodeInvalid, "both contents and contents_b64 are given")
	case in.Contents != nil:
		data = []byte(*in.Contents)
	case in.ContentsB64 != nil:
		var fail *ToolError
		if data, fail = fromBase64("contents_b64", *in.ContentsB64); fail != nil {
			return nil, fail
		}
	default:
		return nil, failure(CodeInvalid, "neither contents nor contents_b64 is given").
			withRemediation("Pass the text as contents; an empty file is contents: \"\".")
	}
	if len(data) > maxTransfer {
		return nil, failure(CodeTooLarge, "the contents have %d bytes, the limit of one call is %d", len(data), maxTransfer)
	}
	return data, nil
}

// fileMode reads permissions in octal; empty is zero, which leaves them to the sandbox.
func fileMode(text string) (fs.FileMode, *ToolError) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 || n == 0 {
		return 0, failure(CodeInvalid, "mode %q must be permissions in octal between 0001 and 0777, as in 0755", clip(text))
	}
	return fs.FileMode(n), nil
}

// absolute returns a path of the file tools as commands in the sandbox see it.
func absolute(s *session.Session, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(cmp.Or(s.Info().Workdir, backend.Workdir), name)
}

func (b *binding) fsRead(ctx context.Context, in fsReadInput) (fsReadOutput, error) {
	byLines := in.LineOffset > 0 || in.LineLimit > 0
	if byLines && in.Offset > 0 {
		return fsReadOutput{}, failure(CodeInvalid, "offset counts bytes and cannot go with line_offset or line_limit")
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return fsReadOutput{}, err
	}
	in.MaxBytes = cmp.Or(in.MaxBytes, b.readBytes)
	read := readBytes
	if byLines {
		read = readLines
	}
	out, err := read(ctx, s, in)
	if err == nil && b.check != nil {
		if fail := b.check(ctx, Args{Files: map[string]int64{in.Path: out.SizeBytes}}); fail != nil {
			return fsReadOutput{}, fail
		}
	}
	return out, err
}

// size returns the size of the contents, at most a few bytes too large when they are in base64.
func (in *fsWriteInput) size() int64 {
	switch {
	case in.ContentsB64 != nil:
		return int64(len(*in.ContentsB64)) / 4 * 3
	case in.Contents != nil:
		return int64(len(*in.Contents))
	}
	return 0
}

func readBytes(ctx context.Context, s *session.Session, in fsReadInput) (fsReadOutput, error) {
	data, info, err := s.ReadFileBytes(ctx, in.Path, session.ReadFileOptions{Offset: in.Offset, Limit: in.MaxBytes})
	if err != nil {
		return fsReadOutput{}, err
	}
	out := fsReadOutput{SizeBytes: info.Size}
	// A file of /proc or one that grows may hold more than its size says.
	more := in.Offset+int64(len(data)) < info.Size || int64(len(data)) == in.MaxBytes && info.Size == 0
	if more {
		data = wholeRunes(data)
	}
	out.set(data)
	if len(data) == 0 && in.Offset > 0 {
		out.Note = fmt.Sprintf("the file has no byte at offset %d, it ends after %d bytes", in.Offset, info.Size)
	}
	if more {
		next := in.Offset + int64(len(data))
		out.Truncated, out.NextOffset = true, &next
		out.Note = fmt.Sprintf("%d more bytes; call again with offset %d to read on", max(info.Size-next, 0), next)
	}
	return out, nil
}

// wholeRunes takes a character that is cut in two off the end, when the rest is text.
func wholeRunes(data []byte) []byte {
	cut := data
	for n := 1; n < utf8.UTFMax && n < len(data); n++ {
		if utf8.RuneStart(data[len(data)-n]) {
			if !utf8.FullRune(data[len(data)-n:]) {
				cut = data[:len(data)-n]
			}
			break
		}
	}
	if utf8.Valid(cut) {
		return cut
	}
	return data
}

func (o *fsReadOutput) set(data []byte) {
	text := string(data)
	if utf8.ValidString(text) {
		o.Contents = &text
		return
	}
	text = base64.StdEncoding.EncodeToString(data)
	o.ContentsB64 = &text
}

func readLines(ctx context.Context, s *session.Session, in fsReadInput) (fsReadOutput, error) {
	first := max(in.LineOffset, 1)
	w := &lineWriter{skip: first - 1, lines: in.LineLimit, room: in.MaxBytes}
	info, err := s.ReadFile(ctx, in.Path, w, session.ReadFileOptions{})
	if err != nil && !w.full {
		return fsReadOutput{}, err
	}
	if w.full {
		// The copy was ended early, so the size is still to be asked for.
		if info, err = s.ReadFile(ctx, in.Path, io.Discard, session.ReadFileOptions{Limit: 1}); err != nil {
			return fsReadOutput{}, err
		}
	}
	out := fsReadOutput{SizeBytes: info.Size}
	data := w.buf.Bytes()
	if w.cut {
		data = wholeRunes(data)
	}
	out.set(data)
	switch {
	case w.cut && w.taken == 0:
		next := w.start + int64(len(data))
		out.Truncated, out.NextOffset = true, &next
		out.Note = fmt.Sprintf("line %d is longer than max_bytes; call again with offset %d to read on", first, next)
	case w.full:
		next := first + w.taken
		out.Truncated, out.NextLineOffset = true, &next
		out.Note = fmt.Sprintf("more lines follow; call again with line_offset %d to read on", next)
	case w.skip > 0:
		out.Note = fmt.Sprintf("the file has no line %d", first)
	}
	return out, nil
}

// errEnough ends a copy of which no more is wanted.
var errEnough = errors.New("enough was read")

// lineWriter keeps some lines of what is written to it: it passes skip lines over, then keeps up to lines lines (0 is no
// bound) and room bytes, whole lines only unless the first one is longer than room.
type lineWriter struct {
	skip, lines, room int64
	start             int64 // offset of the first kept line
	taken             int64 // lines kept
	partial           int   // bytes of the line that is not complete yet
	buf               bytes.Buffer
	full              bool // more follows than was kept
	cut               bool // the last line ends in its middle
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

func (b *binding) fsList(ctx context.Context, in fsListInput) (fsListOutput, error) {
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return fsListOutput{}, err
	}
	list, err := s.ListFiles(ctx, cmp.Or(in.Path, "."), session.ListFilesOptions{Recursive: in.Recursive, Limit: int(in.Limit)})
	if err != nil {
		return fsListOutput{}, err
	}
	out := fsListOutput{Entries: make([]fsEntry, 0, len(list.Entries)), Truncated: list.Truncated, Total: list.Total}
	for _, e := range list.Entries {
		entry := fsEntry{
			Path: e.Path, Type: string(e.Type), Size: e.Size, Mode: fmt.Sprintf("%04o", octal(e.Mode)), MtimeUnix: e.ModTime.Unix(),
		}
		if len(e.RawPath) > 0 {
			entry.PathB64 = base64.StdEncoding.EncodeToString(e.RawPath)
		}
		out.Entries = append(out.Entries, entry)
	}
	return out, nil
}

// octal returns a mode as chmod takes it.
func octal(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

func (b *binding) fsDelete(ctx context.Context, in fsDeleteInput) (fsDeleteOutput, error) {
	s, unlock, err := b.lock(ctx, in.SandboxID, in.Path)
	if err != nil {
		return fsDeleteOutput{}, err
	}
	defer unlock()
	deleted, err := s.RemoveFile(ctx, in.Path, in.Recursive)
	if err != nil {
		return fsDeleteOutput{}, err
	}
	return fsDeleteOutput{OK: true, Deleted: deleted}, nil
}
