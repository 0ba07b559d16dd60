package workflow

import (
	"fmt"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// sharer is an agent that works in a sandbox of the run, and the step that runs it.
type sharer struct {
	*agentBody
	step *step
}

// checkSandboxes refuses agents that share a sandbox and want it different: the one that comes second could not run a
// single command. Only what both name counts. Where one names nothing it takes the sandbox as it finds it.
func (l *loader) checkSandboxes(wf *Workflow) {
	sharers := map[string][]sharer{}
	collectSharers(wf.steps, "sandbox "+record.DefaultName, sharers)
	for _, sandbox := range sortedKeys(sharers) {
		list := sharers[sandbox]
		for i, b := range list {
			for _, a := range list[:i] {
				if fields := conflict(*a.file.Sandbox, *b.file.Sandbox, wf.base); len(fields) > 0 {
					l.Fail(b.step.node, fmt.Sprintf("use the same settings for both, or give one of them another sandbox with `sandbox:` in its step: %s, %s",
						sandboxPlace(a.file), sandboxPlace(b.file)),
						"agents %s and %s share the %s but request different %s", a.agent, b.agent, sandbox, strings.Join(fields, ", "))
					break
				}
			}
		}
	}
}

// collectSharers finds the agents of each sandbox, each agent once.
func collectSharers(seq *sequence, sandbox string, into map[string][]sharer) {
	for _, s := range seq.steps {
		name := ownSandbox(sandbox, s.sandbox, "step "+s.id)
		for _, br := range s.branches() {
			own := br.sandbox
			if own.name == "" {
				own.isolated = own.isolated || s.sandbox.isolated
			}
			collectSharers(br.steps, ownSandbox(name, own, br.steps.scope), into)
		}
		b, ok := s.body.(*agentBody)
		if !ok || b.file == nil || b.file.Sandbox == nil || !b.file.Sandbox.Mode.Lasting() {
			continue
		}
		switch own := b.file.Sandbox.Session; own {
		case frontmatter.SessionIsolated:
			continue
		case "", frontmatter.SessionDefault:
		default:
			name = "sandbox " + own
		}
		if !slices.ContainsFunc(into[name], func(other sharer) bool { return other.agent == b.agent }) {
			into[name] = append(into[name], sharer{b, s})
		}
	}
}

// ownSandbox names the sandbox of a place in the file.
func ownSandbox(around string, own sandboxRef, place string) string {
	switch {
	case own.isolated:
		return "isolated sandbox of " + place
	case own.name != "":
		return "sandbox " + own.name
	}
	return around
}

// conflict names the fields that both agents name and in which they differ.
func conflict(a, b frontmatter.Sandbox, base session.Request) []string {
	reqA, namedA := tools.RequestOver(a, base)
	reqB, namedB := tools.RequestOver(b, base)
	return slices.DeleteFunc(reqA.Differences(reqB), func(field string) bool {
		return !slices.Contains(namedA, field) || !slices.Contains(namedB, field)
	})
}

// sandboxPlace returns file:line of an agent's `sandbox:`.
func sandboxPlace(doc *frontmatter.Document) string {
	at := doc.Problem("sandbox", "", "")
	return fmt.Sprintf("%s:%d", at.File, at.Line)
}
