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

// CEL's own string extensions are not used: they build the result of replace, join and format before its cost is
// looked at, so "s.replace('', s)" on 200 kB of data ends the whole process for lack of memory. The functions here know
// the size of their result first.

var errTooLong = fmt.Errorf("the text has more than %d bytes: %w", MaxBytes, ErrLimit)

func stringFunctions() []cel.EnvOption {
	str, num, list := cel.StringType, cel.IntType, cel.ListType(cel.StringType)
	return []cel.EnvOption{
		onString("lowerAscii", func(s string) string { return strings.Map(lower, s) }),
		onString("upperAscii", func(s string) string { return strings.Map(upper, s) }),
		onString("trim", strings.TrimSpace),
		cel.Function("lines", cel.MemberOverload("wc_lines", []*cel.Type{str}, list,
			cel.UnaryBinding(func(v ref.Val) ref.Val { return lines(v) }))),
		cel.Function("split", cel.MemberOverload("wc_split", []*cel.Type{str, str}, list,
			cel.BinaryBinding(split))),
		cel.Function("join",
			cel.MemberOverload("wc_join", []*cel.Type{list}, str,
				cel.UnaryBinding(func(v ref.Val) ref.Val { return join(v, types.String("")) })),
			cel.MemberOverload("wc_join_sep", []*cel.Type{list, str}, str, cel.BinaryBinding(join))),
		cel.Function("replace", cel.MemberOverload("wc_replace", []*cel.Type{str, str, str}, str,
			cel.FunctionBinding(replace))),
		cel.Function("substring",
			cel.MemberOverload("wc_substring", []*cel.Type{str, num}, str, cel.FunctionBinding(substring)),
			cel.MemberOverload("wc_substring_end", []*cel.Type{str, num, num}, str, cel.FunctionBinding(substring))),
		cel.Function("indexOf", cel.MemberOverload("wc_index", []*cel.Type{str, str}, num,
			cel.BinaryBinding(index(strings.Index)))),
		cel.Function("lastIndexOf", cel.MemberOverload("wc_last_index", []*cel.Type{str, str}, num,
			cel.BinaryBinding(index(strings.LastIndex)))),
	}
}

func onString(name string, f func(string) string) cel.EnvOption {
	return cel.Function(name, cel.MemberOverload("wc_"+name, []*cel.Type{cel.StringType}, cel.StringType,
		cel.UnaryBinding(func(v ref.Val) ref.Val {
			s, ok := v.(types.String)
			if !ok {
				return types.MaybeNoSuchOverloadErr(v)
			}
			return types.String(f(string(s)))
		})))
}

func lower(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}

func upper(r rune) rune {
	if 'a' <= r && r <= 'z' {
		return r + 'A' - 'a'
	}
	return r
}

func lines(v ref.Val) ref.Val {
	s, ok := v.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	text := strings.TrimSuffix(strings.ReplaceAll(string(s), "\r\n", "\n"), "\n")
	if text == "" {
		return stringList(nil)
	}
	if strings.Count(text, "\n") >= MaxNodes {
		return types.WrapErr(fmt.Errorf("the text has more than %d lines: %w", MaxNodes, ErrLimit))
	}
	return stringList(strings.Split(text, "\n"))
}

func split(v, sep ref.Val) ref.Val {
	s, ok1 := v.(types.String)
	by, ok2 := sep.(types.String)
	if !ok1 || !ok2 {
		return types.MaybeNoSuchOverloadErr(v)
	}
	if strings.Count(string(s), string(by)) >= MaxNodes {
		return types.WrapErr(fmt.Errorf("split returns more than %d parts: %w", MaxNodes, ErrLimit))
	}
	return stringList(strings.Split(string(s), string(by)))
}

func join(v, sep ref.Val) ref.Val {
	list, ok1 := v.(traits.Lister)
	by, ok2 := sep.(types.String)
	if !ok1 || !ok2 {
		return types.MaybeNoSuchOverloadErr(v)
	}
	var parts []string
	size := 0
	for it := list.Iterator(); it.HasNext() == types.True; {
		part, ok := it.Next().(types.String)
		if !ok {
			return types.NewErr("join takes a list of strings")
		}
		size += len(part) + len(by)
		if size > MaxBytes+len(by) {
			return types.WrapErr(errTooLong)
		}
		parts = append(parts, string(part))
	}
	return types.String(strings.Join(parts, string(by)))
}

func replace(args ...ref.Val) ref.Val {
	s, ok1 := args[0].(types.String)
	from, ok2 := args[1].(types.String)
	to, ok3 := args[2].(types.String)
	if !ok1 || !ok2 || !ok3 {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	n := strings.Count(string(s), string(from))
	if grow := len(to) - len(from); grow > 0 && n > (MaxBytes-min(len(s), MaxBytes))/grow {
		return types.WrapErr(errTooLong)
	}
	return types.String(strings.ReplaceAll(string(s), string(from), string(to)))
}

// substring counts in characters, as CEL's size() does.
func substring(args ...ref.Val) ref.Val {
	s, ok1 := args[0].(types.String)
	from, ok2 := args[1].(types.Int)
	if !ok1 || !ok2 {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	length := types.Int(utf8.RuneCountInString(string(s)))
	to := length
	if len(args) == 3 {
		end, ok := args[2].(types.Int)
		if !ok {
			return types.MaybeNoSuchOverloadErr(args[2])
		}
		to = end
	}
	if from < 0 || to < from || to > length {
		return types.NewErr("index out of bounds: substring(%d, %d) of a text of %d characters", from, to, length)
	}
	return s[runeOffset(string(s), int(from)):runeOffset(string(s), int(to))]
}

func runeOffset(s string, runes int) int {
	offset := 0
	for range runes {
		_, size := utf8.DecodeRuneInString(s[offset:])
		offset += size
	}
	return offset
}

func index(find func(string, string) int) func(ref.Val, ref.Val) ref.Val {
	return func(v, what ref.Val) ref.Val {
		s, ok1 := v.(types.String)
		sub, ok2 := what.(types.String)
		if !ok1 || !ok2 {
			return types.MaybeNoSuchOverloadErr(v)
		}
		at := find(string(s), string(sub))
		if at < 0 {
			return types.Int(-1)
		}
		return types.Int(utf8.RuneCountInString(string(s[:at])))
	}
}

func stringList(parts []string) ref.Val {
	return types.DefaultTypeAdapter.NativeToValue(parts)
}

// stringCosts prices the functions of this file by the bytes they touch, as CEL prices its own.
type stringCosts struct{}

// CallCost implements the estimator of CEL. nil means CEL's own price.
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
