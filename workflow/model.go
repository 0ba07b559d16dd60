package workflow

import (
	"context"
	"fmt"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
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
	Timeout     time.Duration

	base      session.Request       // what the run's sandboxes are like where nothing else is asked for
	yield     time.Duration         // yield_ms of agents that set none; zero is theirs
	hasImage  bool                  // the file names an image or runtime
	workspace string                // directory of the host to begin with, as the file has it
	asRoot    bool                  // the file asks for sandboxes that run as root
	sandboxAt map[string]*yaml.Node // where the file has them
	input     *schema
	vars      []assignment
	steps     *sequence
	all       []*step
}

// sequence is a list of steps that run one after the other.
type sequence struct {
	steps []*step
	index map[string]int
	start int
	scope string // what it is part of, for messages: "the workflow", "branch lint of checks"
}

// step is one step of a sequence.
type step struct {
	id        string
	typ       Type
	node      *yaml.Node
	seq       *sequence
	index     int // in seq
	cond      *condition
	timeout   time.Duration
	retry     retry
	onError   target
	next      target
	sandbox   string // session name; empty inherits
	isolated  bool
	maxVisits int // 0 is no bound of its own
	body      body
}

// target is where a run continues.
type target struct {
	kind targetKind
	id   string
	at   *yaml.Node
}

type targetKind int

const (
	targetNone     targetKind = iota // not given
	targetStep                       // the step id
	targetContinue                   // as if the step had succeeded; on_error only
)

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

// body is what is particular to a step's type.
type body interface {
	// targets lists the steps the body itself can go to, in addition to the one in order when inOrder is true.
	targets() (to []target, inOrder bool)
	// expressions lists everything that is evaluated.
	expressions() []compiled
	// run makes one attempt.
	run(ctx context.Context, ex *execution) (result, error)
}

type (
	agentBody struct {
		agent string
		file  *frontmatter.Document // nil when it is not known
		input *value                // nil is the run's input
	}
	execBody struct {
		argv         []*value
		command      *command // or argv
		cwd          *value
		env          []assignment
		stdin        *value
		okCodes      []int
		allowFailure bool
		wantJSON     bool
	}
	switchBody struct {
		expression *condition // with transitions
		cases      []switchCase
		fallback   target
	}
	switchCase struct {
		text string     // the expression's value, or
		when *condition // a condition
		to   target
	}
	parallelBody struct {
		branches       []branch
		maxConcurrency int
		wait           bool // let the others finish when one fails
	}
	branch struct {
		id       string
		steps    *sequence
		output   *value
		sandbox  string
		isolated bool
	}
	forEachBody struct {
		items          *value
		as, indexAs    string
		steps          *sequence
		output         *value
		maxConcurrency int
		wait           bool
	}
	setBody struct {
		vars []assignment
	}
	failBody struct {
		message *value
	}
	endBody struct {
		output *value // nil is the last output
	}
)

// assignment is a name with its value.
type assignment struct {
	name  string
	value *value
}

// compiled is an expression and where it stands in the file.
type compiled struct {
	*expr.Program
	offset int // of the expression inside the scalar
	node   *yaml.Node
	src    *source
}

// where returns "file:line:column" of a byte offset in the expression.
func (c compiled) where(offset int) string {
	line, column := c.src.place(c.node, c.offset+offset)
	return fmt.Sprintf("%s:%d:%d", c.src.file, line, column)
}

// condition is an expression that stands alone.
type condition struct{ compiled }

func (c *condition) where(_ string, offset int) string { return c.compiled.where(offset) }

// value is a tree of data with expressions in its strings. nodes holds the scalar that each path of the tree came from.
type value struct {
	*expr.Value
	src   *source
	root  *yaml.Node
	nodes map[string]*yaml.Node
	shift int // added to offsets, where the scalar is not the text that was compiled
	progs []compiled
}

// where returns "file:line:column" of a place in the value.
func (v *value) where(path string, offset int) string {
	n := v.nodes[path]
	if n == nil {
		n = v.root
	}
	line, column := v.src.place(n, max(offset+v.shift, 0))
	return fmt.Sprintf("%s:%d:%d", v.src.file, line, column)
}

// command is a line for /bin/sh in which each "${ expression }" became a reference to an environment variable, so that
// the shell never reads data as code.
type command struct {
	text string
	vars []assignment
}
