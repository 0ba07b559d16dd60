// Package hosttools lets code inside a sandbox call tools that run on the host.
//
// A [Source] has the tools of one server: the program's own, or those of an MCP server (package mcpsource). A
// [Registry] holds the sources and the operator's policy. [Registry.Set] freezes what a run may call: schemas that are
// too large or too deep are left out, and nothing changes until the run ends. [Set.Access] is one command's access to
// it, and [Access.Serve] speaks MCP on a connection of that command.
//
// A call is checked in a fixed order, and the first check that fails answers: the grant, size and form of the
// arguments, their schema, policy and conditions, quotas, rate and slots, approval. Then the tool runs with a time
// limit, and its result is bounded: a large one becomes a file of the sandbox.
//
// Each call is a span "execute_tool NAME", whose parent is the span that the call names when that is of the command's
// own trace, else the span of the command. It has no arguments and no results.
package hosttools

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

// Grant is what a run may call, and on whose behalf.
type Grant struct {
	Rules    Rules
	Caller   Caller   // Run and Agent; Workflow and Step are those of the context
	File     string   // of the agent, which tells agents of one name apart; if empty, the name does
	Approver Approver // nil: what needs an approval is refused
}

// maxDepth is how deep runs may lie in each other through tools of the host.
const maxDepth = 3

// Decisions about calls.
const (
	Allowed  = "allowed"
	Denied   = "denied"
	Approved = "approved"
	Rejected = "rejected"
)

// Counts are the calls of one command.
type Counts struct {
	Total  int64 `json:"total"`
	Failed int64 `json:"failed"`
	Denied int64 `json:"denied"`
	// WaitedMS is the time of all calls that the limits per second and of concurrent calls made wait.
	WaitedMS int64            `json:"waited_ms,omitempty"`
	ByTool   map[string]int64 `json:"by_tool,omitempty"`
}

// Set is what a run may call. It does not change. It is safe for concurrent use.
type Set struct {
	r        *Registry
	grant    Grant
	sorted   []*entry
	byName   map[string]*entry // by their names inside and those of rules
	digest   string
	limits   Limits
	declared map[string]string
	tally    *tally

	server  *mcp.Server
	load    *load
	reading chan struct{} // calls whose arguments are being read
	slots   chan struct{} // calls that are under way
	rate    *rate.Limiter
	life    context.Context // ends with Close and has the values of the run; calls come under contexts of their own
	end     context.CancelFunc
	running sync.WaitGroup // calls, handlers and connections

	refused atomic.Int64 // calls

	mu     sync.Mutex // guards closed
	closed bool
}

// RulesError is what is wrong with the rules of a grant.
type RulesError struct{ Problems Problems }

// Error returns a line for each problem.
func (e *RulesError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = "host_tools." + p.Field + ": " + p.Error()
	}
	return strings.Join(lines, "\n")
}

// Set freezes what a grant allows. The caller closes it when the run ends; calls have the values of ctx, not its end. Where the rules do not fit the tools the error is a
// *[RulesError].
func (r *Registry) Set(ctx context.Context, g Grant) (*Set, error) {
	if problems := append(g.Rules.Problems(), ConditionProblems(g.Rules)...); len(problems) > 0 {
		return nil, &RulesError{problems}
	}
	granted, problems, err := r.granted(ctx, g.Rules)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, &RulesError{problems}
	}
	g.Rules.Allow = slices.Clone(g.Rules.Allow)
	outer, _ := CallerFromContext(ctx)
	g.Caller.Depth = outer.Depth + 1
	limits := g.Rules.Limits.WithDefaults().Under(r.o.Policy.Limits)
	s := &Set{
		r: r, grant: g, sorted: granted, byName: map[string]*entry{}, limits: limits,
		load: newLoad(limits), reading: make(chan struct{}, 1), slots: make(chan struct{}, limits.Concurrent),
		rate: rate.NewLimiter(rate.Limit(limits.PerSecond), int(limits.PerSecond)),
	}
	s.tally = within(ctx, &s.grant)
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	env := conditionEnv()
	for _, e := range granted {
		rule := g.Rules.Allow[e.rule]
		if e.when, err = compile(env, rule.When); err == nil {
			e.ask, err = compile(env, rule.Ask)
		}
		if err != nil {
			return nil, err
		}
		e.maxCalls = rule.MaxCalls
		e.deny, e.mustAsk = matchAny(r.o.Policy.Deny, e.tool), matchAny(r.o.Policy.Ask, e.tool)
		s.byName[e.tool.MCPName()], s.byName[e.tool.FullName()] = e, e
	}
	s.nameIdentifiers()
	if s.digest, err = Digest(s.Tools()); err != nil {
		return nil, err
	}
	s.declared = declarations(s.Tools())
	s.server = s.newServer()
	return s, nil
}

// nameIdentifiers adds the names of tools with _ for -, as in identifiers of Python and Node, unless two tools share
// one.
func (s *Set) nameIdentifiers() {
	identifier := func(e *entry) string { return strings.ReplaceAll(e.tool.MCPName(), "-", "_") }
	alike := map[string]int{}
	for _, e := range s.sorted {
		alike[identifier(e)]++
	}
	for _, e := range s.sorted {
		if alike[identifier(e)] == 1 {
			s.byName[identifier(e)] = e
		}
	}
}

// Tools returns the tools, sorted by their names inside. What they hold must not be changed.
func (s *Set) Tools() []Tool {
	tools := make([]Tool, len(s.sorted))
	for i, e := range s.sorted {
		tools[i] = e.tool
	}
	return tools
}

// Digest returns the SHA-256 of the definitions in hexadecimal.
func (s *Set) Digest() string { return s.digest }

// Declarations returns the files that tell code inside about the tools, by path.
func (s *Set) Declarations() map[string]string { return maps.Clone(s.declared) }

// Close refuses further calls, ends those that are under way and the connections, and waits for the handlers until ctx
// ends.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	ended := make(chan struct{})
	go func() { // ends with the last handler
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("host tools: calls are still running: %w", ctx.Err())
	}
}

// begin counts something that Close waits for; false once the set is closed. The caller calls s.running.Done.
func (s *Set) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// calls are those that a run has made, in all and of one tool.
type calls struct{ total, tool int64 }

// reserve counts a call against the quotas, and returns the calls before it.
func (s *Set) reserve(e *entry) (calls, *Error) {
	t := s.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	name := e.tool.FullName()
	before := calls{t.total, t.byTool[name]}
	switch {
	case e.maxCalls > 0 && before.tool >= e.maxCalls:
		return before, toolspec.Failf(toolspec.CodeQuota, "%s may be called %d times in a run", name, e.maxCalls).WithRemediation(noMoreCalls)
	case before.total >= s.limits.Calls:
		return before, toolspec.Failf(toolspec.CodeQuota, "a run may make %d calls of host tools", s.limits.Calls).WithRemediation(noMoreCalls)
	}
	t.total++
	t.byTool[name]++
	return before, nil
}

// giveBack takes a call back that found no capacity.
func (s *Set) giveBack(e *entry) {
	t := s.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	t.byTool[e.tool.FullName()]--
}

const noMoreCalls = "Continue with the results so far, and mention missing data."

// calls returns the calls so far.
func (s *Set) calls(e *entry) calls {
	t := s.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	return calls{t.total, t.byTool[e.tool.FullName()]}
}

// maxRefused is how many calls of a run are refused one by one, each on record; code that goes on is not listened to.
const maxRefused = 10_000
