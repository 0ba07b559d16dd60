// Package expr evaluates the expressions that users write in workflow and script files.
//
// The language is CEL (https://cel.dev). An [Env] names the variables; [Env.Compile] parses and type-checks one
// expression and [Env.Tree] a whole tree of values whose strings may hold "${ expression }". What is compiled is
// immutable and may be evaluated concurrently. Data is only ever substituted, never parsed again: a value that itself
// contains "${ … }" stays as it is.
//
// Every evaluation is bounded in work, time and the size of its result. An expression that passes a bound ends with an
// error that wraps [ErrLimit].
//
// Besides the CEL standard library, optional syntax (steps.?a.orValue("")) and these functions on strings are known:
// lowerAscii, upperAscii, trim, split, replace, substring, indexOf, lastIndexOf, lines, and join on lists.
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

// Bounds of one expression and one evaluation.
const (
	maxSource = 16 << 10        // bytes of one expression's text
	costLimit = 1_000_000       // CEL cost units of one evaluation, roughly one per elementary operation
	timeLimit = 2 * time.Second // time of one evaluation
	maxNodes  = 100_000         // values in a result, nested ones included
	MaxBytes  = 4 << 20         // bytes of text in a result
	maxDepth  = 64              // nesting of a result
)

// parser bounds, tighter than those of CEL because a person writes these expressions
const (
	maxRecursion   = 64
	maxSyntaxNodes = 5_000
	maxRegexp      = 2_000
)

// ErrLimit: an expression or its result passed one of the bounds of this package.
var ErrLimit = errors.New("expression limit exceeded")

// Place is where text stands in a YAML file.
type Place struct {
	Node   *yamlnode.Node // the scalar; nil when the text is of no file
	Offset int            // in the scalar's value, in bytes
}

// after returns the place that many bytes further.
func (p Place) after(bytes int) Place { return Place{p.Node, p.Offset + bytes} }

// Error is what is wrong with an expression, and where.
type Error struct {
	Place
	Msg string // one line for people
	Err error  // what callers may test for: ErrLimit, a context error, or nil
}

func (e *Error) Error() string { return e.Msg }

// Unwrap returns the error that callers may test for.
func (e *Error) Unwrap() error { return e.Err }

// Var declares a variable of an environment.
type Var struct {
	Name string
	// Map: the variable always is a map with string keys, which lets more mistakes be found when an expression
	// is compiled. Otherwise it can hold anything.
	Map bool
}

// Env is a set of variables. It is immutable and safe for concurrent use.
type Env struct {
	vars []Var
	cel  *cel.Env
	at   Place
	most bounds
}

// bounds are those of one evaluation.
type bounds struct {
	steps uint64
	time  time.Duration
}

// At returns an environment with the same variables for text that stands at a place.
func (e *Env) At(n *yamlnode.Node, offset int) *Env {
	return &Env{e.vars, e.cel, Place{n, offset}, e.most}
}

// Within returns an environment whose evaluations have tighter bounds, in steps and time. An environment that With
// makes of it has the usual ones.
func (e *Env) Within(steps uint64, most time.Duration) *Env {
	return &Env{e.vars, e.cel, e.at, bounds{min(steps, costLimit), min(most, timeLimit)}}
}

// New makes an environment. It fails when a name is used twice or is no identifier.
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
	seen := map[string]bool{}
	for _, v := range vars {
		if seen[v.Name] || !IsIdent(v.Name) {
			return nil, fmt.Errorf("variable %q: not an identifier, reserved, or declared twice", v.Name)
		}
		seen[v.Name] = true
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

// With makes an environment that has more variables. A name that is there already keeps its declaration.
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

// Names lists the declared variables in order of declaration.
func (e *Env) Names() []string {
	names := make([]string, len(e.vars))
	for i, v := range e.vars {
		names[i] = v.Name
	}
	return names
}

// IsIdent reports whether s can name a variable: a letter or underscore, then letters, digits and underscores, and not
// a word that CEL reserves.
func IsIdent(s string) bool { return ident.MatchString(s) && !reserved(s) }

var ident = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

func reserved(s string) bool {
	switch s {
	case "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
		"namespace", "null", "package", "return", "true", "var", "void", "while":
		return true
	}
	return false
}
