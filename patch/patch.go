// Package patch compares two states of a directory, writes the difference in
// Git's format and applies it. It needs no Git, and no repository.
//
// A [Patch] holds the contents on both sides of each change, so that applying
// it to a directory that has changed meanwhile can merge texts, and overwrites
// nothing.
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

// Entry is what a path of a tree holds: a regular file or a symbolic link.
type Entry struct {
	// Mode has the permissions of a regular file, or fs.ModeSymlink. Only
	// whether a file's owner may execute it is part of a patch, as in Git.
	Mode fs.FileMode
	// Content is the content of a file and the target of a link.
	Content []byte
}

// NewLink returns the entry of a symbolic link to target.
func NewLink(target []byte) Entry { return Entry{Mode: fs.ModeSymlink, Content: target} }

// Tree is a state of a directory: what each path holds. Paths are relative,
// clean and separated by slashes. Directories are not part of it.
type Tree map[string]Entry

// Change is the difference at one path.
type Change struct {
	Path string
	Old  *Entry // nil: created
	New  *Entry // nil: deleted
}

// Patch is the difference between two trees, ordered by path.
type Patch struct {
	Changes []Change
	// Omitted are paths that differ, too, and are not among the changes, with
	// the reason; Compare leaves it to whoever made the trees.
	Omitted []Conflict
}

// Compare returns the changes that make before into after.
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

// Bounds of a text. What passes them is compared and written as a whole, as a
// binary file is: lines need many times the memory of what is in them.
const (
	maxTextBytes = 16 << 20
	maxTextLines = 200_000
)

func (e *Entry) isText() bool {
	// Git's rule: no NUL among the first 8,000 bytes.
	return !e.isLink() && !slices.Contains(e.Content[:min(len(e.Content), 8000)], 0) &&
		len(e.Content) <= maxTextBytes && bytes.Count(e.Content, []byte("\n")) <= maxTextLines
}

// gitMode returns the mode that Git has for e: it has three for what is not a directory.
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

// Stat is the size of a change or of a patch, in lines as `git diff --stat` counts them.
type Stat struct {
	Files      int `json:"files"`
	Insertions int `json:"insertions"`
	Deletions  int `json:"deletions"`
}

// String returns the stat as Git's last line: "1 file changed, 2 insertions(+)".
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
	for _, h := range c.hunks() {
		for _, e := range h.edits {
			s.Deletions += len(e.old)
			s.Insertions += len(e.new)
		}
	}
	return s
}

// edit replaces lines; several make one text into another. Lines have their ends.
type edit struct {
	at       int // index of the first line of old
	old, new []string
}

// hunk is some edits with their context: lines [start, end) of the old text,
// which begin at line now of the new one.
type hunk struct {
	start, end, now int
	edits           []edit
}

const contextLines = 3

// hunks returns the differences of the change's texts; none when either side is binary or a link.
func (c *Change) hunks() []hunk {
	old, now := c.text()
	if old == now {
		return nil
	}
	lines := splitLines(old)
	var hunks []hunk
	added := 0 // lines by all edits before
	for _, e := range lineEdits(old, now) {
		start, end := max(e.at-contextLines, 0), min(e.at+len(e.old)+contextLines, len(lines))
		if n := len(hunks); n > 0 && start <= hunks[n-1].end {
			hunks[n-1].end = end
			hunks[n-1].edits = append(hunks[n-1].edits, e)
		} else {
			hunks = append(hunks, hunk{start: start, end: end, now: start + added, edits: []edit{e}})
		}
		added += len(e.new) - len(e.old)
	}
	return hunks
}

// text returns what the change compares line by line: nothing where a side is not text.
func (c *Change) text() (old, now string) {
	if c.isBinary() {
		return "", ""
	}
	return c.Old.text(), c.New.text()
}

func (e *Entry) text() string {
	if e == nil {
		return ""
	}
	return string(e.Content)
}

// isBinary reports whether the change of contents has no lines: of files that are binary or too large. A link's target
// is a text in Git's format.
func (c *Change) isBinary() bool {
	binary := func(e *Entry) bool { return e != nil && !e.isLink() && !e.isText() }
	return binary(c.Old) || binary(c.New)
}

// lineEdits returns the edits in whole lines that make old into now.
func lineEdits(old, now string) []edit {
	var edits []edit
	line, at := 0, 0 // line is the number of the one that begins at byte `at`
	for _, e := range udiff.Lines(old, now) {
		line += strings.Count(old[at:e.Start], "\n")
		at = e.Start
		edits = append(edits, edit{at: line, old: splitLines(old[e.Start:e.End]), new: splitLines(e.New)})
	}
	return edits
}

func splitLines(s string) []string { return slices.Collect(strings.Lines(s)) }
