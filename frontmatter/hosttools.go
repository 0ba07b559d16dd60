package frontmatter

import "github.com/workcell-dev/workcell/internal/toolrule"

// HostTools is the value of `host_tools:`, the tools of the host that code inside the sandbox may call.
type HostTools = toolrule.Rules

// HostTool is a rule of HostTools, which lets tools be called.
type HostTool = toolrule.Rule
