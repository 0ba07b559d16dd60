package mcpserver

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
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
// `--force`. The word `**` stands for any number of words, `-**` for any number of options, each with a value or without:
// "git -** push" is `git -C x push`, and not `git stash push`. A program without a slash is meant wherever it lies.
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

// PolicyLimits bound sizes, times and what a sandbox may use. Zero is no bound of the policy; what DefaultPolicy sets holds
// unless a file says otherwise.
type PolicyLimits struct {
	FileMB           int64 `yaml:"file_mb"`           // one file through the file tools, either way
	WorkspaceMB      int64 `yaml:"workspace_mb"`      // all files of a sandbox
	ExecutionSeconds int64 `yaml:"execution_seconds"` // a command, a program, a task
	MemoryMB         int64 `yaml:"memory_mb"`
	CPUMillicores    int64 `yaml:"cpu_millicores"`
}

// DefaultPolicy refuses no command and no file type, and bounds a file to 10 MB, a workspace to the default of
// backend.LimitTable, which the disk of the host sets aside for each sandbox, and an execution to 5 minutes.
func DefaultPolicy() Policy {
	workspace := backend.LimitNamed("workspace_mb")
	return Policy{Limits: PolicyLimits{FileMB: 10, WorkspaceMB: workspace.Default / workspace.Scale, ExecutionSeconds: 300}}
}

// compile checks the policy and splits its patterns.
func (p *Policy) compile() error {
	for _, rules := range []struct {
		what string
		list []CommandRule
	}{{"commands.refuse", p.Commands.Refuse}, {"commands.allow", p.Commands.Allow}} {
		for i := range rules.list {
			if err := rules.list[i].compile(); err != nil {
				return fmt.Errorf("%s[%d]: %w", rules.what, i, err)
			}
		}
	}
	for _, rules := range []struct {
		what string
		list []string
	}{{"files.refuse", p.Files.Refuse}, {"files.allow", p.Files.Allow}} {
		for i, pattern := range rules.list {
			if _, err := path.Match(pattern, "x"); err != nil || pattern == "" || strings.Contains(pattern, "/") {
				return fmt.Errorf("%s[%d]: %q is not a pattern of a base name, as in *.exe", rules.what, i, pattern)
			}
		}
	}
	const most = 1 << 30
	for name, value := range map[string]int64{"file_mb": p.Limits.FileMB, "execution_seconds": p.Limits.ExecutionSeconds} {
		if value < 0 || value > most {
			return fmt.Errorf("limits.%s is %d, it must be 0 to %d", name, value, most)
		}
	}
	for name, value := range p.Limits.sandbox() {
		if least, most := backend.LimitNamed(name).Bounds(); *value != 0 && (*value < least || *value > most) {
			return fmt.Errorf("limits.%s is %d, it must be 0 or %d to %d", name, *value, least, most)
		}
	}
	return nil
}

// sandbox returns the limits that are rows of backend.LimitTable.
func (l *PolicyLimits) sandbox() map[string]*int64 {
	return map[string]*int64{"cpu_millicores": &l.CPUMillicores, "memory_mb": &l.MemoryMB, "workspace_mb": &l.WorkspaceMB}
}

func (r *CommandRule) compile() error {
	r.words = strings.Fields(r.Pattern)
	if len(r.words) == 0 {
		return errors.New("no pattern")
	}
	if first := r.words[0]; first == "**" || first == "-**" {
		return fmt.Errorf("pattern %q begins with %s, name the program", r.Pattern, first)
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
		reach = advance(p, words, reach)
	}
	return slices.Contains(reach, true)
}

// advance returns what a pattern can have used up with one word more of it.
func advance(p string, words []word, reach []bool) []bool {
	next := make([]bool, len(reach))
	switch p {
	case "**":
		seen := false
		for i := range reach {
			seen = seen || reach[i]
			next[i] = seen
		}
	case "-**":
		copy(next, reach)
		for i, w := range words {
			if next[i] && isOption(w) {
				next[i+1] = true
				if i+1 < len(words) && !isOption(words[i+1]) {
					next[i+2] = true
				}
			}
		}
	default:
		for i, w := range words {
			next[i+1] = reach[i] && matchWord(p, w)
		}
	}
	return next
}

// isOption reports whether a word is an option, as far as that is known: a computed word is none unless it begins as one.
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
	for _, pattern := range p.Files.Refuse {
		if ok, err := path.Match(strings.ToLower(pattern), base); err == nil && ok {
			return "files.refuse " + pattern
		}
	}
	if len(p.Files.Allow) == 0 {
		return ""
	}
	for _, pattern := range p.Files.Allow {
		if ok, err := path.Match(strings.ToLower(pattern), base); err == nil && ok {
			return ""
		}
	}
	return "files.allow"
}
