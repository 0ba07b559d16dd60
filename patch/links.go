package patch

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of following links. A link for which they do not suffice is not made.
const (
	maxHops    = 40        // links one after the other, as Linux has it
	maxFollow  = 256 << 20 // bytes of paths that are looked up for all links of a directory
	maxScanned = 1_000_000 // files and directories among which the links of a directory are looked for
	maxRounds  = 8
)

// checkLink refuses a link that leaves the directory by its own text, and one
// with `..` behind a name: that is another directory as soon as the name is a
// link. Without those, links that stay inside stay inside also one behind the other.
func checkLink(at string, e *Entry) error {
	if !e.isLink() {
		return nil
	}
	target := string(e.Content)
	foreign := filepath.Separator == '\\' && strings.ContainsAny(target, `\:`) // another path on Windows than it looks
	switch {
	case target == "" || strings.Contains(target, "\x00"):
		return conflictError("the link is broken")
	case path.IsAbs(target) || foreign:
		return leaves(target)
	}
	above, named := strings.Count(at, "/"), false
	for name := range strings.SplitSeq(target, "/") {
		switch {
		case name == "" || name == ".":
		case name != "..":
			named = true
		case named:
			return conflictError("the link to " + target + " goes up after a name, which may be a link")
		case above == 0:
			return leaves(target)
		default:
			above--
		}
	}
	return nil
}

func leaves(target string) conflictError {
	return conflictError("the link to " + target + " leads outside the directory")
}

// pendingLink is a link that can be made as soon as it is known where it leads then.
type pendingLink struct {
	name   string
	target []byte
	make   func() error
}

// makeLinks makes those links that lead nowhere else than into the directory.
func (a *applier) makeLinks(pending []pendingLink, result *Result) error {
	fresh := map[string]string{}
	for _, p := range pending {
		fresh[p.name] = string(p.target)
	}
	refused, err := a.refuse(fresh)
	if err != nil {
		return err
	}
	for _, p := range pending {
		var err error
		if why, no := refused[p.name]; no {
			err = why
		} else if err = a.check(p.name); err == nil { // a link may stand on the way since
			err = p.make()
		}
		if err := result.add(p.name, false, err); err != nil {
			return err
		}
	}
	return nil
}

// refuse returns which of the links that are to be made in the directory may
// not be, by path, with the reason: those that would lead out of it, or below
// .git, together with all others and with the links that are there, and those
// that would make a link lead there that is there already.
func (a *applier) refuse(fresh map[string]string) (map[string]conflictError, error) {
	if len(fresh) == 0 {
		return nil, nil
	}
	l := &links{left: maxFollow}
	var err error
	if l.at, err = a.links(); err != nil {
		return nil, err
	}
	if l.at == nil {
		return all(fresh, fmt.Sprintf("cannot resolve the links of the directory: it has more than %d files", maxScanned)), nil
	}
	return l.refuse(fresh), nil
}

// links returns the links of the directory: nil when that is too large to know.
func (a *applier) links() (map[string]string, error) {
	at, seen := map[string]string{}, 0
	err := fs.WalkDir(a.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case d == nil:
			return err
		case err != nil: // a directory that cannot be read
			return fs.SkipDir
		case d.IsDir() && isGitDir(d.Name()):
			return fs.SkipDir
		case d.Type()&fs.ModeSymlink != 0:
			target, err := a.root.Readlink(filepath.FromSlash(name))
			if err != nil {
				return ignoreMissing(err)
			}
			at[name] = filepath.ToSlash(target)
		}
		if seen++; seen > maxScanned {
			return errScanned
		}
		return nil
	})
	if errors.Is(err, errScanned) {
		return nil, nil
	}
	return at, err
}

var errScanned = errors.New("too many files")

func all(fresh map[string]string, why string) map[string]conflictError {
	refused := map[string]conflictError{}
	for name := range fresh {
		refused[name] = conflictError(why)
	}
	return refused
}

// links are the links of a directory: their targets by path.
type links struct {
	at   map[string]string
	left int // bytes of paths that may still be looked up
}

func (l *links) refuse(fresh map[string]string) map[string]conflictError {
	bad := map[string]bool{} // before anything is made; that is not ours
	for name := range l.at {
		why, _ := l.follow(name)
		bad[name] = why != ""
	}
	old := maps.Clone(l.at)
	maps.Copy(l.at, fresh)
	refused := map[string]conflictError{}
	for range maxRounds {
		found := map[string]conflictError{}
		for _, name := range slices.Sorted(maps.Keys(l.at)) {
			_, isFresh := fresh[name]
			isFresh = isFresh && refused[name] == ""
			if !isFresh && bad[name] {
				continue
			}
			why, passed := l.follow(name)
			switch {
			case l.left < 0:
				return all(fresh, string(why))
			case why == "":
			case isFresh:
				found[name] = why
			default: // a link that is there is at fault for nothing; those that it goes through now are
				for _, p := range passed {
					if _, ok := fresh[p]; ok && refused[p] == "" {
						found[p] = "an existing link would lead outside the directory: " + conflictError(name)
					}
				}
			}
		}
		if len(found) == 0 {
			return refused
		}
		for name, why := range found {
			refused[name] = why
			delete(l.at, name)
			if was, ok := old[name]; ok {
				l.at[name] = was
			}
		}
	}
	return all(fresh, "the links of the patch depend on each other too much")
}

// follow returns why the link at a path leads where none may lead, empty for
// one that may be, and the links on the way, itself first. What is no link
// counts as a directory: it may become one.
func (l *links) follow(name string) (why conflictError, passed []string) {
	var at []string
	if dir := path.Dir(name); dir != "." {
		at = strings.Split(dir, "/")
	}
	out := leaves(l.at[name])
	passed = []string{name}
	if path.IsAbs(l.at[name]) {
		return out, passed
	}
	todo := strings.Split(l.at[name], "/")
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		switch {
		case next == "" || next == ".":
			continue
		case next == ".." && len(at) == 0:
			return out, passed
		case next == "..":
			at = at[:len(at)-1]
			continue
		case isGitDir(next):
			return "the link points below .git, where Git can run files on this host", passed
		}
		at = append(at, next)
		here := strings.Join(at, "/")
		if l.left -= len(here); l.left < 0 {
			return "cannot resolve the links of the directory: too many links", passed
		}
		target, isLink := l.at[here]
		if !isLink {
			continue
		}
		if passed = append(passed, here); path.IsAbs(target) {
			return out, passed
		} else if len(passed) > maxHops {
			return "the link leads through more than 40 links, or in a cycle", passed
		}
		at = at[:len(at)-1]
		todo = append(strings.Split(target, "/"), todo...)
	}
	return "", passed
}
