package patch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
)

// Limits for following links. A link above a limit is a conflict.
const (
	maxHops   = 40       // links in a row, as on Linux
	maxFollow = 64 << 20 // bytes of all paths looked up for one patch
)

// checkLink returns a conflict for a link whose target leaves the directory, and for a target with `..` after a name:
// if the name becomes a link, `..` leads to another directory. Without such targets, chains of links also stay inside.
func checkLink(at string, e *Entry) error {
	if !e.isLink() {
		return nil
	}
	target := string(e.Content)
	foreign := filepath.Separator == '\\' && strings.ContainsAny(target, `\:`) // Windows interprets this path differently
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
		case isGitDir(name):
			return errBelowGit
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

const errBelowGit = conflictError("the link points below .git, where Git can run files on this host")

// makeLinks creates links after all other changes. It undoes links that lead outside the directory or below .git,
// directly or through other links of the patch or the directory. Undoing a link may make others lead outside, so it
// checks again.
func (a *applier) makeLinks(links []step, result *Result) error {
	errs := make([]error, len(links))
	for i, l := range links {
		if errs[i] = a.check(l.name); errs[i] == nil { // a new link may be in the path
			errs[i] = a.write(l.name, l.was, l.next, false)
		}
	}
	for again := true; again; {
		var bad []step
		for i, l := range links {
			if errs[i] != nil {
				continue
			}
			if errs[i] = a.follow(l.name); errs[i] != nil {
				bad = append(bad, l)
			}
		}
		var failed error
		for _, l := range bad {
			if err := a.undo(l); err != nil {
				failed = errors.Join(failed, fmt.Errorf("cannot remove the unsafe link %s: %w", l.name, err))
			}
		}
		if failed != nil {
			return failed
		}
		again = len(bad) > 0
	}
	for i, l := range links {
		if err := result.add(l.name, &result.Applied, errs[i]); err != nil {
			return err
		}
	}
	return nil
}

// undo restores the entry replaced by a step.
func (a *applier) undo(s step) error {
	if s.was == nil {
		return a.remove(s.name, s.next)
	}
	return a.write(s.name, s.next, s.was, !s.was.isLink())
}

// follow returns a conflict for a link that leads outside the directory or below .git, directly or through other links.
func (a *applier) follow(name string) error {
	var at []string
	var first string // target of the first link
	todo := strings.Split(name, "/")
	for hops := 0; len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		switch {
		case next == "" || next == ".":
			continue
		case next == ".." && len(at) == 0:
			return leaves(first)
		case next == "..":
			at = at[:len(at)-1]
			continue
		case isGitDir(next):
			return errBelowGit
		}
		at = append(at, next)
		here := filepath.Join(at...)
		if a.left -= len(here); a.left < 0 {
			return conflictError("cannot resolve the links of the directory: too many links")
		}
		mode, err := a.lstat(here)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // the target does not exist
		case err == nil && mode&fs.ModeSymlink == 0:
			continue
		}
		var link *Entry
		if err == nil {
			link, err = a.read(filepath.ToSlash(here))
		}
		if err != nil {
			return conflictError("cannot resolve the link: " + err.Error())
		}
		target := filepath.ToSlash(link.text())
		if first = cmp.Or(first, target); path.IsAbs(target) {
			return leaves(first)
		}
		if hops++; hops > maxHops {
			return conflictError("the link leads through more than 40 links, or in a cycle")
		}
		at, todo = at[:len(at)-1], append(strings.Split(target, "/"), todo...)
	}
	return nil
}
