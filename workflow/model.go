package workflow

import (
	"context"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/session"
)

// Limits of a workflow. If the file itself exceeds a limit, loading fails. Other limits end the run with a typed error.
const (
	defaultMaxSteps = 50        // default max_steps
	maxMaxSteps     = 1_000_000 // maximum of max_steps
	defaultTimeout  = time.Hour // default timeout
	maxTimeout      = 7 * 24 * time.Hour
	maxSteps        = 500    // steps in a file, including nested steps
	maxNesting      = 5      // nesting of parallel and for_each
	maxBranches     = 64     // branches of one parallel; also the maximum of max_concurrency
	maxItems        = 10_000 // items of one for_each
	maxAttempts     = 20     // maximum attempts of retry
	maxBackoff      = 5 * time.Minute
	maxOutputBytes  = 4 << 20  // size of one step's output
	maxStateBytes   = 64 << 20 // size of a run's whole state
	maxInputBytes   = 4 << 20  // size of a run's input
	maxRunDepth     = 8        // nested runs
)

// Type is the type of a step.
type Type string

// Step types.
const (
	TypeAgent    Type = "agent"
	TypeExec     Type = "exec"
	TypeSwitch   Type = "switch"
	TypeParallel Type = "parallel"
	TypeForEach  Type = "for_each"
	TypeSet      Type = "set"
	TypeFail     Type = "fail"
	TypeEnd      Type = "end"
)

// Workflow is a loaded and validated workflow file. It is immutable and safe for concurrent use.
type Workflow struct {
	ID          string
	Name        string // may be empty
	Description string
	Path        string // path as passed to Load
	Hash        string // hex SHA-256 of the file; a run can only be resumed with the same file
	MaxSteps    int    // maximum number of attempts of steps in a run
	Checkpoints bool   // the sandboxes are saved at the end of each step, for ResumeFrom
	Timeout     time.Duration

	src       *yamlnode.Source
	base      session.Request           // request for the run's sandboxes, unless an agent requests others
	yield     time.Duration             // default yield_ms of agents; zero means the agents' default
	workspace string                    // host directory to copy, as in the file
	asRoot    bool                      // the file requests sandboxes with user root
	sandboxAt map[string]*yamlnode.Node // nodes of the sandbox settings, by path
	outputs   rules.Globs               // files to collect
	outputsAt []*yamlnode.Node          // position of each output in the file
	input     *schema
	// readsInput reports whether an expression reads the input.
	readsInput bool
	vars       []assignment
	agent      *frontmatter.Document // set by ForAgent; nil for a workflow file
	steps      *sequence
	all        []*step // in file order, nested steps after their enclosing step
}

// sequence is a list of steps in sequential order.
type sequence struct {
	steps []*step
	index map[string]int
	start int
	scope string    // name of the enclosing part for messages, for example "the workflow" or "branch lint of checks"
	outer *sequence // enclosing sequence; nil for the top level
}

// visible returns the readable steps for expressions of the sequence: its own steps and the enclosing ones.
func (q *sequence) visible() map[string]*step {
	out := map[string]*step{}
	for ; q != nil; q = q.outer {
		for _, s := range q.steps {
			if out[s.id] == nil {
				out[s.id] = s
			}
		}
	}
	return out
}

// step is one step of a sequence.
type step struct {
	id        string
	typ       Type
	node      *yamlnode.Node
	seq       *sequence
	index     int           // index in seq
	cond      *expr.Program // nil without a condition
	timeout   time.Duration
	retry     retry
	onError   target
	next      target
	sandbox   sandboxRef
	location  location // of the sandbox
	maxVisits int      // 0 means only max_steps applies
	body      body
}

// branches returns the branches of a parallel step or the single branch of a for_each. For other types it returns nil.
func (s *step) branches() []branch {
	if b, ok := s.body.(*fanBody); ok {
		return b.branches
	}
	return nil
}

// targets returns the targets the step specifies.
func (s *step) targets() []target {
	var to []target
	if b, ok := s.body.(*switchBody); ok {
		for _, c := range b.cases {
			to = append(to, c.to)
		}
		to = append(to, b.fallback)
	}
	to = append(to, s.next)
	if s.onError.id != onErrorContinue {
		to = append(to, s.onError)
	}
	return slices.DeleteFunc(to, func(t target) bool { return t.id == "" })
}

// sandboxRef is the value of `sandbox` in a step or branch: empty, a name, or isolated.
type sandboxRef struct {
	name     string
	isolated bool
	fork     bool // a copy of the enclosing sandbox for each item
}

// target is the step with which a run continues.
type target struct {
	id string // empty if not specified
	at *yamlnode.Node
}

// onErrorContinue is the value of on_error to continue as after a success. No step has this id.
const onErrorContinue = "continue"

// retry contains the number of attempts of a step and the wait between them. The wait doubles after each attempt, up to
// maxBackoff.
type retry struct {
	attempts int // at least 1
	backoff  time.Duration
}

// wait returns how long to wait after a failed attempt. The first attempt is 1.
func (r retry) wait(attempt int) time.Duration {
	return min(r.backoff<<(attempt-1), maxBackoff) // both are bounded, so it cannot overflow
}

// body is the type-specific part of a step. run makes one attempt.
type body interface {
	run(ctx context.Context, ex *execution) (result, error)
}

type (
	agentBody struct {
		agent string
		file  *frontmatter.Document // nil if unknown
		input *expr.Value           // if nil, the run's input
	}
	execBody struct {
		argv         []*expr.Value
		command      string // a line for /bin/sh reading vars; set either argv or command
		vars         []assignment
		cwd          *expr.Value
		env          []assignment
		stdin        *expr.Value
		okCodes      []int
		allowFailure bool
		wantJSON     bool
	}
	switchBody struct {
		expression *expr.Program // for transitions
		cases      []switchCase
		fallback   target
	}
	switchCase struct {
		text string        // value of the expression; set either text or when
		when *expr.Program // condition
		to   target
	}
	// fanBody is the body of parallel, whose branches run concurrently, and of for_each, whose single branch runs for
	// each item.
	fanBody struct {
		items          *expr.Value // nil for parallel
		as, indexAs    string
		branches       []branch
		maxConcurrency int
		wait           bool // wait for the other branches if one fails
		fork           bool // each item starts with a copy of the sandbox's files in a separate sandbox
	}
	branch struct {
		id      string
		steps   *sequence
		output  *expr.Value   // if nil, the last output
		keep    *expr.Program // with fork: whether to keep this item's files; nil keeps none
		sandbox sandboxRef
	}
	setBody struct {
		vars []assignment
	}
	failBody struct {
		message *expr.Value
	}
	endBody struct {
		output *expr.Value // if nil, the last output
	}
)

// assignment is a name with a value.
type assignment struct {
	name  string
	value *expr.Value
}
