package patch

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" //nolint:gosec // what Git names contents by
	"encoding/hex"
	"fmt"
	"io"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// Format writes the patch in Git's format: `git apply` takes it, with binary
// files, modes and renames.
func (p *Patch) Format(w io.Writer) error {
	for i := range p.Changes {
		if _, err := io.WriteString(w, p.Changes[i].file().String()); err != nil {
			return err
		}
	}
	return nil
}

// file returns the change as the library has it.
func (c *Change) file() *gitdiff.File {
	f := &gitdiff.File{
		OldName:      c.From,
		NewName:      c.Path,
		IsNew:        c.Old == nil,
		IsDelete:     c.New == nil,
		OldOIDPrefix: c.Old.objectID(),
		NewOIDPrefix: c.New.objectID(),
	}
	if c.Old != nil {
		f.OldMode = c.Old.gitMode()
	} else {
		f.OldName = ""
	}
	if c.New != nil {
		f.NewMode = c.New.gitMode()
	} else {
		f.NewName = ""
	}
	if c.From != c.Path {
		f.IsRename, f.Score = true, similarity(c.Old, c.New, 0)
	}
	same := f.OldOIDPrefix == f.NewOIDPrefix
	if same { // no index line when nothing but the mode or the name changed
		f.OldOIDPrefix, f.NewOIDPrefix = "", ""
	}
	if f.OldMode == f.NewMode && f.OldMode != 0 {
		f.NewMode = 0 // else it would be told as a change of mode
	}
	switch {
	case same:
	case c.isBinary():
		f.IsBinary = true
		f.BinaryFragment, f.ReverseBinaryFragment = c.New.literal(), c.Old.literal()
	default:
		for _, h := range c.hunks() {
			f.TextFragments = append(f.TextFragments, h.fragment(splitLines(c.Old.text())))
		}
	}
	return f
}

// objectID returns Git's name of the content: of the absent, zeros.
func (e *Entry) objectID() string {
	if e == nil {
		return hex.EncodeToString(make([]byte, sha1.Size))
	}
	h := sha1.New() //nolint:gosec // see the import
	fmt.Fprintf(h, "blob %d\x00", len(e.Content))
	h.Write(e.Content)
	return hex.EncodeToString(h.Sum(nil))
}

func (e *Entry) literal() *gitdiff.BinaryFragment {
	var content []byte
	if e != nil {
		content = e.Content
	}
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	z.Write(content) //nolint:errcheck // into memory
	z.Close()        //nolint:errcheck // into memory
	return &gitdiff.BinaryFragment{Method: gitdiff.BinaryPatchLiteral, Size: int64(len(content)), RawData: b.Bytes()}
}

// fragment returns the hunk as the library has it, with context from the old lines.
func (h *hunk) fragment(lines []string) *gitdiff.TextFragment {
	f := &gitdiff.TextFragment{OldPosition: int64(h.start), NewPosition: int64(h.now)}
	add := func(op gitdiff.LineOp, lines []string) {
		for _, l := range lines {
			f.Lines = append(f.Lines, gitdiff.Line{Op: op, Line: l})
			if op != gitdiff.OpAdd {
				f.OldLines++
			}
			if op != gitdiff.OpDelete {
				f.NewLines++
			}
		}
	}
	at := h.start
	for _, e := range h.edits {
		add(gitdiff.OpContext, lines[at:e.at])
		add(gitdiff.OpDelete, e.old)
		add(gitdiff.OpAdd, e.new)
		at = e.at + len(e.old)
	}
	add(gitdiff.OpContext, lines[at:h.end])
	// Lines count from 1; an empty side is named by the line before it.
	f.OldPosition += min(f.OldLines, 1)
	f.NewPosition += min(f.NewLines, 1)
	return f
}
