package mcpserver

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
)

// Policy is a guard rail: it refuses calls by rule before they reach a sandbox. It keeps honest models from accidents
// and from what an operator does not want; it stops no client that can write a program. The wall is the sandbox.
type Policy struct {
	Commands CommandRules `yaml:"commands"`
	Files    FileRules    `yaml:"files"`
	Limits   PolicyLimits `yaml:"limits"`
}

// CommandRules are held against the literal words of every simple command of a shell line, also in pipelines, lists,
// subshells, substitutions and `sh -c`, and behind wrappers such as `env`. docs/mcp.md lists what they do not see.
type CommandRules struct {
	// Refuse are rules whose commands are refused.
	Refuse []CommandRule `yaml:"refuse"`
	// Allow, when not empty, are the only commands that may run, beside builtins that do nothing by themselves.
	Allow []CommandRule `yaml:"allow"`
	// AllowDynamic permits what no rule can judge because it is computed when the command runs, as the programs of
	// `$TOOL x` and `echo ls | sh`. It is ignored when Allow is not empty.
	AllowDynamic bool `yaml:"allow_dynamic"`
}

// CommandRule matches commands by their first words: "git push" is every command that begins with those two. A word may
// hold `*`, `?` and `[a-z]`; one that begins with a single dash is for short options alone, so that `-*f*` is not
// `--force`. The word `**` stands for any number of words, `-**` for any number of options, each with a value or
// without: "git -** push" is `git -C x push`, and not `git stash push`. A program without a slash is meant wherever it
// lies.
type CommandRule struct {
	Name    string `yaml:"name"` // shown in refusals; the pattern when empty
	Pattern string `yaml:"pattern"`
	// Reason is shown to the model: why, and what to do instead. May be empty.
	Reason string `yaml:"reason"`

	words []string
}

// FileRules select the files that the file tools may write and read, by patterns of their base names, as "*.exe".
type FileRules struct {
	Refuse []string `yaml:"refuse"`
	// Allow, when not empty, are the only ones.
	Allow []string `yaml:"allow"`
}

// PolicyLimits bound sizes, times and what a sandbox may use. Zero is no bound of the policy; what DefaultPolicy sets
// holds unless a file says otherwise.
type PolicyLimits struct {
	FileMB        int64         `yaml:"file_mb"`      // one file through the file tools, either way
	WorkspaceMB   int64         `yaml:"workspace_mb"` // all files of a sandbox
	ExecTimeout   time.Duration `yaml:"exec_timeout"` // the longest of a command, a program, a task, in whole seconds
	MemoryMB      int64         `yaml:"memory_mb"`
	CPUMillicores int64         `yaml:"cpu_millicores"`
}

// DefaultPolicy refuses no command and no file type, and bounds a file to 10 MB, a workspace to the default of
// backend.LimitTable, which the disk of the host sets aside for each sandbox, and an execution to 5 minutes.
func DefaultPolicy() Policy {
	workspace := backend.LimitNamed("workspace_mb")
	return Policy{Limits: PolicyLimits{FileMB: 10, WorkspaceMB: workspace.Default / workspace.Scale, ExecTimeout: 5 * time.Minute}}
}

// compile checks the policy and splits its patterns. It reports all that is wrong.
func (p *Policy) compile() (wrong hint.Problems) {
	for what, list := range map[string][]CommandRule{"refuse": p.Commands.Refuse, "allow": p.Commands.Allow} {
		for i := range list {
			if err := list[i].compile(); err != nil {
				field := fmt.Sprintf("commands.%s[%d]", what, i)
				wrong.Add(field, "", "%s: %v", field, err)
			}
		}
	}
	for what, list := range map[string][]string{"refuse": p.Files.Refuse, "allow": p.Files.Allow} {
		for i, pattern := range list {
			if _, err := path.Match(pattern, "x"); err != nil || pattern == "" || strings.Contains(pattern, "/") {
				field := fmt.Sprintf("files.%s[%d]", what, i)
				wrong.Add(field, "for example *.exe", "%s: %q is not a base name pattern", field, pattern)
			}
		}
	}
	bounded := func(name string, value, least, most int64) {
		if value != 0 && (value < least || value > most) {
			wrong.Add("limits."+name, "", "limits.%s must be 0 or %d to %d, not %d", name, least, most, value)
		}
	}
	bounded("file_mb", p.Limits.FileMB, 1, 1<<30)
	if d := p.Limits.ExecTimeout; d < 0 || d%time.Second != 0 {
		wrong.Add("limits.exec_timeout", "use whole seconds, or 0s for no limit", "limits.exec_timeout is %s", d)
	}
	for name, value := range p.Limits.sandbox() {
		least, most := backend.LimitNamed(name).Bounds()
		bounded(name, *value, least, most)
	}
	slices.SortFunc(wrong, func(a, b *hint.Problem) int { return strings.Compare(a.Message, b.Message) })
	return wrong
}

// sandbox returns the limits that are rows of backend.LimitTable.
// Ceiling returns the limits as those that no request of a client exceeds.
func (l *PolicyLimits) Ceiling() backend.Limits {
	var c backend.Limits
	for name, value := range l.sandbox() {
		row := backend.LimitNamed(name)
		*row.Of(&c) = *value * row.Scale
	}
	return c
}

func (l *PolicyLimits) sandbox() map[string]*int64 {
	return map[string]*int64{"cpu_millicores": &l.CPUMillicores, "memory_mb": &l.MemoryMB, "workspace_mb": &l.WorkspaceMB}
}

func (r *CommandRule) compile() error {
	r.words = strings.Fields(r.Pattern)
	if len(r.words) == 0 {
		return errors.New("no pattern")
	}
	if first := r.words[0]; first == "**" || first == "-**" {
		return fmt.Errorf("pattern %q begins with %s; specify the program", r.Pattern, first)
	}
	for _, w := range r.words {
		if _, err := path.Match(w, "x"); err != nil {
			return fmt.Errorf("pattern %q: %q is malformed", r.Pattern, w)
		}
	}
	if r.Name == "" {
		r.Name = r.Pattern
	}
	return nil
}

// matches reports whether the command begins as the rule says.
func (r *CommandRule) matches(cmd []word) bool {
	if len(cmd) == 0 || !cmd[0].static {
		return false
	}
	program := cmd[0].text
	if !strings.Contains(r.words[0], "/") {
		program = path.Base(program)
	}
	return matchWord(r.words[0], word{text: program, static: true}) && matchWords(r.words[1:], cmd[1:])
}

// matchWords matches words from the first on. Its work is bounded by the product of the lengths.
func matchWords(pattern []string, words []word) bool {
	// reach[i]: the pattern up to here can have used up i words.
	reach := make([]bool, len(words)+1)
	reach[0] = true
	for _, p := range pattern {
		next := make([]bool, len(reach))
		for i := range reach {
			switch p {
			case "**":
				next[i] = reach[i] || i > 0 && next[i-1]
			case "-**": // an option, or an option and its value
				next[i] = reach[i] || i > 0 && next[i-1] && isOption(words[i-1]) ||
					i > 1 && next[i-2] && isOption(words[i-2]) && !isOption(words[i-1])
			default:
				next[i] = i > 0 && reach[i-1] && matchWord(p, words[i-1])
			}
		}
		reach = next
	}
	return slices.Contains(reach, true)
}

// isOption reports whether a word is an option, as far as that is known: a computed word is none unless it begins as
// one.
func isOption(w word) bool { return strings.HasPrefix(w.text, "-") }

// matchWord matches one word. Of a computed word nothing is known, so that only `*` is sure to match it. Slashes are
// characters like any other here.
func matchWord(pattern string, w word) bool {
	if !w.static {
		return pattern == "*"
	}
	if strings.HasPrefix(w.text, "--") && strings.HasPrefix(pattern, "-") && !strings.HasPrefix(pattern, "--") {
		return false
	}
	const slash = "\x00"
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", slash), strings.ReplaceAll(w.text, "/", slash))
	return err == nil && ok
}

// fileRule returns the rule that refuses a file; empty when none does.
func (p *Policy) fileRule(name string) string {
	base := strings.ToLower(path.Base(path.Clean("/" + name)))
	matches := func(pattern string) bool {
		ok, err := path.Match(strings.ToLower(pattern), base)
		return err == nil && ok
	}
	if i := slices.IndexFunc(p.Files.Refuse, matches); i >= 0 {
		return "files.refuse " + p.Files.Refuse[i]
	}
	if len(p.Files.Allow) > 0 && !slices.ContainsFunc(p.Files.Allow, matches) {
		return "files.allow"
	}
	return ""
}
