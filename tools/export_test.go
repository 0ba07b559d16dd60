package tools

import (
	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/sandbox"
)

// Unexported identifiers for package tools_test.

var (
	JSONObject = jsonObject
	Neutral    = neutral
	ExitCode   = exitCode
	Excerpt    = excerpt
)

func ToolsOf(mode frontmatter.Mode) []ai.Tool {
	return newBinding(newToolbox(&Plugin{}), Sandbox{Mode: mode, Snapshots: mode == frontmatter.ModeCode}).offered()
}

func Show(o sandbox.Output, stream string, keep bool) (text string, truncated bool, path string) {
	s := show(o, stream, keep)
	return s.text, s.truncated, s.path
}
