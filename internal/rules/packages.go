package rules

import (
	"fmt"
	"regexp"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Limits for lists of packages.
const (
	maxPackages    = 200
	maxPackageName = 200 // length of a single entry
)

var (
	// Names and versions according to the Python packaging standards (PEP 508, PEP 440), without markers and URLs.
	pipForm = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?` +
		`(?:\[[A-Za-z0-9](?:[A-Za-z0-9._, -]*[A-Za-z0-9])?\])?` +
		`(?: *` + pipVersion + `(?: *, *` + pipVersion + `)*)?$`)
	// An npm package name with or without a scope, followed by a version range or a tag.
	npmForm = regexp.MustCompile(`^(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*(?:@(?:` + npmRange + `(?: *\|\| *` +
		npmRange + `)*|[a-z][a-z0-9-]*))?$`)
	// Names treated as files by pip and npm.
	archiveForm = regexp.MustCompile(`(?i)\.(?:whl|zip|egg|tgz|tar|gz|bz2|tbz|xz|txz|tlz|lz|lzma)$`)
)

const (
	pipVersion = `(?:===?|~=|!=|<=|>=|<|>) *[A-Za-z0-9](?:[A-Za-z0-9.*+!_-]*[A-Za-z0-9*])?`
	npmVersion = `(?:[<>]=?|[=^~])? *v?(?:[0-9]+|[xX*])(?:\.(?:[0-9]+|[xX*])){0,2}(?:-[0-9A-Za-z.-]*[0-9A-Za-z])?(?:\+[0-9A-Za-z.-]*[0-9A-Za-z])?`
	npmRange   = npmVersion + `(?: +(?:- +)?` + npmVersion + `)*`
)

// checkPackages adds the problems with a list of packages. It allows only package names with versions. It refuses all
// other valid arguments of pip and npm, such as options, URLs, paths, and archives.
func checkPackages(found *hint.Problems, field string, list []string, form *regexp.Regexp, advice string) {
	if len(list) > maxPackages {
		const todo = "list only packages that are not dependencies of others"
		found.Add(field, todo, "%d packages, the limit is %d", len(list), maxPackages)
	}
	for i, name := range list {
		if len(name) > maxPackageName || !form.MatchString(name) || archiveForm.MatchString(name) {
			found.Add(fmt.Sprintf("%s[%d]", field, i), advice, "%q is not a package name", sanitize.Clip(name))
		}
	}
}
