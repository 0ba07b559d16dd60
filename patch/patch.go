// Package patch compares two states of a directory, writes the difference in Git's format, and applies it. It needs
// neither Git nor a repository.
//
// A [Patch] contains the contents of both sides of each change. Therefore it can be applied to a directory with later
// changes: texts are merged, and nothing is overwritten.
package patch

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// Entry is the entry of a tree at a path: a regular file or a symbolic link.
type Entry struct {
	// Mode contains the permissions of a regular file, or fs.ModeSymlink. As in Git, only the owner's executable bit is
	// part of a patch.
	Mode fs.FileMode
	// Content is the content of a file or the target of a link.
	Content []byte
}

// NewLink returns the entry of a symbolic link to target.
func NewLink(target []byte) Entry { return Entry{Mode: fs.ModeSymlink, Content: target} }

// Tree is a state of a directory: its entries by path. Paths are relative and clean and use slashes, for example
// cmd/main.go. Directories are not included.
type Tree map[string]Entry

// Change is the difference at one path.
type Change struct {
	Path string
	Old  *Entry // nil if created
	New  *Entry // nil if deleted
}

// Patch is the difference between two trees, sorted by path.
type Patch struct {
	Changes []Change
	// Omitted are further paths that differ but are not in Changes, with the reasons. Compare does not set it; the caller
	// that read the trees does.
	Omitted []Conflict
}

// Compare returns the changes from before to after.
func Compare(before, after Tree) *Patch {
	p := &Patch{}
	for path, old := range before {
		if now, ok := after[path]; !ok {
			p.Changes = append(p.Changes, Change{Path: path, Old: &old})
		} else if !old.equal(&now) {
			p.Changes = append(p.Changes, Change{Path: path, Old: &old, New: &now})
		}
	}
	for path, now := range after {
		if _, ok := before[path]; !ok {
			p.Changes = append(p.Changes, Change{Path: path, New: &now})
		}
	}
	slices.SortFunc(p.Changes, func(a, b Change) int { return cmp.Compare(a.Path, b.Path) })
	return p
}

func (e *Entry) isLink() bool { return e.Mode&fs.ModeSymlink != 0 }

// Limits of a text. Larger files are compared and written as a whole, like binary files, because the lines of a text
// need many times its size in memory.
const (
	maxTextBytes = 16 << 20
	maxTextLines = 200_000
)

func (e *Entry) isText() bool {
	// Git's rule: no NUL byte in the first 8,000 bytes.
	return !e.isLink() && !slices.Contains(e.Content[:min(len(e.Content), 8000)], 0) &&
		len(e.Content) <= maxTextBytes && bytes.Count(e.Content, []byte("\n")) <= maxTextLines
}

// gitMode returns Git's mode of e. Git has three modes for entries other than directories.
func (e *Entry) gitMode() fs.FileMode {
	switch {
	case e.isLink():
		return 0o120000
	case e.Mode&0o100 != 0:
		return 0o100755
	}
	return 0o100644
}

func (e *Entry) equal(o *Entry) bool {
	return e.gitMode() == o.gitMode() && bytes.Equal(e.Content, o.Content)
}

// Stat is the size of a change or a patch in lines, like `git diff --stat`.
type Stat struct {
	Files      int `json:"files"`
	Insertions int `json:"insertions"`
	Deletions  int `json:"deletions"`
}

// String returns the stat like Git's last line: "1 file changed, 2 insertions(+)".
func (s Stat) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s changed", count(s.Files, "file"))
	if s.Insertions > 0 || s.Deletions == 0 {
		fmt.Fprintf(&b, ", %s(+)", count(s.Insertions, "insertion"))
	}
	if s.Deletions > 0 || s.Insertions == 0 {
		fmt.Fprintf(&b, ", %s(-)", count(s.Deletions, "deletion"))
	}
	return b.String()
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Stat returns the size of the whole patch.
func (p *Patch) Stat() Stat {
	var all Stat
	for i := range p.Changes {
		s := p.Changes[i].Stat()
		all.Files++
		all.Insertions += s.Insertions
		all.Deletions += s.Deletions
	}
	return all
}

// Stat returns the size of the change. Binary files have no lines.
func (c *Change) Stat() Stat {
	s := Stat{Files: 1}
	_, edits := c.edits()
	for _, e := range edits {
		s.Deletions += len(e.old)
		s.Insertions += len(e.new)
	}
	return s
}

// edit replaces lines. A sequence of edits converts one text to another. Lines include their line ends.
type edit struct {
	at       int // index of the first line of old
	old, new []string
}

const contextLines = 3

// LineOp is the role of a line in a Hunk.
type LineOp byte

// Roles of lines.
const (
	Context LineOp = ' '
	Deleted LineOp = '-'
	Added   LineOp = '+'
)

// Line is a line of a Hunk, with the line end. The last line of a file may have none.
type Line struct {
	Op   LineOp
	Text string
}

// Hunk contains changed lines of a text and the lines around them.
type Hunk struct {
	OldLine, NewLine int // numbers of the first lines, from 1; an empty side has the number of the line before it
	Lines            []Line
}

// Hunks returns the changed lines of a text. For a binary file, or if only the mode changed, it returns nil.
func (c *Change) Hunks() []Hunk {
	var list []Hunk
	lines, edits := c.edits()
	at, added, open := 0, 0, false // at is the next line of the old text; added counts the lines added before it
	for i, e := range edits {
		if !open {
			at = max(e.at-contextLines, 0)
			list = append(list, Hunk{OldLine: at, NewLine: at + added})
		}
		h := &list[len(list)-1]
		h.add(Context, lines[at:e.at])
		h.add(Deleted, e.old)
		h.add(Added, e.new)
		at, added = e.at+len(e.old), added+len(e.new)-len(e.old)
		end := min(at+contextLines, len(lines))
		if open = i+1 < len(edits) && edits[i+1].at-contextLines <= end; open {
			continue
		}
		h.add(Context, lines[at:end])
		if slices.ContainsFunc(h.Lines, func(l Line) bool { return l.Op != Added }) {
			h.OldLine++
		}
		if slices.ContainsFunc(h.Lines, func(l Line) bool { return l.Op != Deleted }) {
			h.NewLine++
		}
	}
	return list
}

func (h *Hunk) add(op LineOp, lines []string) {
	for _, l := range lines {
		h.Lines = append(h.Lines, Line{op, l})
	}
}

// edits returns the old text's lines and the edits that convert them to the new text. If a side is binary, it returns
// nil.
func (c *Change) edits() (lines []string, edits []edit) {
	if c.IsBinary() {
		return nil, nil
	}
	old, line, at := c.Old.text(), 0, 0 // line is the number of the line that begins at byte `at`
	lines = splitLines(old)
	for _, e := range diffLines(old, c.New.text()) {
		line += strings.Count(old[at:e.Start], "\n")
		at = e.Start
		n := len(splitLines(old[e.Start:e.End]))
		edits = append(edits, edit{at: line, old: lines[line : line+n], new: splitLines(e.New)})
	}
	return lines, edits
}

func (e *Entry) text() string {
	if e == nil {
		return ""
	}
	return string(e.Content)
}

// IsBinary reports whether a side of the change has no lines, because the file is binary or too large. In Git's format,
// a link's target is text.
func (c *Change) IsBinary() bool {
	binary := func(e *Entry) bool { return e != nil && !e.isLink() && !e.isText() }
	return binary(c.Old) || binary(c.New)
}

// diffLines is like udiff.Lines, which finds the fewest edits but gives up after 100 differences and then reports equal
// lines as replaced. In this case, diffLines compares only the parts between the anchors of the texts.
func diffLines(old, now string) []udiff.Edit {
	edits := udiff.Lines(old, now)
	if !slices.ContainsFunc(edits, func(e udiff.Edit) bool { return len(anchors(old[e.Start:e.End], e.New)) > 0 }) {
		return edits
	}
	edits = nil
	var at [2]int
	for _, end := range append(anchors(old, now), [2]int{len(old), len(now)}) {
		if a, b := old[at[0]:end[0]], now[at[1]:end[1]]; a != b { // most parts are one equal line
			for _, e := range udiff.Lines(a, b) {
				edits = append(edits, udiff.Edit{Start: at[0] + e.Start, End: at[0] + e.End, New: e.New})
			}
		}
		at = end
	}
	return edits
}

// anchors returns the positions, in both texts, of the longest sequence of lines that are unique in each text.
func anchors(old, now string) (list [][2]int) {
	type line struct {
		at, count [2]int // in each text
		before    *line  // the anchor before this line
	}
	lines, all := map[string]*line{}, []*line{}
	for i, text := range []string{old, now} {
		at := 0
		for s := range strings.Lines(text) {
			if lines[s] == nil {
				lines[s] = &line{}
				all = append(all, lines[s])
			}
			lines[s].at[i] = at
			lines[s].count[i]++
			at += len(s)
		}
	}
	ends := []*line{{at: [2]int{-1, -1}}} // ends[n] is the earliest line in the new text that can be anchor n
	for _, l := range all {
		if l.count == [2]int{1, 1} {
			n, _ := slices.BinarySearchFunc(ends, l, func(a, b *line) int { return a.at[1] - b.at[1] })
			if n == len(ends) {
				ends = append(ends, nil)
			}
			ends[n], l.before = l, ends[n-1]
		}
	}
	for l := ends[len(ends)-1]; l.before != nil; l = l.before {
		list = append(list, l.at)
	}
	slices.Reverse(list)
	return list
}

func splitLines(s string) []string { return slices.Collect(strings.Lines(s)) }
