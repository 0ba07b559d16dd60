package main

import (
	"cmp"
	"errors"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// hostPaths keeps where files of this machine lie from clients: errors name agents, workflows and what they are to copy.
type hostPaths struct {
	roots []string // absolute, longest first
}

// newHostPaths knows the directories that errors are most likely to name, so that they are found with blanks in them too.
func newHostPaths(dirs ...string) hostPaths {
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, home)
	}
	var h hostPaths
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if dir != "" && err == nil && abs != filepath.Dir(abs) { // all paths begin with the root
			h.roots = append(h.roots, abs)
		}
	}
	slices.SortFunc(h.roots, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return h
}

// absolutePath matches an absolute path and what stands before it, not the host of a URL.
var absolutePath = regexp.MustCompile("(^|[\\s\"'`(\\[{<=:,;|])((?:[A-Za-z]:)?[/\\\\][^\\s\"'`)\\]}>,;:|]+)")

// hide leaves the last name of every path that is not of a sandbox's work directory.
func (h hostPaths) hide(text string) string {
	for _, root := range h.roots {
		text = strings.ReplaceAll(text, root+string(filepath.Separator), "/~/") // without what ends a path below
	}
	return absolutePath.ReplaceAllStringFunc(text, func(found string) string {
		m := absolutePath.FindStringSubmatch(found)
		before, name := m[1], m[2]
		url := strings.HasPrefix(name, "//") && !strings.HasPrefix(name, "///")
		if url || name == backend.Workdir || strings.HasPrefix(name, backend.Workdir+"/") {
			return found
		}
		return before + "…/" + path.Base(strings.ReplaceAll(name, `\`, "/"))
	})
}

// error returns err as a client may see it.
func (h hostPaths) error(err error) error {
	var told *toolspec.Error
	if !errors.As(err, &told) {
		return err // package mcpserver shows only its class
	}
	hidden := *told
	hidden.Message, hidden.Remediation = h.hide(told.Message), h.hide(told.Remediation)
	return &hidden
}
