package patch

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/aymanbagabas/go-udiff"
)

// Result is what became of the changes of a patch, by path.
type Result struct {
	Applied   []string   `json:"applied,omitempty"`   // made as they are
	Merged    []string   `json:"merged,omitempty"`    // made beside other changes of the same file
	Unchanged []string   `json:"unchanged,omitempty"` // made before
	Marked    []string   `json:"marked,omitempty"`    // conflicts that ApplyMarked wrote into the file
	Conflicts []Conflict `json:"conflicts,omitempty"` // left as it was
}

// Conflict is a change that was not made.
type Conflict struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Apply makes the changes in the directory dir. A file that differs from what
// it was when the patch was made is never overwritten: texts are merged where
// the two changes are apart, and everything else is a conflict and left alone.
// Nothing outside of dir, nothing through a symbolic link and nothing in a Git
// repository, below a directory named .git or without one, is ever written.
// Each file is replaced as a whole. The path of dir must not contain a link
// either, because its target may have changed since the copy.
//
// The error is for what keeps the patch from being applied further; what was
// made until then stays and is in the result.
func (p *Patch) Apply(dir string) (Result, error) { return p.apply(dir, false) }

// ApplyMarked is Apply, but if the patch and the directory changed the same lines of a text, it writes both versions
// between conflict markers, as Git does.
func (p *Patch) ApplyMarked(dir string) (Result, error) { return p.apply(dir, true) }

func (p *Patch) apply(dir string, mark bool) (Result, error) {
	var result Result
	root, err := openExact(dir)
	if err != nil {
		return result, err
	}
	defer root.Close()
	a := newApplier(root, func(yield func(string) bool) {
		for _, c := range p.Changes {
			if c.New != nil && !yield(c.Path) {
				return
			}
		}
	})
	// Deletions first: a directory may become a file and the other way round.
	// Links last: where they lead depends on everything else.
	changes := slices.Clone(p.Changes)
	slices.SortStableFunc(changes, func(a, b Change) int { return a.turn() - b.turn() })
	var links []step
	for i := range changes {
		c := &changes[i]
		to := &result.Unchanged
		s, err := a.plan(c)
		if mark && errors.Is(err, errSameLines) {
			to, err = &result.Marked, nil
		}
		switch {
		case err != nil || s == nil:
		case s.next != nil && s.next.isLink():
			links = append(links, *s)
			continue
		default:
			switch {
			case to == &result.Marked:
			case s.next != nil && !s.next.equal(c.New):
				to = &result.Merged
			default:
				to = &result.Applied
			}
			err = a.take(s)
		}
		if err := result.add(c.Path, to, err); err != nil {
			return result, err
		}
	}
	return result, a.makeLinks(links, &result)
}

// openExact opens a directory that no link leads to.
func openExact(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	opened, err := root.Stat(".")
	reached, reachErr := statExact(filepath.Clean(dir))
	if exact, _ := filepath.EvalSymlinks(dir); exact != "" && exact != filepath.Clean(dir) {
		reachErr = fmt.Errorf("a link in the path %s points to %s: files are not written through links", dir, exact)
	}
	if err = errors.Join(err, reachErr); err == nil && !os.SameFile(opened, reached) { // links may change at any moment
		err = fmt.Errorf("the directories of the path %s are changing: files are not written through links", dir)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// turn returns when the change is made: what is lower comes first.
func (c *Change) turn() int {
	switch {
	case c.New == nil:
		return 0
	case !c.New.isLink():
		return 1
	}
	return 2
}

// add adds the change at a path to one of the lists, or to the conflicts. It returns errors that are not conflicts.
func (r *Result) add(name string, to *[]string, err error) error {
	var conflict conflictError
	switch {
	case errors.As(err, &conflict):
		r.Conflicts = append(r.Conflicts, Conflict{name, string(conflict)})
	case err != nil:
		return fmt.Errorf("the change of %s: %w", name, err)
	default:
		*to = append(*to, name)
	}
	return nil
}

// conflictError is why a change is not made.
type conflictError string

func (e conflictError) Error() string { return string(e) }

// errSameLines is the conflict of two changes of the same lines.
const errSameLines = conflictError("the same lines have changed since the patch was created")

// Conflict markers.
const (
	markOurs   = "<<<<<<< directory\n"
	markMiddle = "=======\n"
	markTheirs = ">>>>>>> patch\n"
)

type applier struct {
	root  *os.Root
	parts map[string]bool // paths of gitParts that will be there, as gitPath has them
	repos map[string]bool // directories, and whether they are or become repositories
	swept map[string]bool // directories without the files of killed writers
	left  int             // bytes of paths that may still be looked up for links
}

// gitParts are the names by which Git knows a directory for a repository.
var gitParts = []string{"head", "commondir", "objects", "refs"}

// newApplier returns an applier that is about to make files and links.
func newApplier(root *os.Root, files iter.Seq[string]) *applier {
	a := &applier{root: root, parts: map[string]bool{}, repos: map[string]bool{}, swept: map[string]bool{}, left: maxFollow}
	for name := range files {
		for at := name; at != "." && at != "/"; at = path.Dir(at) {
			if folded := gitPath(at); slices.Contains(gitParts, path.Base(folded)) {
				a.parts[folded] = true
			}
		}
	}
	return a
}

// isRepository reports whether Git takes a directory for a bare repository, or will: its configuration names programs.
func (a *applier) isRepository(dir string) bool {
	is, known := a.repos[dir]
	if !known {
		has := func(name string) bool {
			_, err := a.root.Lstat(filepath.FromSlash(path.Join(dir, name)))
			return err == nil || a.parts[gitPath(path.Join(dir, name))]
		}
		is = has("HEAD") && (has("commondir") || has("objects") && has("refs"))
		a.repos[dir] = is
	}
	return is
}

// step replaces the entry at a path. A nil entry means that the path is free.
type step struct {
	name      string
	was, next *Entry
}

// plan returns the step of a change. If the directory has the change already, plan returns nil. With errSameLines, the
// step writes conflict markers.
func (a *applier) plan(c *Change) (*step, error) {
	if err := a.check(c.Path); err != nil {
		return nil, err
	}
	if c.New != nil {
		if err := checkLink(c.Path, c.New); err != nil {
			return nil, err
		}
	}
	was, err := a.read(c.Path)
	if err != nil || c.New == nil && was == nil || c.New != nil && was != nil && was.equal(c.New) {
		return nil, err
	}
	next, err := merge(c, was)
	if next != nil && was != nil && next.equal(was) { // merged before
		return nil, err
	}
	return &step{c.Path, was, next}, err
}

// take makes a change as planned.
func (a *applier) take(s *step) error {
	if s.next == nil {
		return a.remove(s.name, s.was)
	}
	// An existing file keeps its permissions. The umask sets the permissions of a new file.
	return a.write(s.name, s.was, s.next, s.was != nil && !s.was.isLink())
}

// merge returns what the change makes of what is at its path: nil is nothing. With errSameLines, the text has conflict
// markers.
func merge(c *Change, was *Entry) (*Entry, error) {
	switch {
	case c.Old == nil && was == nil:
		return c.New, nil
	case c.Old == nil:
		return nil, conflictError("the file already exists with different content")
	case was == nil:
		return nil, conflictError("the file was deleted since the patch was created")
	case was.equal(c.Old):
		return c.New.withPermissions(was), nil
	case c.New == nil || was.isLink() || c.Old.isLink() || c.New.isLink() || c.isBinary() || !was.isText():
		return nil, conflictError("the file has changed since the patch was created")
	case strings.Contains(was.text(), markOurs):
		return nil, conflictError("the file has unresolved conflict markers")
	}
	text, err := merge3(c.Old.text(), was.text(), c.New.text())
	next := &Entry{Mode: c.New.Mode, Content: []byte(text)}
	if c.Old.gitMode() == c.New.gitMode() {
		next.Mode = was.Mode
	}
	return next.withPermissions(was), err
}

// withPermissions returns e with the permissions of was; only executing is e's own.
func (e *Entry) withPermissions(was *Entry) *Entry {
	if e == nil || e.isLink() || was.isLink() {
		return e
	}
	perm := was.Mode.Perm() &^ 0o111
	if e.Mode&0o100 != 0 {
		perm |= perm & 0o444 >> 2
	}
	return &Entry{Mode: perm, Content: e.Content}
}

// merge3 returns base with the changes of both. If they touch each other and differ, the text has both versions of
// these lines between conflict markers, and the error is errSameLines.
func merge3(base, a, b string) (string, error) {
	var sides [2]string // each with the changes of the other that are apart from its own
	edits := [2][]udiff.Edit{udiff.Lines(base, a), udiff.Lines(base, b)}
	for i, own := range edits {
		apart := slices.DeleteFunc(slices.Clone(edits[1-i]), func(e udiff.Edit) bool {
			return slices.ContainsFunc(own, func(f udiff.Edit) bool {
				// Lines side by side belong together more often than not.
				return e != f && e.Start <= f.End && f.Start <= e.End
			})
		})
		all, ok := udiff.Merge(own, apart)
		text, err := udiff.Apply(base, all)
		if !ok || err != nil {
			return "", conflictError("the changes cannot be merged")
		}
		sides[i] = text
	}
	if sides[0] == sides[1] {
		return sides[0], nil
	}
	var marked strings.Builder
	at := 0
	for _, e := range udiff.Lines(sides[0], sides[1]) {
		ours := markOurs + ended(sides[0][e.Start:e.End])
		marked.WriteString(sides[0][at:e.Start] + ours + markMiddle + ended(e.New) + markTheirs)
		at = e.End
	}
	return marked.String() + sides[0][at:], errSameLines
}

// ended returns lines with a newline at the end.
func ended(lines string) string {
	if lines == "" || strings.HasSuffix(lines, "\n") {
		return lines
	}
	return lines + "\n"
}

// check refuses a path at which a patch may not write.
func (a *applier) check(name string) error {
	local, err := filepath.Localize(name)
	if err != nil || name == "." {
		return conflictError("the path leads outside the directory")
	}
	parts := strings.Split(filepath.ToSlash(local), "/")
	if slices.ContainsFunc(parts, isGitDir) {
		return conflictError("files below .git are not written, because Git can run them on this host")
	}
	for i := range parts {
		if a.isRepository(path.Join(append([]string{"."}, parts[:i]...)...)) {
			return conflictError("files in a Git repository are not written, because Git can run them on this host")
		}
	}
	for i := 1; i < len(parts); i++ {
		dir := path.Join(parts[:i]...)
		info, err := a.root.Lstat(filepath.FromSlash(dir))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !info.IsDir():
			return conflictError(dir + " is not a directory")
		}
	}
	return nil
}

// gitPath returns a path as gitName has its names.
func gitPath(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = gitName(part)
	}
	return strings.Join(parts, "/")
}

// isGitDir reports whether some file system takes name for .git.
func isGitDir(name string) bool {
	name = gitName(name)
	return name == ".git" || name == "git~1"
}

// gitName returns a name as some file systems have it: those of Windows and macOS ignore case, trailing dots, spaces,
// streams and characters of no width.
func gitName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2060 && r <= 0x206f || r == 0xfeff {
			return -1
		}
		return r
	}, name)
	name, _, _ = strings.Cut(name, ":")
	return strings.ToLower(strings.TrimRight(name, ". "))
}

// read returns what is at name: nil is nothing.
func (a *applier) read(name string) (*Entry, error) {
	name = filepath.FromSlash(name)
	info, err := a.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := a.root.Readlink(name)
		return &Entry{Mode: fs.ModeSymlink, Content: []byte(target)}, err
	case !info.Mode().IsRegular():
		return nil, conflictError("the path is a directory or a special file")
	}
	f, err := a.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // what took its place may be a FIFO
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(f)
	return &Entry{Mode: info.Mode().Perm(), Content: content}, err
}

// write puts e where was is, as a whole; with its very permissions when exact, else as a new file has them.
func (a *applier) write(name string, was, e *Entry, exact bool) (err error) {
	if dir := path.Dir(name); dir != "." {
		if err := a.root.MkdirAll(filepath.FromSlash(dir), 0o777); err != nil { // the umask decides
			return err
		}
	}
	defer a.lock(path.Dir(name)).Close()
	temp := filepath.FromSlash(path.Join(path.Dir(name), tempPrefix+rand.Text()))
	defer func() {
		if err == nil {
			return
		}
		if removeErr := a.root.Remove(temp); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}()
	if err := a.create(temp, e, exact); err != nil {
		return err
	}
	if err := a.unchanged(name, was); err != nil {
		return err
	}
	return a.root.Rename(temp, filepath.FromSlash(name))
}

const tempPrefix = ".workcell-"

// isTemp matches what tempPrefix and rand.Text make.
var isTemp = regexp.MustCompile(`^\.workcell-[A-Z2-7]{26}$`)

// lock opens a directory and locks it until it is closed, to protect temporary files from sweeps. The first lock of a
// directory removes the files that killed writers left, unless another process has the lock. If locks fail, nothing is
// swept. The result may be nil.
func (a *applier) lock(dir string) *os.File {
	f, _ := a.root.OpenFile(filepath.FromSlash(dir), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if !a.swept[dir] && lockDir(f, alone) {
		names, _ := f.Readdirnames(-1)
		for _, name := range names {
			name = filepath.Join(filepath.FromSlash(dir), name)
			if !isTemp.MatchString(filepath.Base(name)) {
				continue
			}
			if info, err := a.root.Lstat(name); err == nil && info.Mode().Type()&^fs.ModeSymlink == 0 {
				_ = a.root.Remove(name) // or the next apply does
			}
		}
	}
	a.swept[dir] = true
	lockDir(f, shared)
	return f
}

// Operations of flock.
const shared, alone = 1, 2

func (a *applier) create(name string, e *Entry, exact bool) error {
	if e.isLink() {
		return a.root.Symlink(string(e.Content), name)
	}
	perm := fs.FileMode(0o666) // the umask decides
	if e.Mode&0o100 != 0 {
		perm = 0o777
	}
	f, err := a.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(e.Content)
	if exact {
		err = errors.Join(err, f.Chmod(e.Mode.Perm()))
	}
	return errors.Join(err, f.Close())
}

// remove deletes what is at name, and the directories above it that it leaves empty.
func (a *applier) remove(name string, was *Entry) error {
	if err := a.unchanged(name, was); err != nil {
		return err
	}
	if err := a.root.Remove(filepath.FromSlash(name)); err != nil {
		return err
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if a.root.Remove(filepath.FromSlash(dir)) != nil {
			break // not empty
		}
	}
	return nil
}

// unchanged refuses when there is not any more at name what was read.
func (a *applier) unchanged(name string, was *Entry) error {
	is, err := a.read(name)
	if err != nil {
		return err
	}
	if (is == nil) != (was == nil) || is != nil && (is.Mode != was.Mode || !bytes.Equal(is.Content, was.Content)) {
		return conflictError("the file has changed since the patch was created")
	}
	return nil
}
