package frontmatter

import "github.com/workcell-dev/workcell/internal/rules"

// HostTools is the value of `host_tools:`, the host tools that sandboxed code may call.
type HostTools = rules.Tools

// HostTool is a rule of HostTools that allows tools.
type HostTool = rules.Tool
