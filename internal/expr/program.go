package expr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

// Kind is what a type check knows about the result of an expression.
type Kind string

// Kinds of results. KindAny means that only the evaluation shows it.
const (
	KindAny    Kind = "any"
	KindBool   Kind = "bool"
	KindInt    Kind = "int"
	KindFloat  Kind = "double"
	KindString Kind = "string"
	KindList   Kind = "list"
	KindMap    Kind = "map"
	KindNull   Kind = "null"
	KindOther  Kind = "other" // timestamps, durations, bytes, types
)

// Program is a compiled expression, safe for concurrent use.
type Program struct {
	src  string
	ast  *cel.Ast
	prog cel.Program
}

// interruptEvery is after how many iterations a running evaluation looks at its context.
const interruptEvery = 16

// Compile parses and type-checks one expression. The error is an [*Error].
func (e *Env) Compile(src string) (*Program, error) {
	if strings.TrimSpace(src) == "" {
		return nil, &Error{Msg: "the expression is empty"}
	}
	if len(src) > MaxSource {
		return nil, &Error{Msg: fmt.Sprintf("the expression has %d bytes, at most %d are allowed", len(src), MaxSource), Err: ErrLimit}
	}
	if !utf8.ValidString(src) || strings.ContainsRune(src, 0) {
		return nil, &Error{Msg: "the expression is not valid text"}
	}
	ast, issues := e.cel.Compile(src)
	if err := e.issue(src, issues); err != nil {
		return nil, err
	}
	prog, err := e.cel.Program(ast,
		cel.CostTracking(stringCosts{}),
		cel.CostLimit(CostLimit),
		cel.InterruptCheckFrequency(interruptEvery),
	)
	if err != nil {
		return nil, &Error{Msg: err.Error()}
	}
	return &Program{src: src, ast: ast, prog: prog}, nil
}

// Condition compiles an expression whose result must be a boolean.
func (e *Env) Condition(src string) (*Program, error) {
	p, err := e.Compile(src)
	if err != nil {
		return nil, err
	}
	if k := p.Kind(); k != KindAny && k != KindBool {
		return nil, &Error{Msg: fmt.Sprintf("the condition must be true or false, this is %s", k)}
	}
	return p, nil
}

// issue turns the first thing CEL complains about into an Error; the rest mostly follows from the first.
func (e *Env) issue(src string, issues *cel.Issues) error {
	if issues.Err() == nil {
		return nil
	}
	list := issues.Errors()
	if len(list) == 0 {
		return &Error{Msg: issues.Err().Error()}
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
		if suggestion == "" {
			suggestion = "; there is " + strings.Join(e.Names(), ", ")
		}
		msg = fmt.Sprintf("unknown name %q%s", name, strings.ReplaceAll(suggestion, "'", `"`))
	}
	return &Error{Offset: byteOffset(src, first.Location), Msg: oneLine(msg)}
}

// Source returns the text of the expression.
func (p *Program) Source() string { return p.src }

// Kind returns what the type check found out about the result.
func (p *Program) Kind() Kind {
	switch t := p.ast.OutputType(); t.Kind() {
	case types.BoolKind:
		return KindBool
	case types.IntKind, types.UintKind:
		return KindInt
	case types.DoubleKind:
		return KindFloat
	case types.StringKind:
		return KindString
	case types.ListKind:
		return KindList
	case types.MapKind:
		return KindMap
	case types.NullTypeKind:
		return KindNull
	case types.DynKind, types.AnyKind, types.TypeParamKind, types.OpaqueKind:
		return KindAny
	default:
		return KindOther
	}
}

// Eval evaluates the expression. vars must hold plain data as [Normalize] makes it, and nobody may change it meanwhile.
// The result is plain data that shares nothing with vars. The error is an [*Error].
func (p *Program) Eval(ctx context.Context, vars map[string]any) (any, error) {
	b := newBudget()
	return p.eval(ctx, vars, b)
}

// EvalBool evaluates a condition.
func (p *Program) EvalBool(ctx context.Context, vars map[string]any) (bool, error) {
	v, err := p.Eval(ctx, vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, &Error{Msg: fmt.Sprintf("the condition must be true or false, it was %s", describe(v))}
	}
	return b, nil
}

func (p *Program) eval(ctx context.Context, vars map[string]any, b *budget) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, TimeLimit)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, &Error{Msg: err.Error(), Err: err}
	}
	out, _, err := p.prog.ContextEval(ctx, vars)
	if err != nil {
		return nil, p.runtimeError(ctx, err)
	}
	v, err := b.native(out, 0)
	if err != nil {
		return nil, &Error{Msg: err.Error(), Err: limitOf(err)}
	}
	return v, nil
}

// runtimeError turns CEL's error of a failed evaluation into an Error.
func (p *Program) runtimeError(ctx context.Context, err error) *Error {
	e := &Error{Msg: oneLine(err.Error())}
	var cancelled interpreter.EvalCancelledError
	var value *types.Err
	switch {
	case errors.As(err, &cancelled) && cancelled.Cause != interpreter.ContextCancelled:
		e.Msg, e.Err = fmt.Sprintf("the expression takes more than %d steps", CostLimit), ErrLimit
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		e.Msg, e.Err = fmt.Sprintf("the expression takes longer than %s", TimeLimit), ErrLimit
		if errors.Is(ctx.Err(), context.Canceled) {
			e.Msg, e.Err = "cancelled", context.Canceled
		}
	case errors.As(err, &value):
		e.Offset = p.nodeOffset(value.NodeID())
		p.explain(e, value)
	}
	return e
}

func (p *Program) explain(e *Error, value *types.Err) {
	cause := value.Unwrap()
	switch msg := value.String(); {
	case errors.Is(cause, ErrLimit):
		e.Err = ErrLimit
	case strings.HasPrefix(msg, "no such key"), strings.HasPrefix(msg, "index out of bounds"):
		e.Err = ErrMissing
	case msg == "no such overload":
		e.Msg = "these types do not go together here; convert with int(), double() or string()"
	}
}

// nodeOffset finds the place of a syntax node in the source, 0 when it is not known.
func (p *Program) nodeOffset(id int64) int {
	if id == 0 {
		return 0
	}
	return byteOffset(p.src, p.ast.NativeRep().SourceInfo().GetStartLocation(id))
}

// byteOffset converts a CEL location (line from 1, column in code points from 0) into bytes from the start of src.
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

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const most = 300
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// String names the kind for messages: "an int", "a list", "null".
func (k Kind) String() string {
	switch k {
	case KindInt:
		return "an int"
	case KindNull:
		return "null"
	case KindOther:
		return "something else"
	}
	return "a " + string(k)
}
