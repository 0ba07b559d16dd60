package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// fsRead returns part of a file, selected by bytes or lines. If the call selects no part and the file is an image, it
// returns the image.
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
	if err != nil {
		return out, err
	}
	if fail := b.check(ctx, toolspec.Args{Files: map[string]int64{in.Path: out.SizeBytes}}); fail != nil {
		return fsReadOutput{}, b.refused(ctx, fail)
	}
	return out, nil
}

// readBytes returns up to max_bytes bytes from offset on.
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
	next := in.Offset + int64(len(data))
	switch {
	case more && next < info.Size:
		out.continueAt(next, fmt.Sprintf("%d more bytes", info.Size-next))
	case more:
		out.continueAt(next, "more bytes may follow")
	case len(data) == 0 && in.Offset > 0:
		out.Note = fmt.Sprintf("offset %d is past the end of the file, which has %d bytes", in.Offset, info.Size)
	}
	return out, nil
}

// wholeText removes an incomplete character from the end of data if the rest is text. It never removes all data,
// because the next call would start at the same byte.
func wholeText(data []byte) []byte {
	if cut := wholeRunes(data); len(cut) > 0 && utf8.Valid(cut) {
		return cut
	}
	return data
}

// set sets the contents, as text if possible.
func (o *fsReadOutput) set(data []byte) {
	text, form := string(data), &o.Contents
	if !utf8.Valid(data) {
		text, form = base64.StdEncoding.EncodeToString(data), &o.ContentsB64
	}
	o.data, *form = data, &text
}

// continueAt marks the contents as incomplete. note is the reason.
func (o *fsReadOutput) continueAt(offset int64, note string) {
	o.Truncated, o.NextOffset = true, &offset
	o.Note = fmt.Sprintf("%s; call again with offset %d to continue", note, offset)
}

// readLines returns up to line_limit lines from line_offset on, with up to max_bytes bytes.
func readLines(ctx context.Context, s *session.Session, in fsReadInput) (out fsReadOutput, err error) {
	first := max(in.LineOffset, 1)
	w := &lineWriter{skip: first - 1, lines: in.LineLimit, room: in.MaxBytes}
	info, err := s.ReadFile(ctx, in.Path, w, sandbox.ReadFileOptions{})
	more := errors.Is(err, errEnough)
	if more {
		// The copy was stopped early, so get the size with another call.
		info, err = s.ReadFile(ctx, in.Path, io.Discard, sandbox.ReadFileOptions{Limit: 1})
	}
	if err != nil {
		return out, err
	}
	out.SizeBytes = info.Size
	data := w.buf.Bytes()
	if w.cut {
		data = wholeText(data)
	}
	out.set(data)
	switch {
	case w.cut:
		out.continueAt(w.start+int64(len(data)), fmt.Sprintf("line %d is longer than max_bytes", first))
	case more:
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
	taken             int64 // number of whole kept lines
	whole             int   // length of the whole kept lines
	buf               bytes.Buffer
	cut               bool // the first kept line is longer than room, and only the beginning is kept
}

// Write returns errEnough if data follows after the kept lines.
func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line := p
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			line = p[:i+1]
		}
		if err := w.add(line); err != nil {
			return 0, err
		}
		p = p[len(line):]
	}
	return n, nil
}

// add adds a line, or a part of a line without the line end.
func (w *lineWriter) add(line []byte) error {
	ends := line[len(line)-1] == '\n'
	if w.skip > 0 {
		w.start += int64(len(line))
		if ends {
			w.skip--
		}
		return nil
	}
	if w.lines > 0 && w.taken == w.lines {
		return errEnough
	}
	if left := w.room - int64(w.buf.Len()); int64(len(line)) > left {
		if w.taken == 0 {
			w.buf.Write(line[:left])
			w.cut = true
		} else {
			w.buf.Truncate(w.whole)
		}
		return errEnough
	}
	w.buf.Write(line)
	if ends {
		w.taken++
		w.whole = w.buf.Len()
	}
	return nil
}
