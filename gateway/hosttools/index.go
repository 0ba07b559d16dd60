package hosttools

import (
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/gateway/hosttools/declare"
	"github.com/workcell-dev/workcell/internal/rules"
)

const (
	indexName = "INDEX.md"
	maxIndex  = 6000 // bytes of the full index where it is chosen by its length
)

// declarations returns the files that tell code inside about tools.
func declarations(tools []Tool) map[string]string {
	list := make([]declare.Tool, len(tools))
	for i, t := range tools {
		list[i] = t.declared()
	}
	return declare.Files(list)
}

func (t Tool) declared() declare.Tool {
	return declare.Tool{Server: t.Server, Name: t.Name, Title: t.Title, Description: t.Description, Input: t.Input, Output: t.Output}
}

// Index returns what a model is told of the tools: a line for each, or where that would be long, or the rules say so, a line
// for each server and how to search.
func (s *Set) Index() string {
	var full strings.Builder
	for _, e := range s.sorted {
		full.WriteString(declare.Index(e.tool.declared()) + "\n")
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
