package hosttools

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

// Grant describes the tools of a run, and the caller.
type Grant struct {
	Rules    Rules
	Caller   Caller   // Run and Agent; Workflow and Step come from the context
	File     string   // agent's file, which distinguishes agents with the same name; if empty, the name is used
	Approver Approver // if nil, calls with a required approval are refused
}

// setKey is the context key of the *Set of the current call.
type setKey struct{}

// maxDepth is the maximum nesting depth of runs started by host tools.
const maxDepth = 3

// Decisions on calls.
const (
	allowed  = "allowed"
	denied   = "denied"
	approved = "approved"
	rejected = "rejected"
)

// Counts are the call counts of one command.
type Counts struct {
	Total  int64 `json:"total"`
	Failed int64 `json:"failed"`
	Denied int64 `json:"denied"`
	// WaitedMS is the total time that calls spent in the queues for the limits on calls per second and concurrent calls.
	WaitedMS int64            `json:"waited_ms,omitempty"`
	ByTool   map[string]int64 `json:"by_tool,omitempty"`
	// Asking is the total time spent waiting for approvals, including waits that are still open and waits for a slot
	// after an approval. Concurrent waits count once.
	Asking time.Duration `json:"-"`
}

// Set is the immutable set of tools of a run. It is safe for concurrent use.
type Set struct {
	r        *Registry
	grant    Grant
	outer    *Set // of the call that started this run; nil if no host tool started it
	sorted   []*entry
	byName   map[string]*entry // by name in sandboxes and by name in rules
	digest   string
	limits   Limits
	declared map[string]string
	tally    *tally

	server  *mcp.Server
	load    *load
	reading chan struct{}   // calls whose arguments are being parsed
	life    context.Context // done after Close; has the values of the run, because calls have separate contexts
	end     context.CancelFunc
	running sync.WaitGroup // calls, handlers and connections

	programs sync.Map // *overtime by exec id: programs in interpreters
	latest   sync.Map // *Access by interpreter: of its latest program

	mu     sync.Mutex // guards closed
	closed bool
}

// Serves reports whether ctx belongs to a call through the set, or to a run that such a call started.
func (s *Set) Serves(ctx context.Context) bool {
	at, _ := ctx.Value(setKey{}).(*Set)
	for at != nil && at != s {
		at = at.outer
	}
	return at != nil
}

// RulesError lists the problems of a grant's rules.
type RulesError struct{ Problems Problems }

// Error returns one line per problem.
func (e *RulesError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = "host_tools." + p.Field + ": " + p.Error()
	}
	return strings.Join(lines, "\n")
}

// Set returns the set of tools allowed by a grant. The caller must close it when the run ends. Calls use the values of
// ctx, but not its cancellation. If the rules do not match the tools, the error is a *[RulesError].
func (r *Registry) Set(ctx context.Context, g Grant) (*Set, error) {
	g.Rules.Allow = slices.Clone(g.Rules.Allow) // before the checks, because the caller may change the rules
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
	outer, nested := ctx.Value(setKey{}).(*Set) // if a host tool starts the run
	g.Caller.Depth = 1
	if nested {
		g.Caller.Depth += outer.grant.Caller.Depth
	}
	limits := g.Rules.Limits.WithDefaults().Under(r.o.Policy.Limits)
	s := &Set{
		r: r, grant: g, outer: outer, sorted: granted, byName: map[string]*entry{}, limits: limits, load: newLoad(limits),
		reading: make(chan struct{}, 1),
	}
	s.tally = within(ctx, &s.grant, limits)
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	env := conditionEnv()
	for _, e := range granted {
		rule := g.Rules.Allow[e.rule]
		if e.when, err = compile(env, rule.When); err == nil {
			e.ask, err = compile(env, rule.Ask)
		}
		if err != nil { // without a program, the rule would have no condition
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

// nameIdentifiers adds tool names with _ instead of -, like Python and Node identifiers, unless two tools would get the
// same name.
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

// Tools returns the tools, sorted by their names in sandboxes. Callers must not modify them.
func (s *Set) Tools() []Tool {
	tools := make([]Tool, len(s.sorted))
	for i, e := range s.sorted {
		tools[i] = e.tool
	}
	return tools
}

// Digest returns the SHA-256 of the definitions in hexadecimal.
func (s *Set) Digest() string { return s.digest }

// Close refuses new calls, cancels running calls, and closes the connections. It waits for the handlers until ctx is
// done.
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

// begin registers work for Close to wait for. The caller must call s.running.Done. begin returns false if the set is
// closed.
func (s *Set) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// calls are the numbers of a run's earlier calls: in total, and of one tool.
type calls struct{ total, tool int64 }

// reserve counts a call against the quotas and returns the numbers of earlier calls.
func (s *Set) reserve(e *entry) (calls, *Error) {
	t := s.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	name := e.tool.FullName()
	before := calls{t.total, t.byTool[name]}
	switch {
	case e.maxCalls > 0 && before.tool >= e.maxCalls:
		return before, toolspec.Failf(toolspec.CodeQuota, "%s may be called %d times in a run", name, e.maxCalls).
			WithRemediation(noMoreCalls)
	case before.total >= s.limits.Calls:
		return before, toolspec.Failf(toolspec.CodeQuota, "a run may make %d calls of host tools", s.limits.Calls).
			WithRemediation(noMoreCalls)
	}
	t.total++
	t.byTool[name]++
	return before, nil
}

// giveBack reverts reserve for a call refused for lack of capacity.
func (s *Set) giveBack(e *entry) {
	t := s.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	t.byTool[e.tool.FullName()]--
}

const (
	noMoreCalls = "Continue with the results so far, and mention missing data."
	withoutCall = "Continue without this call, or describe its purpose in the answer."
)

// calls returns the numbers of calls so far.
func (s *Set) calls(e *entry) calls {
	t := s.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	return calls{t.total, t.byTool[e.tool.FullName()]}
}

// maxRefused is the maximum number of individually recorded refusals per run. After that, the run's requests are
// ignored.
const maxRefused = 10_000
