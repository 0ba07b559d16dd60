package tools

import (
	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// What tests of package tools_test need to see.

type (
	ExecInput    = execInput
	FSReadInput  = fsReadInput
	FSWriteInput = fsWriteInput
)

var (
	JSONObject = jsonObject
	Neutral    = neutral
	ExitCode   = exitCode
)

func ToolsOf(mode frontmatter.Mode) []ai.Tool {
	return newBinding(newToolbox(nil, nil), frontmatter.Sandbox{Mode: mode}).offered()
}

func Show(o session.Output, stream string, keep bool) (text string, truncated bool, path string) {
	s := show(o, stream, keep)
	return s.text, s.truncated, s.path
}

func ExcerptBounds(chars int) (head, tail int) {
	e := excerptOf(int64(chars))
	return e.head, e.tail
}

func Sentinels() map[error]Code {
	out := map[error]Code{}
	for _, s := range sentinels() {
		out[s.err] = s.code
	}
	return out
}

// Config takes a configuration over into the middleware and back.
func Config(c frontmatter.Sandbox) frontmatter.Sandbox { return fromConfig(c).config() }
