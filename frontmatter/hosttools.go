package frontmatter

import (
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/internal/toolrule"
)

// HostTools is the value of `host_tools:`, the tools of the host that code inside the sandbox may call.
type HostTools = toolrule.Rules

// HostTool is a rule of HostTools, which lets tools be called.
type HostTool = toolrule.Rule

// SandboxProblem makes an error about a field below `sandbox`, "host_tools.allow[2].when".
func (d *Document) SandboxProblem(field, hint, format string, args ...any) *Error {
	path := []any{"sandbox"}
	for _, part := range strings.Split(field, ".") {
		name, index, list := strings.Cut(strings.TrimSuffix(part, "]"), "[")
		path = append(path, name)
		if i, err := strconv.Atoi(index); list && err == nil {
			path = append(path, i)
		}
	}
	return d.Problem(path, hint, format, args...)
}
