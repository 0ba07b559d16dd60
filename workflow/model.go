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

// Bounds of a workflow. What passes one that the file can show is refused when it is loaded; the others end the run
// with a typed error.
const (
	defaultMaxSteps = 50        // step executions of a run whose file has none
	maxMaxSteps     = 1_000_000 // largest max_steps
	defaultTimeout  = time.Hour // of a run whose file has none
	maxTimeout      = 7 * 24 * time.Hour
	maxSteps        = 500    // steps in a file, nested ones included
	maxNesting      = 5      // of parallel and for_each
	maxBranches     = 64     // of one parallel, and of max_concurrency
	maxItems        = 10_000 // of one for_each
	maxAttempts     = 20     // of retry
	maxBackoff      = 5 * time.Minute
	maxOutputBytes  = 4 << 20  // of one step's output
	maxStateBytes   = 64 << 20 // of everything a run remembers at once
	maxInputBytes   = 4 << 20  // of a run's input
	maxRunDepth     = 8        // of runs inside runs
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

// Workflow is a loaded and checked workflow file. It is immutable and safe for concurrent use.
type Workflow struct {
	ID          string
	Name        string // empty when the file has none
	Description string
	Path        string // the file, as given to Load
	Hash        string // SHA-256 of the file's bytes, in hex: a run can only be resumed with the same file
	MaxSteps    int    // cap on step executions in a run
	Checkpoints bool   // the sandboxes are kept as they are at the end of each step, for ResumeFrom
	Timeout     time.Duration

	src       *yamlnode.Source
	base      session.Request           // sandboxes of the run, unless an agent requests others
	yield     time.Duration             // yield_ms of agents that set none; zero is theirs
	workspace string                    // directory of the host to begin with, as the file has it
	asRoot    bool                      // the file asks for sandboxes that run as root
	sandboxAt map[string]*yamlnode.Node // their nodes, by path
	outputs   rules.Globs               // files to collect
	outputsAt []*yamlnode.Node          // each where the file has it
	input     *schema
	// readsInput: an expression reads the input.
	readsInput bool
	vars       []assignment
	agent      *frontmatter.Document // of ForAgent; nil for a file of steps
	steps      *sequence
	all        []*step // in order of the file, nested ones after the step they are part of
}

// sequence is a list of steps that run one after the other.
type sequence struct {
	steps []*step
	index map[string]int
	start int
	scope string    // what it is part of, for messages: "the workflow", "branch lint of checks"
	outer *sequence // the one around it; nil for the workflow's own
}

// visible returns the steps that expressions of the sequence can read: its own and those around it.
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
	index     int           // in seq
	cond      *expr.Program // nil when there is none
	timeout   time.Duration
	retry     retry
	onError   target
	next      target
	sandbox   sandboxRef
	maxVisits int // 0 is no bound of its own
	body      body
}

// branches returns the branches of a parallel step and the only one of a for_each; nil for other types.
func (s *step) branches() []branch {
	if b, ok := s.body.(*fanBody); ok {
		return b.branches
	}
	return nil
}

// targets returns the steps that the step names, as far as they are given.
func (s *step) targets() []target {
	var to []target
	if b, ok := s.body.(*switchBody); ok {
		for _, c := range b.cases {
			to = append(to, c.to)
		}
		to = append(to, b.fallback)
	}
	to = append(to, s.next)
	if s.onError.id != goOn {
		to = append(to, s.onError)
	}
	return slices.DeleteFunc(to, func(t target) bool { return t.id == "" })
}

// sandboxRef is what `sandbox` of a step or a branch says: nothing, a name, or isolated.
type sandboxRef struct {
	name     string
	isolated bool
}

// target is where a run continues.
type target struct {
	id string // empty: not given
	at *yamlnode.Node
}

// goOn as on_error continues as if the step had succeeded. No step has this id.
const goOn = "continue"

// retry is how often a failed step is tried and how long the run waits in between. The wait doubles each time, up to
// maxBackoff.
type retry struct {
	attempts int // at least 1
	backoff  time.Duration
}

// wait returns how long to wait after the given failed attempt, counted from 1.
func (r retry) wait(attempt int) time.Duration {
	d := r.backoff
	for range attempt - 1 {
		if d *= 2; d >= maxBackoff {
			return maxBackoff
		}
	}
	return min(d, maxBackoff)
}

// body is what is particular to a step's type: run makes one attempt.
type body interface {
	run(ctx context.Context, ex *execution) (result, error)
}

type (
	agentBody struct {
		agent string
		file  *frontmatter.Document // nil when it is not known
		input *expr.Value           // nil is the run's input
	}
	execBody struct {
		argv         []*expr.Value
		command      string // a line for /bin/sh that reads vars; or argv
		vars         []assignment
		cwd          *expr.Value
		env          []assignment
		stdin        *expr.Value
		okCodes      []int
		allowFailure bool
		wantJSON     bool
	}
	switchBody struct {
		expression *expr.Program // with transitions
		cases      []switchCase
		fallback   target
	}
	switchCase struct {
		text string        // the expression's value, or
		when *expr.Program // a condition
		to   target
	}
	// fanBody is that of parallel, whose branches run side by side, and of for_each, whose only branch runs for each item.
	fanBody struct {
		items          *expr.Value // nil for parallel
		as, indexAs    string
		branches       []branch
		maxConcurrency int
		wait           bool // let the others finish when one fails
		fork           bool // each item begins with the files of the sandbox, in one of its own
	}
	branch struct {
		id      string
		steps   *sequence
		output  *expr.Value   // nil is the last output
		keep    *expr.Program // whether the files of this item go on, with fork; nil: nobody's do
		sandbox sandboxRef
	}
	setBody struct {
		vars []assignment
	}
	failBody struct {
		message *expr.Value
	}
	endBody struct {
		output *expr.Value // nil is the last output
	}
)

// assignment is a name with its value.
type assignment struct {
	name  string
	value *expr.Value
}
