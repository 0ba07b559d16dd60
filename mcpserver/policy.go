package mcpserver

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Policy refuses calls by rule before they reach a sandbox. It prevents accidents by honest models and enforces the
// operator's preferences. It provides no isolation: it cannot stop a client that runs a program. The sandbox provides
// the isolation.
type Policy struct {
	Commands CommandRules `yaml:"commands"`
	Files    FileRules    `yaml:"files"`
	Limits   PolicyLimits `yaml:"limits"`
}

// CommandRules are checked against the literal words of every simple command of a shell line. This includes commands in
// pipelines, lists, subshells, substitutions, and `sh -c`, and after wrappers such as `env`.
// docs/reference/guard-policy.md lists the commands that the rules miss.
type CommandRules struct {
	// Refuse are the rules for refused commands.
	Refuse []CommandRule `yaml:"refuse"`
	// Allow are the rules for allowed commands. If not empty, all other commands are refused, except builtins without
	// effect outside of the shell.
	Allow []CommandRule `yaml:"allow"`
	// AllowDynamic allows commands computed at run time, which no rule can judge, for example the programs of `$TOOL x`
	// and `echo ls | sh`. It is ignored if Allow is not empty.
	AllowDynamic bool `yaml:"allow_dynamic"`
}

// CommandRule matches commands by their first words. For example, "git push" matches every command with these two words
// at the beginning. A word may contain `*`, `?`, and `[a-z]`. A word with a single dash at the beginning matches only
// short options, so `-*f*` does not match `--force`. The word `**` matches any number of words. The word `-**` matches
// any number of options with or without a value. For example, "git -** push" matches `git -C x push`, but not `git
// stash push`. A program without a slash matches the program in any directory.
type CommandRule struct {
	Name    string `yaml:"name"` // shown in refusals; defaults to the pattern
	Pattern string `yaml:"pattern"`
	// Reason is shown to the model. It may explain the refusal and suggest an alternative. It may be empty.
	Reason string `yaml:"reason"`

	words []string
}

// FileRules restrict the files that the file tools accept. Patterns match base names, for example "*.exe".
type FileRules struct {
	Refuse []string `yaml:"refuse"`
	// Allow are the patterns of allowed files. If not empty, all other files are refused.
	Allow []string `yaml:"allow"`
}

// PolicyLimits limits sizes, times, and sandbox resources. If a field is zero, the policy sets no limit. Limits missing
// from a policy file are taken from DefaultPolicy.
type PolicyLimits struct {
	FileMB        int64         `yaml:"file_mb"`      // one file through the file tools, in both directions
	WorkspaceMB   int64         `yaml:"workspace_mb"` // all files of a sandbox
	ExecTimeout   time.Duration `yaml:"exec_timeout"` // maximum timeout of a command, program, or task, in whole seconds
	MemoryMB      int64         `yaml:"memory_mb"`
	CPUMillicores int64         `yaml:"cpu_millicores"`
}

// DefaultPolicy returns a policy that refuses no commands or file types. It limits a file to 10 MiB and an execution
// to 5 minutes. It limits a workspace to the default of backend.LimitTable, because the host's disk reserves this size
// for each sandbox.
func DefaultPolicy() Policy {
	workspace := backend.LimitNamed("workspace_mb")
	return Policy{Limits: PolicyLimits{
		FileMB: 10, WorkspaceMB: workspace.Default / workspace.Scale, ExecTimeout: 5 * time.Minute,
	}}
}

// ParsePolicy parses a YAML policy over DefaultPolicy. name is used only in errors. Unknown keys, values of the wrong
// type, negative or fractional limits, and malformed patterns are errors.
func ParsePolicy(name string, src []byte) (Policy, error) {
	p := DefaultPolicy()
	const single = "keep one of them"
	format := yamlnode.Format{Name: "the policy", Single: single, MaxBytes: 1 << 20, MaxDepth: 16, MaxValues: 50_000}
	d, root := format.Read(name, src)
	d.Zero = true // zero means no limit
	if root == nil || d.Decode(root, "the policy", &p) {
		d.AddBelow("", p.compile())
	}
	return p, d.Err()
}

// compile checks the policy and splits the patterns. It returns all problems.
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

// Ceiling returns the maximum limits of client requests. It uses the limits listed in backend.LimitTable.
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
	r.Name = cmp.Or(r.Name, r.Pattern)
	return nil
}

// matches reports whether the rule matches the command.
func (r *CommandRule) matches(cmd []word) bool {
	program := cmd[0].text
	if !strings.Contains(r.words[0], "/") {
		program = path.Base(program)
	}
	return matchWord(r.words[0], word{text: program, static: true}) && matchWords(r.words[1:], cmd[1:])
}

// matchWords matches pattern against the first words. The running time is at most proportional to the product of the
// lengths.
func matchWords(pattern []string, words []word) bool {
	// reach[i] reports whether the pattern so far can match exactly i words.
	reach := make([]bool, len(words)+1)
	reach[0] = true
	for _, p := range pattern {
		next := make([]bool, len(reach))
		for i := range reach {
			switch p {
			case "**":
				next[i] = reach[i] || i > 0 && next[i-1]
			case "-**": // an option, or an option and the value
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

// isOption reports whether a word is an option. A computed word counts as an option only if the literal part begins
// like one.
func isOption(w word) bool { return strings.HasPrefix(w.text, "-") }

// matchWord matches one word. A computed word is unknown, so only `*` matches it. Slashes are ordinary characters here.
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

// fileRule returns the rule against a file, or an empty string if the file is allowed.
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
