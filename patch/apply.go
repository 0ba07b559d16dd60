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

// Result is the result of applying a patch, by path.
type Result struct {
	Applied   []string   `json:"applied,omitempty"`   // applied unchanged
	Merged    []string   `json:"merged,omitempty"`    // merged with other changes of the same file
	Unchanged []string   `json:"unchanged,omitempty"` // applied before
	Marked    []string   `json:"marked,omitempty"`    // conflicts written into the file by ApplyMarked
	Conflicts []Conflict `json:"conflicts,omitempty"` // not applied
}

// Conflict is a change that was not applied, for example because the same lines have changed since.
type Conflict struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Apply applies the changes to the directory dir. It never overwrites a file changed since the creation of the patch.
// If both sides changed separate parts of a text, Apply merges them. Everything else is a conflict, and the file is
// left unchanged. Apply never writes outside dir, through a symbolic link, or into a Git repository, whether or not the
// repository is in a directory named .git. Each file is replaced atomically. The path of dir must not contain a link
// either, because the link's target may have changed since the copy.
//
// If Apply returns an error, it could not apply the remaining changes. Changes applied before are kept and are in the
// result.
func (p *Patch) Apply(dir string) (Result, error) { return p.apply(dir, applying) }

// ApplyMarked is like Apply, but if the patch and the directory changed the same lines of a text, it writes both
// versions between conflict markers, like Git.
func (p *Patch) ApplyMarked(dir string) (Result, error) { return p.apply(dir, marking) }

// Check returns the result that Apply would return now, but writes nothing. It does not detect unwritable files and
// directories, for example because of their permissions.
func (p *Patch) Check(dir string) (Result, error) { return p.apply(dir, checking) }

// mode is how a patch is applied.
type mode int

const (
	applying mode = iota
	marking
	checking
)

func (p *Patch) apply(dir string, how mode) (Result, error) {
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
	if how == checking {
		a.dry = &plannedTree{at: map[string]*Entry{}, made: map[string]bool{}, cut: map[string]bool{}}
	}
	// Deletions come first, because a directory may become a file and vice versa. Links come last, because their targets
	// depend on all other changes.
	changes := slices.Clone(p.Changes)
	slices.SortStableFunc(changes, func(a, b Change) int { return a.turn() - b.turn() })
	var links []step
	for i := range changes {
		c := &changes[i]
		to := &result.Unchanged
		s, err := a.plan(c)
		if how == marking && errors.Is(err, errSameLines) {
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

// openExact opens a directory whose path contains no link.
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

// turn returns the order of the change. Changes with lower numbers are applied first.
func (c *Change) turn() int {
	switch {
	case c.New == nil:
		return 0
	case !c.New.isLink():
		return 1
	}
	return 2
}

// add adds the change at a path to one of the lists. If err is a conflict, add adds it to the conflicts; it returns all
// other errors.
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

// conflictError is the reason why a change is not applied.
type conflictError string

func (e conflictError) Error() string { return string(e) }

// errSameLines is the conflict of two changes to the same lines.
const errSameLines = conflictError("the same lines have changed since the patch was created")

// Conflict markers.
const (
	markOurs   = "<<<<<<< directory\n"
	markMiddle = "=======\n"
	markTheirs = ">>>>>>> patch\n"
)

type applier struct {
	root  *os.Root
	parts map[string]bool // paths from gitPath of gitParts in the patch
	repos map[string]bool // by directory: whether it is or will become a repository
	swept map[string]bool // directories from which leftover files were removed
	left  int             // remaining bytes of paths to look up for links
	dry   *plannedTree    // of a check; nil to write

	infos map[string]fs.FileInfo // by path: the last file that was read there
}

// plannedTree contains the entries written by a check.
type plannedTree struct {
	at        map[string]*Entry // nil for a deleted entry
	made, cut map[string]bool   // directories below which entries are written or deleted
}

// put writes or deletes an entry.
func (t *plannedTree) put(name string, e *Entry) {
	t.at[name] = e
	below := t.made
	if e == nil {
		below = t.cut
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		below[dir] = true
	}
}

// lstat returns the type of the entry at name. It includes the planned entries.
func (a *applier) lstat(name string) (fs.FileMode, error) {
	name = filepath.ToSlash(name)
	if a.dry != nil {
		e, planned := a.dry.at[name]
		switch {
		case e != nil:
			return e.Mode, nil
		case a.dry.made[name]:
			return fs.ModeDir, nil
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			switch above, planned := a.dry.at[dir]; {
			case above != nil:
				return 0, &fs.PathError{Op: "statat", Path: name, Err: syscall.ENOTDIR}
			case planned: // the replacement is a new directory
				return 0, fs.ErrNotExist
			}
		}
		if planned || a.emptied(name) {
			return 0, fs.ErrNotExist
		}
	}
	info, err := a.root.Lstat(filepath.FromSlash(name))
	if err != nil {
		return 0, err
	}
	return info.Mode(), nil
}

// emptied reports whether the planned deletions remove a directory, because they remove everything in it.
func (a *applier) emptied(dir string) bool {
	if !a.dry.cut[dir] {
		return false
	}
	f, err := a.root.Open(filepath.FromSlash(dir))
	if err != nil {
		return false
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool {
		_, err := a.lstat(path.Join(dir, name))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// gitParts are the names by which Git recognizes a repository.
var gitParts = []string{"head", "commondir", "objects", "refs"}

// newApplier returns an applier that will create files.
func newApplier(root *os.Root, files iter.Seq[string]) *applier {
	a := &applier{root: root, parts: map[string]bool{}, repos: map[string]bool{}, swept: map[string]bool{},
		left: maxFollow, infos: map[string]fs.FileInfo{}}
	for name := range files {
		for at := name; at != "." && at != "/"; at = path.Dir(at) {
			if folded := gitPath(at); slices.Contains(gitParts, path.Base(folded)) {
				a.parts[folded] = true
			}
		}
	}
	return a
}

// isRepository reports whether Git treats a directory as a bare repository, or will. A repository's configuration can
// name programs for Git to run.
func (a *applier) isRepository(dir string) bool {
	is, known := a.repos[dir]
	if !known {
		has := func(name string) bool {
			_, err := a.lstat(path.Join(dir, name))
			return err == nil || a.parts[gitPath(path.Join(dir, name))]
		}
		is = has("HEAD") && (has("commondir") || has("objects") && has("refs"))
		a.repos[dir] = is
	}
	return is
}

// step replaces the entry at a path. A nil entry means a free path.
type step struct {
	name      string
	was, next *Entry
}

// plan returns the step for a change. If the directory already has the change, plan returns nil. With errSameLines, the
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

// take applies a planned step.
func (a *applier) take(s *step) error {
	if s.next == nil {
		return a.remove(s.name, s.was)
	}
	// An existing file keeps the permissions and the owner. The umask sets the permissions of a new file.
	return a.write(s.name, s.was, s.next, s.was != nil && !s.was.isLink())
}

// merge applies a change to the current entry at the path. A nil entry means a free path. With errSameLines, the text
// contains conflict markers.
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
	case c.New == nil || was.isLink() || c.Old.isLink() || c.New.isLink() || c.IsBinary() || !was.isText():
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

// withPermissions returns e with the permissions of was, except for the executable bit, which is that of e.
func (e *Entry) withPermissions(was *Entry) *Entry {
	if e == nil || was == nil || e.isLink() || was.isLink() {
		return e
	}
	perm := was.Mode.Perm() &^ 0o111
	if e.Mode&0o100 != 0 {
		perm |= perm & 0o444 >> 2
	}
	return &Entry{Mode: perm, Content: e.Content}
}

// merge3 returns base with the changes of both sides. If two changes touch each other and differ, the text contains
// both versions of these lines between conflict markers, and the error is errSameLines.
func merge3(base, a, b string) (string, error) {
	var sides [2]string // each side with the other side's separate changes
	edits := [2][]udiff.Edit{diffLines(base, a), diffLines(base, b)}
	for i, own := range edits {
		apart := slices.DeleteFunc(slices.Clone(edits[1-i]), func(e udiff.Edit) bool {
			n, _ := slices.BinarySearchFunc(own, e, func(f, e udiff.Edit) int { return f.End - e.Start })
			return slices.ContainsFunc(own[n:min(n+2, len(own))], func(f udiff.Edit) bool { // one may be equal to e
				return e != f && f.Start <= e.End // adjacent lines usually belong together
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
	for _, e := range diffLines(sides[0], sides[1]) {
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

// check returns an error for a path to which a patch may not write.
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
		mode, err := a.lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !mode.IsDir():
			return conflictError(dir + " is not a directory")
		}
	}
	return nil
}

// gitPath applies gitName to each component of a path.
func gitPath(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = gitName(part)
	}
	return strings.Join(parts, "/")
}

// isGitDir reports whether some file system treats name as .git, for example .GIT.
func isGitDir(name string) bool {
	name = gitName(name)
	return name == ".git" || name == "git~1"
}

// gitName returns the canonical form of a name. File systems of Windows and macOS ignore case, trailing dots, spaces,
// streams, and zero-width characters.
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

// read returns the entry at name, or nil if the path is free.
func (a *applier) read(name string) (*Entry, error) {
	if a.dry != nil && a.dry.at[name] != nil {
		return a.dry.at[name], nil
	}
	mode, err := a.lstat(name)
	name = filepath.FromSlash(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case mode&fs.ModeSymlink != 0:
		target, err := a.root.Readlink(name)
		return &Entry{Mode: fs.ModeSymlink, Content: []byte(target)}, err
	case !mode.IsRegular():
		return nil, conflictError("the path is a directory or a special file")
	}
	f, err := a.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have been replaced by a FIFO
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, statErr := f.Stat()
	a.infos[filepath.ToSlash(name)] = info
	content, err := io.ReadAll(f)
	return &Entry{Mode: mode.Perm(), Content: content}, errors.Join(err, statErr)
}

// write atomically replaces was by e. If exact is true, it sets e's exact permissions and keeps the owner of the file
// last read at name; otherwise the umask applies.
func (a *applier) write(name string, was, e *Entry, exact bool) (err error) {
	if a.dry != nil {
		a.dry.put(name, e)
		return nil
	}
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
	if err := a.create(temp, e, exact, a.infos[name]); err != nil {
		return err
	}
	if err := a.unchanged(name, was); err != nil {
		return err
	}
	return a.root.Rename(temp, filepath.FromSlash(name))
}

const tempPrefix = ".workcell-"

// isTemp matches names from tempPrefix and rand.Text.
var isTemp = regexp.MustCompile(`^\.workcell-[A-Z2-7]{26}$`)

// lock opens a directory and locks it until the result is closed, to protect temporary files from cleanup. The first
// lock of a directory removes the files of killed writers, unless another process has the lock. If locks fail, no files
// are removed. The result may be nil.
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
				_ = a.root.Remove(name) // the next apply tries again
			}
		}
	}
	a.swept[dir] = true
	lockDir(f, shared)
	return f
}

// Operations of flock.
const shared, alone = 1, 2

func (a *applier) create(name string, e *Entry, exact bool, replaced fs.FileInfo) error {
	if e.isLink() {
		return a.root.Symlink(string(e.Content), name)
	}
	perm := 0o666 | e.gitMode()&0o111 // the umask decides
	if exact {
		perm = e.Mode & 0o700 // the content may be secret
	}
	f, err := a.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(e.Content)
	if exact {
		keepOwner(f, replaced)
		err = errors.Join(err, f.Chmod(e.Mode.Perm()))
	}
	return errors.Join(err, f.Close())
}

// remove deletes the entry at name and parent directories that become empty.
func (a *applier) remove(name string, was *Entry) error {
	if a.dry != nil {
		a.dry.put(name, nil)
		return nil
	}
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

// unchanged returns a conflict if the entry at name has changed since it was read.
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
