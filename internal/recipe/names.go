package recipe

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Bounds of lists of packages.
const (
	maxPackages = 200
	maxLength   = 200 // of one
)

var (
	// Names and versions of Python's packaging standards (PEP 508, PEP 440), without markers and URLs.
	pip = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?` +
		`(?:\[[A-Za-z0-9](?:[A-Za-z0-9._, -]*[A-Za-z0-9])?\])?` +
		`(?: *` + pipVersion + `(?: *, *` + pipVersion + `)*)?$`)
	// A name of npm's, in a scope or in none, and a range of versions or a tag.
	npm = regexp.MustCompile(`^(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*(?:@(?:` + npmRange + `(?: *\|\| *` + npmRange + `)*|[a-z][a-z0-9-]*))?$`)
	// What pip and npm take for a file.
	archive = regexp.MustCompile(`(?i)\.(?:whl|zip|egg|tgz|tar|gz|bz2|tbz|xz|txz|tlz|lz|lzma)$`)
)

const (
	pipVersion = `(?:===?|~=|!=|<=|>=|<|>) *[A-Za-z0-9](?:[A-Za-z0-9.*+!_-]*[A-Za-z0-9*])?`
	npmVersion = `(?:[<>]=?|[=^~])? *v?(?:[0-9]+|[xX*])(?:\.(?:[0-9]+|[xX*])){0,2}(?:-[0-9A-Za-z.-]*[0-9A-Za-z])?(?:\+[0-9A-Za-z.-]*[0-9A-Za-z])?`
	npmRange   = npmVersion + `(?: +(?:- +)?` + npmVersion + `)*`
)

// packages returns what is wrong with a list of packages, names of registries with versions, and nothing else that pip and npm take in
// their place, such as options, addresses, paths and archives.
func packages(field string, list []string, form *regexp.Regexp, hint string) (found []Problem) {
	if len(list) > maxPackages {
		found = append(found, Problem{field, fmt.Sprintf("%d packages, the limit is %d", len(list), maxPackages), "list only packages that are not dependencies of others"})
	}
	for i, name := range list {
		if len(name) > maxLength || !form.MatchString(name) || archive.MatchString(name) {
			found = append(found, Problem{fmt.Sprintf("%s[%d]", field, i), quote(name) + " is not a package name", hint})
		}
	}
	return found
}

// quote clips a text of a file.
func quote(text string) string {
	const most = 60
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strconv.Quote(text)
}
