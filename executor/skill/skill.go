// Package skill reads Agent Skills (https://agentskills.io). A skill is a directory with a SKILL.md, which explains a
// task to a coding agent, and the files to which it refers. The package checks skills and copies them to the skill
// directory of a CLI in a sandbox.
//
// A skill is only text for a model. It grants no permissions, not even with allowed-tools.
package skill

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Limits of a skill.
const (
	maxName          = 64   // characters
	maxDescription   = 1024 // characters
	maxCompatibility = 500  // characters

	fileName       = "SKILL.md"
	maxFile        = 1 << 20  // bytes of SKILL.md
	maxFrontMatter = 64 << 10 // bytes
)

// ErrInvalid means a skill is invalid.
var ErrInvalid = errors.New("not a valid skill")

// Skill is a skill as described by the SKILL.md.
type Skill struct {
	Name        string
	Description string

	dir   string // name of the directory
	files []file // files in the directory; not nil after Load
	front map[string]any
	lines map[string]int // line numbers in SKILL.md, by field
}

// Problem is a problem of a SKILL.md. It wraps ErrInvalid.
type Problem = hint.Problem

func problemAt(line int, format string, args ...any) *Problem {
	return &Problem{File: fileName, Line: line, Message: fmt.Sprintf(format, args...), Err: ErrInvalid}
}

// parse parses a SKILL.md. It accepts more than the standard allows. The error is a *Problem.
func parse(b []byte) (Skill, error) {
	content, problem := yamlnode.Text(b, maxFile)
	if problem != nil {
		return Skill{}, problemAt(problem.Line, "%s", problem.Message)
	}
	front, err := frontMatter(content)
	if err != nil {
		return Skill{}, err
	}
	root, err := decode(front)
	if err != nil {
		return Skill{}, err
	}
	values, lines := map[string]any{}, map[string]int{}
	for key, value := range yamlnode.Pairs(root) {
		var v any
		if err := value.Decode(&v); err != nil {
			return Skill{}, problemAt(firstLine+value.Line-1, "%s: cannot read the value", key.Value)
		}
		values[key.Value], lines[key.Value] = v, firstLine+key.Line-1
	}
	return Skill{
		Name: text(values["name"]), Description: text(values["description"]), front: values, lines: lines,
	}, nil
}

// firstLine is the first line number of the front matter.
const firstLine = 2

// frontMatter returns the front matter of a SKILL.md.
func frontMatter(content string) (string, error) {
	rest, ok := strings.CutPrefix(strings.ReplaceAll(content, "\r\n", "\n"), "---\n")
	if !ok {
		return "", problemAt(1, "it must start with front matter, a line ---")
	}
	at := regexp.MustCompile(`(?m)^---[ \t]*$`).FindStringIndex(rest)
	if at == nil || at[0] > maxFrontMatter {
		return "", problemAt(1, "the front matter must end with a line --- within %d bytes", maxFrontMatter)
	}
	return rest[:at[0]], nil
}

// decode parses the front matter, which must be a map of bounded size.
func decode(front string) (*yamlnode.Node, error) {
	// A line with an unquoted colon in the value, which YAML treats as a key. Many published skills have such lines, and
	// their authors' tools accept them.
	unquoted := regexp.MustCompile(`(?m)^([a-z-]+): ([^'"|>{\[\n][^\n]*: [^\n]*)$`)
	const name = "the front matter"
	format := yamlnode.Format{Name: name, FirstLine: firstLine, MaxBytes: maxFile, MaxDepth: 16, MaxValues: 5_000}
	d, root := format.Read(fileName, []byte(front))
	if root == nil {
		quoted := unquoted.ReplaceAllStringFunc(front, func(line string) string {
			m := unquoted.FindStringSubmatch(line)
			return m[1] + ": '" + strings.ReplaceAll(m[2], "'", "''") + "'"
		})
		if again, node := format.Read(fileName, []byte(quoted)); node != nil {
			d, root = again, node
		}
	}
	switch {
	case len(d.Problems) > 0:
		d.Problems[0].Err = ErrInvalid
		return nil, d.Problems[0]
	case root == nil || root.Kind != yamlnode.Mapping:
		return nil, problemAt(firstLine, "the front matter is not a mapping")
	}
	return root, nil
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return strings.TrimSpace(v)
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(v)
	}
	return ""
}

var validName = regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}]+(-[\p{Ll}\p{Lo}\p{N}]+)*$`)

// problems returns all violations of the standard. Each is a *Problem.
func (s Skill) problems() (errs []error) {
	problem := func(key, format string, args ...any) {
		errs = append(errs, problemAt(max(s.lines[key], 1), format, args...))
	}
	known := []string{"allowed-tools", "compatibility", "description", "license", "metadata", "name"}
	for _, key := range slices.Sorted(maps.Keys(s.front)) {
		_, isText := s.front[key].(string)
		switch {
		case !slices.Contains(known, key):
			problem(key, "unknown field %q, available: %s", sanitize.Clip(key), strings.Join(known, ", "))
		case key == "metadata":
			if _, ok := s.front[key].(map[string]any); !ok {
				problem(key, "metadata is not a mapping")
			}
		case !isText:
			problem(key, "%s is not text", key)
		}
	}
	switch n := utf8.RuneCountInString(s.Name); {
	case n == 0:
		problem("name", "name is missing")
	case n > maxName:
		problem("name", "name has %d characters, the limit is %d", n, maxName)
	case !validName.MatchString(s.Name):
		problem("name", "name %q: it must be lower case letters and digits, with single hyphens between",
			sanitize.Clip(s.Name))
	}
	if s.dir != "" && s.Name != "" && s.dir != s.Name {
		problem("name", "name %q: it must match its directory, %q", sanitize.Clip(s.Name), sanitize.Clip(s.dir))
	}
	switch n := utf8.RuneCountInString(s.Description); {
	case n == 0:
		problem("description", "description is missing")
	case n > maxDescription:
		problem("description", "description has %d characters, the limit is %d", n, maxDescription)
	}
	if n := utf8.RuneCountInString(text(s.front["compatibility"])); n > maxCompatibility {
		problem("compatibility", "compatibility has %d characters, the limit is %d", n, maxCompatibility)
	}
	return errs
}

// Check reads the skill in directory dir of fsys and returns all violations of the standard, joined. Problems of
// SKILL.md are of type *Problem.
func Check(fsys fs.FS, dir string) error {
	s, _, err := open(fsys, dir)
	if err != nil {
		return err
	}
	return errors.Join(s.problems()...)
}

// open reads the SKILL.md in a directory, and returns the directory too.
func open(fsys fs.FS, dir string) (s Skill, sub fs.FS, err error) {
	if sub, err = fs.Sub(fsys, dir); err != nil {
		return s, nil, err
	}
	b, err := readSkill(sub)
	if err == nil {
		s, err = parse(b)
	}
	if base := path.Base(dir); base != "." {
		s.dir = base
	}
	return s, sub, err
}

// Find returns the skill directories for patterns, in order. If patterns is nil, it uses skills/*, which may match
// nothing.
func Find(fsys fs.FS, patterns []string) (dirs []string, err error) {
	asked := patterns != nil
	if !asked {
		patterns = []string{"skills/*"}
	}
	for _, pattern := range patterns {
		found, err := fs.Glob(fsys, path.Join(pattern, fileName))
		if err != nil || asked && len(found) == 0 {
			return nil, fmt.Errorf("no directory with a %s matches %q: %w", fileName, pattern, ErrInvalid)
		}
		for _, name := range found {
			dirs = append(dirs, path.Dir(name))
		}
	}
	return dirs, nil
}

// Load reads the skill in directory dir of fsys as leniently as coding agents. Violations accepted by agents become
// diagnostics. Load fails for a skill without a description, an unreadable skill, and a link in the directory.
func Load(fsys fs.FS, dir string) (s Skill, diagnostics []string, err error) {
	s, sub, err := open(fsys, dir)
	if err == nil && s.Description == "" {
		err = problemAt(max(s.lines["description"], 1), "description is missing")
	}
	if err == nil {
		s.files, err = read(sub)
	}
	if err != nil {
		return Skill{}, nil, fmt.Errorf("skill %s: %w", dir, err)
	}
	for _, problem := range s.problems() {
		diagnostics = append(diagnostics, fmt.Sprintf("skill %s: %v", dir, problem))
	}
	s.Name = cmp.Or(s.Name, s.dir)
	return s, diagnostics, nil
}

// readSkill reads SKILL.md, which must be a regular file and not a link.
func readSkill(dir fs.FS) ([]byte, error) {
	info, err := fs.Lstat(dir, fileName)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, problemAt(0, "it is not a regular file")
	case info.Size() > maxFile:
		return nil, problemAt(0, "it has %d bytes, the limit is %d", info.Size(), maxFile)
	}
	return fs.ReadFile(dir, fileName)
}
