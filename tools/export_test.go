package tools

import (
	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// What tests of package tools_test need to see.

var (
	JSONObject = jsonObject
	Neutral    = neutral
	ExitCode   = exitCode
	Excerpt    = excerpt
)

// Edit replaces every occurrence of old in text.
func Edit(text []byte, old, with string) (data []byte, lines []int64, err error) {
	e := newEdit(text, old)
	data, err = e.replace(with)
	return data, e.lines(), err
}

func ToolsOf(mode frontmatter.Mode) []ai.Tool {
	return newBinding(newToolbox(nil, nil), Sandbox{Mode: mode}).offered()
}

func Show(o session.Output, stream string, keep bool) (text string, truncated bool, path string) {
	s := show(o, stream, keep)
	return s.text, s.truncated, s.path
}
