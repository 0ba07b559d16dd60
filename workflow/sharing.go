package workflow

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// sandboxUser is an agent using a sandbox of the run, and the step running it.
type sandboxUser struct {
	*agentBody
	step *step
}

// sharing contains the users of each sandbox of a run.
type sharing struct {
	agents map[string][]sandboxUser // each agent once
	first  map[string]*step         // the first command or agent; an empty step if unknown
	unsure bool                     // some earlier step may be skipped or may run repeatedly
}

// checkSandboxes reports agents with a common sandbox but different configurations, because the second agent could not
// open the sandbox. It compares only fields both agents set. A field an agent does not set matches every value.
func (l *loader) checkSandboxes(wf *Workflow) {
	users := sharing{agents: map[string][]sandboxUser{}, first: map[string]*step{}, unsure: wf.steps.start != 0}
	users.collect(wf.steps, named(record.DefaultName))
	for _, sandbox := range sortedKeys(users.agents) {
		list := users.agents[sandbox]
	next:
		for i, b := range list {
			for _, a := range list[:i] {
				if fields := conflict(*a.file.Sandbox, *b.file.Sandbox, wf.base); len(fields) > 0 {
					l.Fail(b.step.node, fmt.Sprintf("use the same settings for both, or give one of them another sandbox with "+
						"`sandbox:` in its step: %s, %s", sandboxPlace(a.file), sandboxPlace(b.file)),
						"agents %s and %s share the %s but request different %s", a.agent, b.agent, sandbox, strings.Join(fields, ", "))
					continue next
				}
			}
			if first := users.first[sandbox]; first.typ == TypeExec && wf.base.Image != "" { // otherwise the agents specify it
				l.checkAfterCommand(wf.base, first, b, sandbox)
			}
		}
	}
	for _, s := range l.steps {
		b, ok := s.body.(*agentBody)
		banned := wf.base.Network == backend.NetworkNone && len(wf.base.Egress.Allow) == 0
		if ok && banned && b.file != nil && b.file.Sandbox != nil {
			if req := wish.Request(*b.file.Sandbox); req.Network == backend.NetworkBridge || len(req.Egress.Allow) > 0 {
				l.Fail(s.node, "remove network: from one of the two: "+sandboxPlace(b.file),
					"agent %s requires network access, which the workflow forbids (network: {enabled: false})", b.agent)
			}
		}
	}
}

// checkAfterCommand reports an agent whose request differs from the sandbox of the command using it first. For limits
// the workflow does not set, the operator's defaults apply.
func (l *loader) checkAfterCommand(made session.Request, command *step, b sandboxUser, sandbox string) {
	req, named := tools.RequestOver(*b.file.Sandbox, made)
	for _, r := range []*session.Request{&made, &req} {
		r.Network = cmp.Or(r.Network, backend.NetworkNone)
		r.User, _ = record.ParseUser(r.User)
	}
	made.Limits = made.Limits.Merge(req.Limits)
	fields := slices.DeleteFunc(made.Differences(req), func(field string) bool { return !slices.Contains(named, field) })
	if len(fields) > 0 {
		advice := "use the same settings in the workflow, or give one of the steps another sandbox with `sandbox:`: "
		l.Fail(b.step.node, advice+sandboxPlace(b.file),
			"agent %s requests different %s than the %s has, which the command of step %s opens first",
			b.agent, strings.Join(fields, ", "), sandbox, command.id)
	}
}

// collect finds the commands and agents of each sandbox, and the location of each step.
func (sh *sharing) collect(seq *sequence, around location) {
	for _, s := range seq.steps {
		s.location = around.within(s.sandbox, "step "+s.id)
		name, shares := s.location.name, false
		b, isAgent := s.body.(*agentBody)
		if isAgent {
			name, shares = s.location.of(b.file)
		}
		if sh.first[name] == nil && (shares || s.typ == TypeExec || isAgent && b.file == nil) {
			if sh.first[name] = s; sh.unsure || s.cond != nil {
				sh.first[name] = &step{}
			}
		}
		if shares && !slices.ContainsFunc(sh.agents[name], func(other sandboxUser) bool { return other.agent == b.agent }) {
			sh.agents[name] = append(sh.agents[name], sandboxUser{b, s})
		}
		sh.unsure = sh.unsure || s.typ == TypeSwitch || s.branches() != nil || s.next.id != "" ||
			s.onError.id != "" && s.onError.id != onErrorContinue
		for _, br := range s.branches() {
			own := br.sandbox
			own.isolated = own.isolated || own.name == "" && s.sandbox.isolated
			sh.collect(br.steps, s.location.within(own, br.steps.scope))
		}
	}
}

// location is the sandbox in which a part of the file runs.
type location struct {
	name     string // for messages
	isolated bool   // agents cannot use another sandbox
}

// named returns the location of the steps in a named sandbox.
func named(name string) location { return location{"sandbox " + name, false} }

// within returns the location of a step or branch in l.
func (l location) within(own sandboxRef, part string) location {
	switch {
	case own.isolated:
		return location{"isolated sandbox of " + part, true}
	case own.name != "":
		return named(own.name)
	}
	return location{l.name, l.isolated || own.fork}
}

// of returns the name of an agent's sandbox. It returns false if the agent's file is unknown, or if the agent has no
// sandbox or a private one.
func (l location) of(file *frontmatter.Document) (name string, shares bool) {
	if file == nil || file.Sandbox == nil || !file.Sandbox.Mode.Lasting() {
		return l.name, false
	}
	own := file.Sandbox.Session
	alone := own == frontmatter.SessionIsolated
	if alone || own == "" || own == frontmatter.SessionDefault || l.isolated && own != frontmatter.SessionUser {
		return l.name, !alone
	}
	return "sandbox " + own, true
}

// conflict returns the differing fields set by both agents.
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
