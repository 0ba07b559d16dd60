package rules

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// Tools is the value of `host_tools:`. A limit of zero is invalid in a file. In a value from Go code, a zero field
// means the default.
type Tools struct {
	Allow  []Tool     `json:"allow,omitzero" jsonschema_description:"the tools that code may call"`
	Limits ToolLimits `json:"limits,omitzero" jsonschema_description:"limits of the calls of a run"`
	Index  string     `json:"index,omitempty" jsonschema:"enum=auto,enum=full,enum=search" jsonschema_description:"how models see the tools: full lists all, search only describes how to find them; auto, the default, is full while it is short"`
}

// Tool allows calls of tools. If several rules match a tool, an exact rule takes precedence, and otherwise the first
// rule.
type Tool struct {
	Tool     string `json:"tool" yamlnode:"short" jsonschema_description:"server.tool; a * stands for any text on its side of the dot"`
	When     string `json:"when,omitempty" jsonschema_description:"condition in CEL; a call for which it is false is refused"`
	Ask      string `json:"ask,omitempty" jsonschema_description:"condition in CEL, or true; a call for which it is true requires approval"`
	MaxCalls int64  `json:"max_calls,omitempty" jsonschema_description:"calls of each tool in a run"`
}

// Values of Tools.Index.
const (
	indexAuto   = "auto"
	IndexFull   = "full"
	IndexSearch = "search"
)

// ToolLimits are the limits for the calls of a run. A zero field means the default.
type ToolLimits struct {
	Calls      int64 `json:"calls,omitempty" jsonschema_description:"calls of a run"`
	Concurrent int64 `json:"concurrent,omitempty" jsonschema_description:"calls at once"`
	PerSecond  int64 `json:"per_second,omitempty" jsonschema_description:"calls a second"`
	Seconds    int64 `json:"seconds,omitempty" jsonschema_description:"time of one call"`
	ArgKB      int64 `json:"arg_kb,omitempty" jsonschema_description:"size of the arguments of one call in KiB"`
	ResultKB   int64 `json:"result_kb,omitempty" jsonschema_description:"size in KiB up to which a result is part of the answer; larger results are files"`
}

// toolBound is a limit with the valid range and the default.
type toolBound struct {
	Name                 string
	Value                *int64
	Least, Most, Default int64
}

// Bounds returns the limits with the names that files use.
func (l *ToolLimits) Bounds() []toolBound {
	return []toolBound{
		{"calls", &l.Calls, 1, 1_000_000, 1000},
		{"concurrent", &l.Concurrent, 1, 256, 16},
		{"per_second", &l.PerSecond, 1, 10_000, 50},
		{"seconds", &l.Seconds, 1, 3600, 60},
		{"arg_kb", &l.ArgKB, 1, 1024, 1024},
		{"result_kb", &l.ResultKB, 1, 1024, 64},
	}
}

// WithDefaults returns the limits with the defaults filled in.
func (l ToolLimits) WithDefaults() ToolLimits {
	for _, b := range l.Bounds() {
		*b.Value = cmp.Or(*b.Value, b.Default)
	}
	return l
}

// Under returns the limits, lowered to the limits of most.
func (l ToolLimits) Under(most ToolLimits) ToolLimits {
	above := most.Bounds()
	for i, b := range l.Bounds() {
		if m := *above[i].Value; m > 0 {
			*b.Value = min(*b.Value, m)
		}
	}
	return l
}

// MaxTools is the maximum number of rules in a file.
const MaxTools = 500

// Problems returns the problems detectable without the tools and without compiling conditions.
func (r Tools) Problems() (found hint.Problems) {
	if len(r.Allow) == 0 {
		found.Add("allow", "list the tools that code may call, for example allow: [orders.lookup]",
			"host_tools allows no tool")
	}
	if len(r.Allow) > MaxTools {
		found.Add("allow", "use patterns", "host_tools has %d rules, at most %d are allowed", len(r.Allow), MaxTools)
		return found
	}
	if known := []string{indexAuto, IndexFull, IndexSearch}; r.Index != "" && !slices.Contains(known, r.Index) {
		found.Add("index", suggest.Hint(r.Index, known), "unknown index %q", sanitize.Clip(r.Index))
	}
	for _, p := range r.Limits.Problems() {
		found.Add("limits."+p.Field, p.Hint, "limits.%s", p.Message)
	}
	for i, rule := range r.Allow {
		field := fmt.Sprintf("allow[%d]", i)
		if p := ToolPattern(rule.Tool).Check(); p != nil {
			found.Add(field+".tool", p.Hint, "%s", p.Message)
		}
		if rule.MaxCalls < 0 || rule.MaxCalls > 1_000_000 {
			found.Add(field+".max_calls", "", "max_calls must be 1 to 1000000, not %d", rule.MaxCalls)
		}
	}
	return found
}

// Problems returns the limits outside of their ranges.
func (l ToolLimits) Problems() (found hint.Problems) {
	for _, b := range l.Bounds() {
		if v := *b.Value; v != 0 && (v < b.Least || v > b.Most) {
			found.Add(b.Name, "", "%s must be %d to %d, not %d", b.Name, b.Least, b.Most, v)
		}
	}
	return found
}

// ToolPattern matches tools. It has the form "server.tool", and a * stands for any text on that side of the dot.
type ToolPattern string

var (
	serverPattern  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,31}$`)
	patternPattern = regexp.MustCompile(`^[A-Za-z0-9_*-]{1,32}\.[A-Za-z0-9_*./-]{1,128}$`)
)

// ServerProblem returns the problem with the name of a server, or an empty string.
func ServerProblem(name string) string {
	switch {
	case !serverPattern.MatchString(name):
		return "use at most 32 letters, digits, '_', or '-', starting with a letter"
	case name == "sandbox" || name == "workcell":
		return "the name is reserved"
	}
	return ""
}

// ReservedTool reports whether tools with this name are never offered, because sandbox tools and agents would then call
// themselves.
func ReservedTool(tool string) bool {
	return strings.HasPrefix(tool, "sandbox_") || tool == "execute_task"
}

// Check returns the first problem with the pattern, or nil.
func (p ToolPattern) Check() *hint.Problem {
	switch {
	case p == "":
		return &hint.Problem{Message: "a rule requires a tool", Hint: "for example tool: orders.lookup"}
	case !patternPattern.MatchString(string(p)):
		message := fmt.Sprintf("%q is not a tool name", sanitize.Clip(string(p)))
		return &hint.Problem{Message: message, Hint: "use server.tool, such as orders.lookup or github.get_*"}
	case ReservedTool(p.Tool()):
		message := fmt.Sprintf("tool %q cannot be called from a sandbox", sanitize.Clip(p.Tool()))
		return &hint.Problem{Message: message, Hint: "remove it"}
	}
	return nil
}

// Server returns the part before the dot.
func (p ToolPattern) Server() string {
	server, _, _ := strings.Cut(string(p), ".")
	return server
}

// Tool returns the part after the dot.
func (p ToolPattern) Tool() string {
	_, tool, _ := strings.Cut(string(p), ".")
	return tool
}

// Exact reports whether the pattern matches only one tool.
func (p ToolPattern) Exact() bool { return !strings.Contains(string(p), "*") }

// OfServer reports whether the pattern can match tools of a server.
func (p ToolPattern) OfServer(server string) bool { return matchStars(p.Server(), server) }

// Match reports whether the pattern matches a tool.
func (p ToolPattern) Match(server, tool string) bool {
	return p.OfServer(server) && matchStars(p.Tool(), tool)
}

// matchStars matches text against a pattern in which each * stands for any text. For each star, it takes time
// proportional to the lengths of both.
func matchStars(pattern, text string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, head)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	for _, part := range parts[:len(parts)-1] {
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}
