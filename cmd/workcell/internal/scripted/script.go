package scripted

import (
	"fmt"
	"maps"
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// maxFileBytes is the maximum size of a script file.
const maxFileBytes = 4 << 20

// Script is a parsed script. It is immutable and safe for concurrent use. A [Plugin] stores which invocations were
// played.
type Script struct {
	file   string
	agents map[string][]*invocation
}

// invocation contains the answers of the model during one run of an agent.
type invocation struct {
	line  int
	when  *expr.Program // nil for any run
	turns []*turn
}

// turn is one answer of the model.
type turn struct {
	line   int
	expect []*expr.Program
	text   *expr.Value // nil for none
	json   *expr.Value // nil for none
	calls  []*call
}

// call is one tool call of a turn.
type call struct {
	tool  string
	input *expr.Value // nil for an empty input
}

// Load reads and parses a script file.
func Load(path string) (*Script, error) {
	src, err := yamlnode.ReadFile(path, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	return Parse(path, src)
}

// Agents returns the agents with turns, sorted.
func (s *Script) Agents() []string { return slices.Sorted(maps.Keys(s.agents)) }
