package hosttools

import (
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/internal/rules"
)

const (
	indexName = "INDEX.md"
	maxIndex  = 6000 // maximum size of an automatically chosen full index in bytes
)

// Index returns the description of the tools for a model, with one line per tool. If this is too long, or if the rules
// request it, Index has one line per server and explains how to search.
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

// Entry is a tool of a set with the rules for it.
type Entry struct {
	Tool Tool
	// Decision is "allowed", "denied" by the operator, "asks" if every call needs approval, or "conditional" if it
	// depends on the arguments.
	Decision string
	MaxCalls int64 // per run; zero if the tool has no separate limit
}

// Entries returns the tools with their decisions, sorted by their names in sandboxes.
func (s *Set) Entries() []Entry {
	list := make([]Entry, len(s.sorted))
	for i, e := range s.sorted {
		rule := s.grant.Rules.Allow[e.rule]
		list[i] = Entry{Tool: e.tool, Decision: allowed, MaxCalls: e.maxCalls}
		switch {
		case e.deny:
			list[i].Decision = denied
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
