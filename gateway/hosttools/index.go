package hosttools

import (
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/internal/rules"
)

const (
	indexName = "INDEX.md"
	maxIndex  = 6000 // bytes of the full index where it is chosen by its length
)

// Index returns what a model is told of the tools: a line for each, or where that would be long, or the rules say so, a
// line for each server and how to search.
func (s *Set) Index() string {
	var full strings.Builder
	for _, e := range s.sorted {
		full.WriteString(indexLine(e.tool) + "\n")
	}
	index := s.grant.Rules.Index
	if index == rules.IndexFull || index != rules.IndexSearch && full.Len() <= maxIndex {
		return full.String()
	}
	var servers []string
	count := map[string]int{}
	for _, e := range s.sorted {
		if count[e.tool.Server]++; count[e.tool.Server] == 1 {
			servers = append(servers, e.tool.Server)
		}
	}
	var short strings.Builder
	for _, server := range servers {
		fmt.Fprintf(&short, "%s: %d tools\n", server, count[server])
	}
	short.WriteString("Find them in a shell: `tools search WORDS`, `tools ls SERVER`, `tools show server.tool`.\n")
	return short.String()
}

// Entry is what a set says of a tool.
type Entry struct {
	Tool     Tool
	Decision string // Allowed; Denied, by the operator; "asks", of every call; "conditional": it depends on the arguments
	MaxCalls int64  // in a run; zero is no bound of its own
}

// Entries returns the tools with what is decided about them, sorted by their names inside.
func (s *Set) Entries() []Entry {
	list := make([]Entry, len(s.sorted))
	for i, e := range s.sorted {
		rule := s.grant.Rules.Allow[e.rule]
		list[i] = Entry{Tool: e.tool, Decision: Allowed, MaxCalls: e.maxCalls}
		switch {
		case e.deny:
			list[i].Decision = Denied
		case rule.When != "":
			list[i].Decision = "conditional"
		case e.mustAsk || rule.Ask == "true":
			list[i].Decision = "asks"
		case rule.Ask != "":
			list[i].Decision = "conditional"
		}
	}
	return list
}
