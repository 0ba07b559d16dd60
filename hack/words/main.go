// Words keeps the prose of the repository readable. It counts banned phrases in Markdown, comments, and string
// literals, measures how often common words appear, and counts overlong lines of Go. budget.txt lists the counts of
// each directory, which may only fall. Words also checks the subjects of later commits.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	folder     = "hack/words"
	columns    = 120 // the longest line of Go
	subject    = 60  // the longest subject of a commit
	exceptions = 20  // in the whole repository
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	args = append(args, "", "", "")
	root, write, list := args[0], args[1] == "write", args[2]
	if root == "" || args[1] != "" && !write && args[1] != "list" || (args[1] == "list") != (list != "") {
		fmt.Fprintln(stderr, `usage: words ROOT             check the tree at ROOT against hack/words/budget.txt
       words ROOT write       replace the counts in budget.txt with the current counts
       words ROOT list PATH   list the findings in PATH, for example README.md, docs, or ./...`)
		return 2
	}
	problems, err := check(root, write, list, stdout)
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, p := range problems {
		fmt.Fprintln(stderr, "words:", p)
	}
	return min(len(problems), 1)
}

// check returns the problems of the tree at root. If list is set, it only prints findings.
func check(root string, write bool, list string, stdout io.Writer) ([]string, error) {
	bans, err := readBans(filepath.Join(root, folder, "banned.tsv"))
	if err != nil {
		return nil, err
	}
	found, err := read(os.DirFS(root))
	if err != nil {
		return nil, err
	}
	found.search(bans)
	if list != "" {
		tree, below := strings.CutSuffix(strings.TrimPrefix(list, "./"), "...")
		for _, h := range found.hits {
			if h.path == list || path.Dir(h.path) == list || below && strings.HasPrefix(h.path, tree) {
				fmt.Fprintf(stdout, "%s:%d: %s %s\n", h.path, h.line, h.id, h.phrase)
			}
		}
		return nil, nil
	}
	file := filepath.Join(root, folder, "budget.txt")
	allowed, commits, err := readBudget(file)
	if err != nil && !(write && errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	today := found.rates()
	for _, key := range slices.Sorted(maps.Keys(profile)) {
		fmt.Fprintf(stdout, "%6d %s %s\n", today[key], key, profile[key])
	}
	all := map[string]int{}
	for _, h := range found.hits {
		kind := "phrases"
		if h.id == long {
			kind = long
		}
		today[kind+" "+path.Dir(h.path)]++
		all[kind]++
	}
	fmt.Fprintf(stdout, "%6d banned phrases\n%6d long lines\n", all["phrases"], all[long])
	problems := found.problems
	if n := found.excused + len(commits); n > exceptions {
		problems = append(problems, fmt.Sprintf("%d exceptions: at most %d are allowed", n, exceptions))
	}
	if write {
		err = writeBudget(file, today, commits)
	} else {
		problems = append(problems, compare(today, allowed)...)
	}
	subjects, gitErr := checkCommits(root, bans, commits)
	return append(problems, subjects...), errors.Join(err, gitErr)
}

// A ban is a pattern of phrases not used by native speakers. Texts with a match of unless are exempt.
type ban struct {
	id              string
	pattern, unless *regexp.Regexp
	needs           []string // every match contains one of them, and searching for these is fast
}

func readBans(file string) (bans []ban, err error) {
	data, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		fields := append(strings.Split(strings.TrimSuffix(line, "\n"), "\t"), "", "")
		b := ban{id: fields[0]}
		parsed, err := syntax.Parse(fields[1], syntax.Perl)
		if err == nil {
			b.needs = literals(parsed)
			b.pattern, err = regexp.Compile(fields[1])
		}
		if err == nil && fields[2] != "" {
			b.unless, err = regexp.Compile(fields[2])
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, b.id, err)
		}
		bans = append(bans, b)
	}
	return bans, nil
}

// literals returns alternative strings. Every match contains at least one. If there are none, it returns nil.
func literals(re *syntax.Regexp) (best []string) {
	switch re.Op {
	case syntax.OpLiteral:
		return []string{string(re.Rune)}
	case syntax.OpCapture, syntax.OpPlus:
		return literals(re.Sub[0])
	case syntax.OpConcat:
		shortest := func(found []string) int { return len(slices.MinFunc(found, byLength)) }
		for _, sub := range re.Sub {
			if found := literals(sub); found != nil && (best == nil || shortest(found) > shortest(best)) {
				best = found
			}
		}
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			found := literals(sub)
			if found == nil {
				return nil
			}
			best = append(best, found...)
		}
	}
	return best
}

func byLength(a, b string) int { return len(a) - len(b) }

// search adds the banned phrases of all texts to the hits.
func (p *prose) search(bans []ban) {
	for _, t := range p.texts {
		for _, b := range bans {
			if b.needs != nil && !slices.ContainsFunc(b.needs, func(s string) bool { return strings.Contains(t.body, s) }) ||
				b.unless != nil && b.unless.MatchString(t.body) {
				continue
			}
			for _, m := range b.pattern.FindAllStringIndex(t.body, -1) {
				before, after := t.body[max(m[0]-30, 0):m[0]], t.body[m[1]:min(m[1]+30, len(t.body))]
				phrase := strings.ToValidUTF8(before+"["+t.body[m[0]:m[1]]+"]"+after, "")
				p.hits = append(p.hits, hit{t.path, t.line, b.id, phrase})
			}
		}
	}
}

// readBudget returns the counts in budget.txt, by name, and the lines with excused commits.
func readBudget(file string) (counts map[string]int, commits []string, err error) {
	data, err := os.ReadFile(filepath.Clean(file))
	counts = map[string]int{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] == "#":
		case fields[0] == "commit":
			commits = append(commits, strings.TrimSpace(line))
		default:
			n, bad := strconv.Atoi(fields[len(fields)-1])
			if bad != nil {
				return nil, nil, fmt.Errorf("%s: %q: %w", file, line, bad)
			}
			counts[strings.Join(fields[:len(fields)-1], " ")] = n
		}
	}
	return counts, commits, err
}

func writeBudget(file string, counts map[string]int, commits []string) error {
	out := `# Counts per directory: banned phrases, and lines of Go above 120 columns. Then words per 100,000.
# They only fall. To update them, run: go run ./hack/words . write
# To excuse the subject of a published commit, add a line: commit HASH REASON
`
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		out += fmt.Sprintf("%-48s %6d\n", key, counts[key])
	}
	return os.WriteFile(file, []byte(out+strings.Join(append(commits, ""), "\n")), 0o644)
}

// compare returns the counts different from the budget, and the worsened rates.
func compare(today, allowed map[string]int) (problems []string) {
	keys := maps.Clone(allowed)
	maps.Copy(keys, today)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		now, most := today[key], allowed[key]
		kind, dir, _ := strings.Cut(key, " ")
		m, isRate := profile[key]
		switch {
		case isRate && m.worse(now, most):
			problems = append(problems, fmt.Sprintf("%d %s per 100,000, was %d %s", now, key, most, m))
		case isRate || now == most:
		case now > most:
			problems = append(problems, fmt.Sprintf(
				"%s: %d %s, at most %d are allowed (run go run ./hack/words . list %s)", dir, now, kind, most, dir))
		default:
			problems = append(problems, fmt.Sprintf(
				"%s: %d %s, but %d are allowed (run go run ./hack/words . write)", dir, now, kind, most))
		}
	}
	return problems
}

var form = regexp.MustCompile(`^[\w./*-]+(, [\w./*-]+)*: [a-z][^;]*[^.;]$`)

// checkSubject returns the problem with the subject of a commit, or an empty string.
func checkSubject(line string, bans []ban) string {
	p := prose{texts: []text{{body: line}}}
	p.search(bans)
	switch n := utf8.RuneCountInString(line); {
	case n > subject:
		return fmt.Sprintf("%d characters: at most %d are allowed", n, subject)
	case !form.MatchString(line):
		return "must be `package: imperative object` without a semicolon or a period at the end"
	case len(p.hits) > 0:
		return "banned phrase " + p.hits[0].phrase
	}
	return ""
}

// checkCommits checks the subjects of all commits after the addition of this program.
func checkCommits(root string, bans []ban, excused []string) (problems []string, err error) {
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		return nil, nil // not a Git checkout
	}
	git := func(args ...string) []string {
		args = append([]string{"-C", root, "-c", "safe.directory=*", "log", "--no-merges"}, args...)
		var out []byte
		if err == nil {
			out, err = exec.Command("git", args...).Output()
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	first := git("--reverse", "--diff-filter=A", "--format=%H", "--", folder+"/main.go")[0]
	if first == "" {
		return nil, err
	}
	for _, line := range git("--ancestry-path", "--format=%h %s", first+"..HEAD") {
		hash, line, ok := strings.Cut(line, " ")
		ok = ok && !strings.Contains(strings.Join(excused, "\n"), "commit "+hash[:7])
		if problem := checkSubject(line, bans); ok && problem != "" {
			problems = append(problems, fmt.Sprintf("commit %s: %q: %s", hash, line, problem))
		}
	}
	return problems, err
}
