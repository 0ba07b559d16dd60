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
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
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
	From string // the path before; differs from Path after a rename
	Path string // the path after; equals From for a deletion
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

// Compare returns the changes that make before into after. A file that was
// deleted and one that was created are a rename when they are alike.
func Compare(before, after Tree) *Patch {
	p := &Patch{}
	var deleted, created []string
	for _, path := range slices.Sorted(maps.Keys(before)) {
		old := before[path]
		if now, ok := after[path]; !ok {
			deleted = append(deleted, path)
		} else if !old.equal(&now) {
			p.Changes = append(p.Changes, Change{From: path, Path: path, Old: &old, New: &now})
		}
	}
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[path]; !ok {
			created = append(created, path)
		}
	}
	from := renames(before, after, deleted, created)
	renamed := map[string]bool{}
	for _, path := range created {
		now := after[path]
		c := Change{From: path, Path: path, New: &now}
		if f, ok := from[path]; ok {
			old := before[f]
			c.From, c.Old = f, &old
			renamed[f] = true
		}
		p.Changes = append(p.Changes, c)
	}
	for _, path := range deleted {
		if !renamed[path] {
			old := before[path]
			p.Changes = append(p.Changes, Change{From: path, Path: path, Old: &old})
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

// Rename detection compares each pair of files, so that Git's own limits hold:
// 50 % of the larger content in common, and not above 1,000 x 1,000 pairs. The
// contents that are compared have a bound, too. Beyond these only files that
// are the same are renames.
const (
	minSimilarity    = 50
	maxComparisons   = 1000 * 1000
	maxComparedBytes = 256 << 20
)

// renames returns for paths that were created which deleted one they had been.
func renames(before, after Tree, deleted, created []string) map[string]string {
	from := sameContents(before, after, deleted, created)
	taken := map[string]bool{}
	for _, was := range from {
		taken[was] = true
	}
	alike := func(tree Tree, names []string, skip func(string) bool) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			e := tree[name]
			return skip(name) || len(e.Content) == 0 || !e.isText()
		})
	}
	olds := alike(before, deleted, func(name string) bool { return taken[name] })
	news := alike(after, created, func(name string) bool { return from[name] != "" })
	if len(olds)*len(news) > maxComparisons {
		return from
	}
	found, left := maps.Clone(from), maxComparedBytes
	for _, now := range news {
		e, best := after[now], minSimilarity-1
		for _, was := range olds {
			old := before[was]
			if taken[was] || inside(was, now) || inside(now, was) || !old.maybeLike(&e, minSimilarity) {
				continue
			}
			if left -= len(old.Content) + len(e.Content); left < 0 {
				return from
			}
			if s := similarity(&old, &e); s > best {
				best, found[now] = s, was
			}
		}
		taken[found[now]] = true
	}
	return found
}

// sameContents returns the renames of files that are as they were. Empty files are not alike.
func sameContents(before, after Tree, deleted, created []string) map[string]string {
	type id struct {
		sum  [sha256.Size]byte
		link bool
	}
	sizes, by := map[int]bool{}, map[id][]string{}
	for _, was := range deleted {
		if e := before[was]; len(e.Content) > 0 {
			at := id{sha256.Sum256(e.Content), e.isLink()}
			by[at] = append(by[at], was)
			sizes[len(e.Content)] = true
		}
	}
	from := map[string]string{}
	for _, now := range created {
		e := after[now]
		if !sizes[len(e.Content)] {
			continue
		}
		at := id{sha256.Sum256(e.Content), e.isLink()}
		if i := slices.IndexFunc(by[at], func(was string) bool { return !inside(was, now) && !inside(now, was) }); i >= 0 {
			from[now] = by[at][i]
			by[at] = slices.Delete(by[at], i, i+1)
		}
	}
	return from
}

// inside reports whether the path is below what would have to be a directory then.
func inside(dir, path string) bool { return strings.HasPrefix(path, dir+"/") }

// maybeLike reports whether the sizes let so much be the same.
func (e *Entry) maybeLike(o *Entry, percent int) bool {
	large, small := max(len(e.Content), len(o.Content)), min(len(e.Content), len(o.Content))
	return small*100 >= large*percent
}

// similarity returns how much of the larger text both have, in percent: 100 for what is the same alone.
func similarity(a, b *Entry) int {
	switch {
	case bytes.Equal(a.Content, b.Content):
		return 100
	case !a.isText() || !b.isText():
		return 0
	}
	lines := map[string]int{}
	for line := range bytes.Lines(a.Content) {
		lines[string(line)]++
	}
	same := 0
	for line := range bytes.Lines(b.Content) {
		if lines[string(line)] > 0 {
			lines[string(line)]--
			same += len(line)
		}
	}
	return min(same*100/max(len(a.Content), len(b.Content)), 99)
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
