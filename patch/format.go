package patch

import (
	"bufio"
	"cmp"
	"compress/zlib"
	"crypto/sha1" //nolint:gosec // Git identifies contents by SHA-1
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// Format writes the patch in Git's format, including binary files and modes, for `git apply`. A renamed file is deleted
// and created.
func (p *Patch) Format(w io.Writer) error {
	for i := range p.Changes {
		for _, c := range p.Changes[i].sections() {
			f := c.file()
			if _, err := io.WriteString(w, f.String()); err != nil {
				return err
			}
			if c.IsBinary() && f.NewOIDPrefix != "" {
				if err := writeBinary(w, &c); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// sections returns the change as Git writes it. A file turned into a link, or vice versa, is deleted and created.
func (c *Change) sections() []Change {
	if c.Old == nil || c.New == nil || c.Old.isLink() == c.New.isLink() {
		return []Change{*c}
	}
	return []Change{{Path: c.Path, Old: c.Old}, {Path: c.Path, New: c.New}}
}

// file returns the change as a gitdiff.File without binary contents, because the library needs about ten times their
// size in memory.
func (c *Change) file() *gitdiff.File {
	side := func(e *Entry) (name string, mode fs.FileMode, id string) {
		if e == nil {
			return "", 0, e.objectID()
		}
		return c.Path, e.gitMode(), e.objectID()
	}
	f := &gitdiff.File{IsNew: c.Old == nil, IsDelete: c.New == nil}
	f.OldName, f.OldMode, f.OldOIDPrefix = side(c.Old)
	f.NewName, f.NewMode, f.NewOIDPrefix = side(c.New)
	if f.OldOIDPrefix == f.NewOIDPrefix { // no index line if only the mode changed
		f.OldOIDPrefix, f.NewOIDPrefix = "", ""
	}
	if f.OldMode == f.NewMode && f.OldMode != 0 {
		f.NewMode = 0 // otherwise the output would contain a mode change
	}
	for _, h := range c.Hunks() {
		f.TextFragments = append(f.TextFragments, h.fragment())
	}
	return f
}

// objectID returns Git's id of the content. For a missing entry, it returns zeros.
func (e *Entry) objectID() string {
	if e == nil {
		return hex.EncodeToString(make([]byte, sha1.Size))
	}
	h := sha1.New() //nolint:gosec // see the import
	fmt.Fprintf(h, "blob %d\x00", len(e.Content))
	h.Write(e.Content)
	return hex.EncodeToString(h.Sum(nil))
}

// writeBinary writes the contents of both sides.
func writeBinary(w io.Writer, c *Change) error {
	if _, err := io.WriteString(w, "GIT binary patch\n"); err != nil {
		return err
	}
	for _, e := range []*Entry{c.New, c.Old} {
		content := cmp.Or(e, &Entry{}).Content
		l := &literalWriter{w: bufio.NewWriter(w)}
		fmt.Fprintf(l.w, "literal %d\n", len(content)) // the writer keeps the error
		z := zlib.NewWriter(l)
		_, err := z.Write(content)
		if err := errors.Join(err, z.Close(), l.close()); err != nil {
			return err
		}
	}
	return nil
}

// literalWriter writes lines of 52 bytes in Git's base85, each after a letter for the length.
type literalWriter struct {
	w    *bufio.Writer
	line []byte
	out  []byte // reused
}

const base85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

func (l *literalWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), 52-len(l.line))
		l.line, rest = append(l.line, rest[:n]...), rest[n:]
		if len(l.line) == 52 {
			l.flush()
		}
	}
	return len(p), nil
}

func (l *literalWriter) flush() {
	n := len(l.line)
	if n == 0 {
		return
	}
	letter := byte('A' + n - 1)
	if n > 26 {
		letter = byte('a' + n - 27)
	}
	out := append(l.out[:0], letter)
	l.line = append(l.line, 0, 0, 0) // the last group may have fewer than four bytes
	for i := 0; i < n; i += 4 {
		v := binary.BigEndian.Uint32(l.line[i:])
		out = append(out, base85[v/(85*85*85*85)], base85[v/(85*85*85)%85], base85[v/(85*85)%85], base85[v/85%85],
			base85[v%85])
	}
	l.out = append(out, '\n')
	l.w.Write(l.out) //nolint:errcheck // the writer keeps its error
	l.line = l.line[:0]
}

func (l *literalWriter) close() error {
	l.flush()
	l.w.WriteByte('\n') //nolint:errcheck // the writer keeps its error
	return l.w.Flush()
}

// fragment returns the hunk as a gitdiff.TextFragment.
func (h *Hunk) fragment() *gitdiff.TextFragment {
	f := &gitdiff.TextFragment{OldPosition: int64(h.OldLine), NewPosition: int64(h.NewLine)}
	for _, l := range h.Lines {
		op := map[LineOp]gitdiff.LineOp{Context: gitdiff.OpContext, Deleted: gitdiff.OpDelete, Added: gitdiff.OpAdd}[l.Op]
		f.Lines = append(f.Lines, gitdiff.Line{Op: op, Line: l.Text})
		if l.Op != Added {
			f.OldLines++
		}
		if l.Op != Deleted {
			f.NewLines++
		}
	}
	return f
}
