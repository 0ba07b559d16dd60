package expr

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// CEL's own string extensions are not used, because replace, join, and format build their result before the cost is
// checked. For example, "s.replace('', s)" with 200 kB of data makes the process run out of memory. The functions here
// compute the size of their result first.

func stringFunctions() []cel.EnvOption {
	str, num, list := cel.StringType, cel.IntType, cel.ListType(cel.StringType)
	return []cel.EnvOption{
		method("lowerAscii", str, ascii('A', 'a'), str),
		method("upperAscii", str, ascii('a', 'A'), str),
		method("trim", str, func(v ...ref.Val) ref.Val { return types.String(strings.TrimSpace(text(v[0]))) }, str),
		method("lines", list, lines, str),
		method("split", list, split, str, str),
		method("join", str, join, list),
		method("join", str, join, list, str),
		method("replace", str, replace, str, str, str),
		method("substring", str, substring, str, num),
		method("substring", str, substring, str, num, num),
		method("indexOf", num, index(strings.Index), str, str),
		method("lastIndexOf", num, index(strings.LastIndex), str, str),
	}
}

// method declares a method of its first parameter. CEL checks the types of the arguments before it calls f, but not the
// types of list elements.
func method(name string, result *cel.Type, f func(...ref.Val) ref.Val, params ...*cel.Type) cel.EnvOption {
	bind := cel.FunctionBinding(f)
	switch len(params) {
	case 1:
		bind = cel.UnaryBinding(func(v ref.Val) ref.Val { return f(v) })
	case 2:
		bind = cel.BinaryBinding(func(v, w ref.Val) ref.Val { return f(v, w) })
	}
	return cel.Function(name, cel.MemberOverload(fmt.Sprintf("wc_%s_%d", name, len(params)), params, result, bind))
}

// text returns the text of a string argument.
func text(v ref.Val) string {
	s, _ := v.(types.String)
	return string(s)
}

func limit(format string, args ...any) ref.Val {
	return types.WrapErr(fmt.Errorf(format+": %w", append(args, ErrLimit)...))
}

func tooLong() ref.Val { return limit("the text has more than %d bytes", MaxBytes) }

// ascii maps the 26 letters starting at from to the 26 letters starting at to.
func ascii(from, to rune) func(...ref.Val) ref.Val {
	return func(v ...ref.Val) ref.Val {
		return types.String(strings.Map(func(r rune) rune {
			if from <= r && r < from+26 {
				return r + to - from
			}
			return r
		}, text(v[0])))
	}
}

func lines(args ...ref.Val) ref.Val {
	s := strings.TrimSuffix(strings.ReplaceAll(text(args[0]), "\r\n", "\n"), "\n")
	if s == "" {
		return stringList(nil)
	}
	if strings.Count(s, "\n") >= maxNodes {
		return limit("the text has more than %d lines", maxNodes)
	}
	return stringList(strings.Split(s, "\n"))
}

func split(args ...ref.Val) ref.Val {
	s, sep := text(args[0]), text(args[1])
	if strings.Count(s, sep) >= maxNodes {
		return limit("split returns more than %d parts", maxNodes)
	}
	return stringList(strings.Split(s, sep))
}

func join(args ...ref.Val) ref.Val {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	sep := ""
	if len(args) == 2 {
		sep = text(args[1])
	}
	var parts []string
	size := 0
	for it := list.Iterator(); it.HasNext() == types.True; {
		part, ok := it.Next().(types.String)
		if !ok {
			return types.NewErr("join takes a list of strings")
		}
		size += len(part) + len(sep)
		if size > MaxBytes+len(sep) {
			return tooLong()
		}
		parts = append(parts, string(part))
	}
	return types.String(strings.Join(parts, sep))
}

func replace(args ...ref.Val) ref.Val {
	s, from, to := text(args[0]), text(args[1]), text(args[2])
	n := strings.Count(s, from)
	if grow := len(to) - len(from); grow > 0 && n > (MaxBytes-min(len(s), MaxBytes))/grow {
		return tooLong()
	}
	return types.String(strings.ReplaceAll(s, from, to))
}

// substring counts characters, like CEL's size().
func substring(args ...ref.Val) ref.Val {
	s := []rune(text(args[0]))
	ends := [2]types.Int{0, types.Int(len(s))}
	for i, arg := range args[1:] {
		ends[i], _ = arg.(types.Int) // always an Int
	}
	from, to := ends[0], ends[1]
	if from < 0 || to < from || int(to) > len(s) {
		return types.NewErr("index out of bounds: substring(%d, %d) of a text of %d characters", from, to, len(s))
	}
	return types.String(s[from:to])
}

func index(find func(string, string) int) func(...ref.Val) ref.Val {
	return func(args ...ref.Val) ref.Val {
		s := text(args[0])
		at := find(s, text(args[1]))
		if at < 0 {
			return types.Int(-1)
		}
		return types.Int(utf8.RuneCountInString(s[:at]))
	}
}

func stringList(parts []string) ref.Val { return types.DefaultTypeAdapter.NativeToValue(parts) }

// stringCosts computes the cost of the functions in this file by the bytes they process, like CEL.
type stringCosts struct{}

// CallCost implements CEL's estimator. nil means CEL's default cost.
func (stringCosts) CallCost(_, overload string, args []ref.Val, result ref.Val) *uint64 {
	if !strings.HasPrefix(overload, "wc_") {
		return nil
	}
	cost := uint64(1)
	for _, v := range append(args[:len(args):len(args)], result) {
		switch v := v.(type) {
		case types.String:
			cost += uint64(len(v)) / 10
		case traits.Sizer:
			if n, ok := v.Size().(types.Int); ok {
				cost += uint64(n)
			}
		}
	}
	return &cost
}
