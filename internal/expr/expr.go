// Package expr evaluates the expressions in workflow and script files.
//
// The language is CEL (https://cel.dev). An [Env] declares the variables. [Env.Compile] parses and type-checks one
// expression, and [Env.Tree] a tree of values whose strings may contain "${ expression }". The results are immutable
// and may be evaluated concurrently. Data is only substituted and never parsed again: a value with "${ … }" stays
// unchanged.
//
// Every evaluation has limits for work, time, and the size of its result. If an expression exceeds a limit, the error
// wraps [ErrLimit].
//
// The CEL standard library and optional syntax (steps.?a.orValue("")) are available. The following string functions are
// also available: lowerAscii, upperAscii, trim, split, replace, substring, indexOf, lastIndexOf, lines, and join for
// lists.
package expr

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"cel.dev/cel-go/cel"

	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Limits of one expression and one evaluation.
const (
	maxSource = 16 << 10        // size of one expression in bytes
	costLimit = 1_000_000       // CEL cost units per evaluation, about one per elementary operation
	timeLimit = 2 * time.Second // time per evaluation
	maxNodes  = 100_000         // values in a result, including nested ones
	MaxBytes  = 4 << 20         // bytes of text in a result
	maxDepth  = 64              // nesting depth of a result
)

// Limits of the parser. They are lower than CEL's defaults, because users write these expressions by hand.
const (
	maxRecursion   = 64
	maxSyntaxNodes = 5_000
	maxRegexp      = 2_000
)

// ErrLimit means an expression or its result exceeded a limit of this package.
var ErrLimit = errors.New("expression limit exceeded")

// Place is the position of text in a YAML file.
type Place struct {
	Node   *yamlnode.Node // the scalar; nil if the text does not come from a file
	Offset int            // offset in the scalar's value in bytes
}

// after returns the place the specified number of bytes later.
func (p Place) after(bytes int) Place { return Place{p.Node, p.Offset + bytes} }

// Error is a problem with an expression and its position.
type Error struct {
	Place
	Msg string // one-line message for users
	Err error  // error for errors.Is: ErrLimit, a context error, or nil
}

func (e *Error) Error() string { return e.Msg }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Var declares a variable of an environment.
type Var struct {
	Name string
	// Map declares the variable as a map with string keys, to allow more checks at compile time. Otherwise the variable
	// may have any type.
	Map bool
}

// Env is a set of variables. It is immutable and safe for concurrent use.
type Env struct {
	vars []Var
	cel  *cel.Env
	at   Place
	most bounds
}

// bounds are the limits of one evaluation.
type bounds struct {
	steps uint64
	time  time.Duration
}

// At returns an environment with the same variables for text at a position.
func (e *Env) At(n *yamlnode.Node, offset int) *Env {
	return &Env{e.vars, e.cel, Place{n, offset}, e.most}
}

// Within returns an environment whose evaluations have lower limits for steps and time. With resets them to the
// defaults.
func (e *Env) Within(steps uint64, most time.Duration) *Env {
	return &Env{e.vars, e.cel, e.at, bounds{min(steps, costLimit), min(most, timeLimit)}}
}

// New returns an environment. The names must be different and valid (IsIdent).
func New(vars ...Var) (*Env, error) {
	opts := []cel.EnvOption{
		cel.OptionalTypes(),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserExpressionSizeLimit(maxSource),
		cel.ParserRecursionLimit(maxRecursion),
		cel.ExpressionNodeLimit(maxSyntaxNodes),
		cel.RegexProgramSizeLimit(maxRegexp),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	}
	opts = append(opts, stringFunctions()...)
	for _, v := range vars {
		t := cel.DynType
		if v.Map {
			t = cel.MapType(cel.StringType, cel.DynType)
		}
		opts = append(opts, cel.Variable(v.Name, t))
	}
	env, err := cel.NewEnv(opts...)
	if err != nil {
		return nil, fmt.Errorf("expression environment: %v", err)
	}
	return &Env{vars: slices.Clone(vars), cel: env, most: bounds{costLimit, timeLimit}}, nil
}

// With returns an environment with more variables. An existing name keeps its declaration.
func (e *Env) With(vars ...Var) (*Env, error) {
	all := slices.Clone(e.vars)
	for _, v := range vars {
		if !e.Has(v.Name) {
			all = append(all, v)
		}
	}
	return New(all...)
}

// Has reports whether the environment declares name.
func (e *Env) Has(name string) bool {
	return slices.ContainsFunc(e.vars, func(v Var) bool { return v.Name == name })
}

// Names returns the declared variables in order of declaration.
func (e *Env) Names() []string {
	names := make([]string, len(e.vars))
	for i, v := range e.vars {
		names[i] = v.Name
	}
	return names
}

// IsIdent reports whether s is a valid variable name: a letter or underscore, followed by letters, digits, and
// underscores, and not a reserved word of CEL.
func IsIdent(s string) bool { return ident.MatchString(s) && !slices.Contains(reserved, s) }

var ident = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

var reserved = []string{
	"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
	"namespace", "null", "package", "return", "true", "var", "void", "while",
}
