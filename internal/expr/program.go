package expr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Kind is the type of an expression's result according to the type check, for example "an int" or "a map".
type Kind string

// Kinds for callers. KindAny means the type is only known after evaluation.
const (
	KindAny  Kind = "any"
	KindBool Kind = "a bool"
	KindList Kind = "a list"
)

// Program is a compiled expression. It is safe for concurrent use.
type Program struct {
	Place // position of its text
	src   string
	ast   *cel.Ast
	prog  cel.Program
	most  bounds
}

// interruptEvery is the number of iterations after which a running evaluation checks the context.
const interruptEvery = 16

// Compile parses and type-checks one expression. The error is an [*Error].
func (e *Env) Compile(src string) (*Program, error) {
	fail := func(err error, format string, args ...any) (*Program, error) {
		return nil, &Error{Place: e.at, Msg: fmt.Sprintf(format, args...), Err: err}
	}
	switch {
	case strings.TrimSpace(src) == "":
		return fail(nil, "the expression is empty")
	case len(src) > maxSource:
		return fail(ErrLimit, "the expression has %d bytes, at most %d are allowed", len(src), maxSource)
	case !utf8.ValidString(src) || strings.ContainsRune(src, 0):
		return fail(nil, "the expression is not valid text")
	}
	ast, issues := e.cel.Compile(src)
	if err := e.issue(src, issues); err != nil {
		return nil, err
	}
	prog, err := e.cel.Program(ast,
		cel.CostTracking(stringCosts{}),
		cel.CostLimit(e.most.steps),
		cel.InterruptCheckFrequency(interruptEvery),
	)
	if err != nil {
		return fail(nil, "%v", err)
	}
	return &Program{Place: e.at, src: src, ast: ast, prog: prog, most: e.most}, nil
}

// Condition compiles an expression whose result must be a boolean.
func (e *Env) Condition(src string) (*Program, error) {
	p, err := e.Compile(src)
	if err != nil {
		return nil, err
	}
	if k := p.Kind(); k != KindAny && k != KindBool {
		return nil, &Error{Place: e.at, Msg: fmt.Sprintf("the condition must be true or false, not %s", k)}
	}
	return p, nil
}

// issue converts CEL's first problem to an Error. Further problems are usually consequences of the first.
func (e *Env) issue(src string, issues *cel.Issues) error {
	if issues.Err() == nil {
		return nil
	}
	list := issues.Errors()
	if len(list) == 0 {
		return &Error{Place: e.at, Msg: issues.Err().Error()}
	}
	first := list[0]
	msg := strings.TrimSpace(first.Message)
	msg = strings.TrimPrefix(msg, "Syntax error: ")
	msg, _, _ = strings.Cut(msg, " (in container")
	if head, _, cut := strings.Cut(msg, " expecting {"); cut {
		msg = head
	}
	msg = strings.NewReplacer("'<EOF>'", "end of expression", "mismatched input", "unexpected").Replace(msg)
	if _, rest, ok := strings.Cut(msg, "undeclared reference to '"); ok && len(e.vars) > 0 {
		name, suggestion, _ := strings.Cut(rest, "'")
		suggestion = cmp.Or(suggestion, "; available: "+strings.Join(e.Names(), ", "))
		msg = fmt.Sprintf("unknown name %q%s", name, strings.ReplaceAll(suggestion, "'", `"`))
	}
	return &Error{Place: e.at.after(byteOffset(src, first.Location)), Msg: oneLine(msg)}
}

// Kind returns the type of the result according to the type check.
func (p *Program) Kind() Kind { return kindOf(p.ast.OutputType()) }

// kinds contains the types with a name in messages. The other types are timestamps, durations, bytes, and types.
var kinds = map[types.Kind]Kind{
	types.BoolKind: KindBool, types.IntKind: "an int", types.UintKind: "an int", types.DoubleKind: "a double",
	types.StringKind: "a string", types.ListKind: KindList, types.MapKind: "a map", types.NullTypeKind: "null",
	types.DynKind: KindAny, types.AnyKind: KindAny, types.TypeParamKind: KindAny, types.OpaqueKind: KindAny,
}

func kindOf(t *types.Type) Kind { return cmp.Or(kinds[t.Kind()], "something else") }

// Eval evaluates the expression. vars must contain plain data from [Normalize] and must not change during the
// evaluation. The result is plain data and shares no memory with vars. The error is an [*Error].
func (p *Program) Eval(ctx context.Context, vars map[string]any) (any, error) {
	return p.eval(ctx, vars, newBudget())
}

// EvalBool evaluates a condition.
func (p *Program) EvalBool(ctx context.Context, vars map[string]any) (bool, error) {
	v, err := p.Eval(ctx, vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, &Error{Place: p.Place, Msg: fmt.Sprintf("the condition must be true or false, it was %s", Describe(v))}
	}
	return b, nil
}

func (p *Program) eval(ctx context.Context, vars map[string]any, b *budget) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, p.most.time)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, &Error{Place: p.Place, Msg: err.Error(), Err: err}
	}
	out, _, err := p.prog.ContextEval(ctx, vars)
	if err != nil {
		return nil, p.runtimeError(ctx, err)
	}
	v, err := b.native(out, 0)
	if err != nil {
		return nil, &Error{Place: p.Place, Msg: err.Error(), Err: limitOf(err)}
	}
	return v, nil
}

// runtimeError converts the error of a failed evaluation to an Error.
func (p *Program) runtimeError(ctx context.Context, err error) *Error {
	e := &Error{Place: p.Place, Msg: oneLine(err.Error())}
	var cancelled interpreter.EvalCancelledError
	var value *types.Err
	switch {
	case errors.As(err, &cancelled) && cancelled.Cause != interpreter.ContextCancelled:
		e.Msg, e.Err = fmt.Sprintf("the expression takes more than %d steps", p.most.steps), ErrLimit
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		e.Msg, e.Err = fmt.Sprintf("the expression takes longer than %s", p.most.time), ErrLimit
		if errors.Is(ctx.Err(), context.Canceled) {
			e.Msg, e.Err = "canceled", context.Canceled
		}
	case errors.As(err, &value):
		e.Place, e.Err = p.after(p.nodeOffset(value.NodeID())), limitOf(value.Unwrap())
		if value.String() == "no such overload" {
			e.Msg = "the types do not match; convert with int(), double() or string()"
		}
	}
	return e
}

// nodeOffset returns the offset of a syntax node in the source, or 0 if unknown.
func (p *Program) nodeOffset(id int64) int {
	if id == 0 {
		return 0
	}
	return byteOffset(p.src, p.ast.NativeRep().SourceInfo().GetStartLocation(id))
}

// byteOffset converts a CEL location to a byte offset in src. Lines start at 1, and columns count code points from 0.
func byteOffset(src string, loc common.Location) int {
	if loc == nil || loc.Line() < 1 || loc.Column() < 0 {
		return 0
	}
	offset := 0
	for line := 1; line < loc.Line(); line++ {
		i := strings.IndexByte(src[offset:], '\n')
		if i < 0 {
			return offset
		}
		offset += i + 1
	}
	for range loc.Column() {
		_, size := utf8.DecodeRuneInString(src[offset:])
		if size == 0 {
			break
		}
		offset += size
	}
	return offset
}

func oneLine(s string) string { return sanitize.OneLine(s, 300) }
