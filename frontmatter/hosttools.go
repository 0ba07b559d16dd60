package frontmatter

import "github.com/workcell-dev/workcell/internal/rules"

// HostTools is the value of `host_tools:`, the tools of the host that code inside the sandbox may call.
type HostTools = rules.Tools

// HostTool is a rule of HostTools, which lets tools be called.
type HostTool = rules.Tool
