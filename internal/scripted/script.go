package scripted

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
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
	when  *expression // nil: any run
	turns []*turn
}

// turn is one answer of the model.
type turn struct {
	line   int
	expect []*expression
	text   *expr.Value // nil: none
	json   *expr.Value // nil: none
	calls  []*call
}

// call is one tool call of a turn.
type call struct {
	tool  string
	input *expr.Value
}

// Load reads and parses a script file.
func Load(path string) (*Script, error) {
	f, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	if f.Size() > maxFileBytes {
		return nil, Problems{{File: path, Message: fmt.Sprintf("larger than %d bytes", maxFileBytes)}}
	}
	src, err := os.ReadFile(path)
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
