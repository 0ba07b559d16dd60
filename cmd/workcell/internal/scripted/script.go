package scripted

import (
	"fmt"
	"maps"
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// maxFileBytes bounds a script file.
const maxFileBytes = 4 << 20

// Script is a parsed script. It does not change and may be used concurrently; a [Plugin] holds what was played.
type Script struct {
	file   string
	agents map[string][]*invocation
}

// invocation is what the model answers during one run of an agent.
type invocation struct {
	line  int
	when  *expr.Program // nil: any run
	turns []*turn
}

// turn is one answer of the model.
type turn struct {
	line   int
	expect []*expr.Program
	text   *expr.Value // nil: none
	json   *expr.Value // nil: none
	calls  []*call
}

// call is one tool call of a turn.
type call struct {
	tool  string
	input *expr.Value // nil: an empty one
}

// Load reads and parses a script file.
func Load(path string) (*Script, error) {
	src, err := yamlnode.ReadFile(path, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	return Parse(path, src)
}

// File is the name the script was parsed under.
func (s *Script) File() string { return s.file }

// Agents lists the agents that have turns, sorted.
func (s *Script) Agents() []string { return slices.Sorted(maps.Keys(s.agents)) }

// Has reports whether the script has turns for an agent.
func (s *Script) Has(agent string) bool { return s.agents[agent] != nil }
