package expr_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/expr"
)

func newEnv(t testing.TB) *expr.Env {
	t.Helper()
	env, err := expr.New(
		expr.Var{Name: "input", Map: true}, expr.Var{Name: "steps", Map: true},
		expr.Var{Name: "run", Map: true}, expr.Var{Name: "vars", Map: true}, expr.Var{Name: "last"})
	checktest.Must(t, err)
	return env
}

func testVars() map[string]any {
	return map[string]any{
		"input": map[string]any{"repo": "a b", "n": int64(3), "f": 2.5, "list": []any{"x", "y"}, "tpl": "${ input.repo }", "none": nil},
		"steps": map[string]any{
			"test":          map[string]any{"output": map[string]any{"all_passed": true, "failed": []any{}}},
			"check-results": map[string]any{"status": "succeeded"},
		},
		"run":  map[string]any{"id": "run_1"},
		"vars": map[string]any{"count": int64(1)},
		"last": map[string]any{"exit_code": int64(0)},
	}
}

func TestEval(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	for src, want := range map[string]any{
		`steps.test.output.all_passed`:                      true,
		`steps["check-results"].status == "succeeded"`:      true,
		`last.exit_code == 0`:                               true,
		`vars.count + 1`:                                    int64(2),
		`input.f * 2.0`:                                     5.0,
		`input.n < input.f`:                                 false,
		`size(input.list)`:                                  int64(2),
		`input.list.map(i, i + "!")`:                        []any{"x!", "y!"},
		`{"a": 1, "b": [true, null]}`:                       map[string]any{"a": int64(1), "b": []any{true, nil}},
		`steps.?nope.output.orValue("none")`:                "none",
		`has(steps.test.output.missing)`:                    false,
		`input.none == null`:                                true,
		`optional.none()`:                                   nil,
		`duration("90s")`:                                   "1m30s",
		`b"abc"`:                                            "YWJj",
		`"Ab-Ä".lowerAscii() + "Ab-ä".upperAscii()`:         "ab-ÄAB-ä",
		`" x ".trim() + "a,b".split(",")[1]`:                "xb",
		`["a", "b"].join("-") + ["c"].join()`:               "a-bc",
		`"a\r\nb\n".lines()`:                                []any{"a", "b"},
		`"".lines()`:                                        []any{},
		`"aXa".replace("X", "")`:                            "aa",
		`"äbc".substring(1) + "äbc".substring(0, 1)`:        "bcä",
		`["äbcb".indexOf("b"), "äbcb".lastIndexOf("b")]`:    []any{int64(1), int64(3)},
		`"x".indexOf("y")`:                                  int64(-1),
		`input.n > 2 ? "many" : "few"`:                      "many",
		`input.list.exists(i, i == "y") && !("z" in input)`: true,
	} {
		p, err := env.Compile(src)
		if err != nil {
			t.Errorf("Compile(%s): %v", src, err)
			continue
		}
		got, err := p.Eval(t.Context(), testVars())
		if err != nil {
			t.Errorf("Eval(%s): %v", src, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", src, diff)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	for _, tt := range []struct {
		src    string
		offset int
		msg    string
	}{
		{``, 0, "empty"},
		{`  `, 0, "empty"},
		{`steps +`, 7, "end of expression"},
		{`inptu.a`, 0, `unknown name "inptu" (did you mean "input"?)`},
		{`"ä" + inptu.a`, 7, `unknown name "inptu"`},
		{"1 +\n bad", 5, `unknown name "bad"`},
		{`1 + "a"`, 2, "no matching overload"},
		{`input + 1`, 6, "no matching overload"},
		{`"a".matches("(")`, 0, ""},
		{strings.Repeat("(", 200) + "1" + strings.Repeat(")", 200), 0, ""},
		{strings.Repeat("1+", 9000) + "1", 0, "at most"},
		{"\x00", 0, "not valid text"},
		{"\xff", 0, "not valid text"},
	} {
		_, err := env.Compile(tt.src)
		var e *expr.Error
		if !errors.As(err, &e) {
			t.Errorf("Compile(%.20q) = %v, want an *Error", tt.src, err)
			continue
		}
		if tt.msg != "" && (e.Offset != tt.offset || !strings.Contains(e.Msg, tt.msg)) {
			t.Errorf("Compile(%.20q) = %d %q, want %d %q", tt.src, e.Offset, e.Msg, tt.offset, tt.msg)
		}
	}
}

func TestEvalErrors(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	for _, tt := range []struct {
		src, msg string
	}{
		{`steps.fix.output`, "no such key: fix"},
		{`input.list[7]`, "index out of bounds: 7"},
		{`1 / (input.n - 3)`, "division by zero"},
		{`input.f * input.n`, "do not match"},
		{`{1: 2}`, "map keys must be strings"},
		{`1.0 / 0.0`, "finite"},
		{`18446744073709551615u`, "too large"},
		{`"abc".substring(2, 9)`, "index out of bounds"},
		{`int("zz")`, "conversion"},
		{`"ää" == "" || input.list[9] == 1`, "index out of bounds"},
	} {
		p, err := env.Compile(tt.src)
		if err != nil {
			t.Errorf("Compile(%s): %v", tt.src, err)
			continue
		}
		_, err = p.Eval(t.Context(), testVars())
		var e *expr.Error
		if !errors.As(err, &e) || !strings.Contains(e.Msg, tt.msg) {
			t.Errorf("Eval(%s) = %v, want %q", tt.src, err, tt.msg)
		}
		if i := strings.Index(tt.src, "[9]"); i > 0 && e.Offset < i { // the offset must count two-byte characters correctly
			t.Errorf("Eval(%s) fails at %d, want the place of the index", tt.src, e.Offset)
		}
	}
}

func TestCondition(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	if _, err := env.Condition(`size(input.list)`); err == nil || !strings.Contains(err.Error(), "must be true or false, not an int") {
		t.Errorf("an int condition: %v", err)
	}
	p, err := env.Condition(`input.repo`) // the type is only known at run time
	checktest.Must(t, err)
	if _, err := p.EvalBool(t.Context(), testVars()); err == nil || !strings.Contains(err.Error(), "it was a string") {
		t.Errorf("a string condition: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Eval(ctx, testVars()); !errors.Is(err, context.Canceled) {
		t.Errorf("Eval with a cancelled context = %v", err)
	}
}

// TestBombs verifies limits. Without them, each expression would take all memory or minutes.
func TestBombs(t *testing.T) {
	t.Parallel()
	list := make([]any, 10_000)
	for i := range list {
		list[i] = int64(i)
	}
	vars := map[string]any{"steps": map[string]any{}, "run": map[string]any{}, "vars": map[string]any{}, "last": nil,
		"input": map[string]any{"s": strings.Repeat("a", 200_000), "l": list}}
	env := newEnv(t)
	for _, src := range []string{
		`input.s.replace("", input.s)`,
		`input.s.replace("a", input.s)`,
		`[input.s, input.s, input.s].join(input.s).replace("a", input.s)`,
		`input.l.map(x, input.s).join()`,
		`input.l.map(x, input.s).join(input.s)`,
		`input.l.map(x, input.l)`,
		`input.l.map(x, [input.l, input.l])`,
		`input.l.map(x, input.s + string(x))`,
		`input.l.all(a, input.l.all(b, input.l.all(c, a + b + c >= 0)))`,
		`input.l.all(a, input.s.replace("a", "b") != "")`,
		`input.l.map(a, input.l.map(b, a * b))`,
		`input.s.split("")`,
	} {
		p, err := env.Compile(src)
		if err != nil {
			t.Errorf("Compile(%s): %v", src, err)
			continue
		}
		if _, err := p.Eval(t.Context(), vars); !errors.Is(err, expr.ErrLimit) {
			t.Errorf("Eval(%s) = %v, want ErrLimit", src, err)
		}
	}
	// Patterns that take exponential time in a backtracking engine take linear time here.
	p, err := env.Compile(`input.s.matches("^(a*)*b$")`)
	checktest.Must(t, err)
	if got, err := p.Eval(t.Context(), vars); err != nil || got != false {
		t.Errorf("matches = %v, %v", got, err)
	}
	if _, err := env.Compile(`"x".matches("((a{100}){100}){100}")`); err == nil {
		t.Error("a huge pattern compiled")
	}
}

func TestTemplate(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	for _, tt := range []struct {
		in   string
		want any
	}{
		{"plain", "plain"},
		{"", ""},
		{"${ input.n }", int64(3)},
		{"${input.list}", []any{"x", "y"}},
		{" ${ input.n }", " 3"},
		{"n=${ input.n }, f=${ input.f }, b=${ true }, z=${ null }", "n=3, f=2.5, b=true, z=null"},
		{"l=${ input.list } m=${ {'a': '<'} }", `l=["x","y"] m={"a":"<"}`},
		{"$${ input.n } $$ $x {}", "${ input.n } $$ $x {}"},
		{"${ {'a': {'b': 1}} }", map[string]any{"a": map[string]any{"b": int64(1)}}},
		{"${ '}' + \"}\" + '''}'}''' + r'\\' }", `}}}'}\`},
		{"${ 1 // a } in a comment\n }", int64(1)},
		// Data that looks like an expression is not evaluated.
		{"${ input.tpl }", "${ input.repo }"},
		{"<${ input.tpl }>", "<${ input.repo }>"},
	} {
		v, err := env.Template(tt.in)
		if err != nil {
			t.Errorf("Template(%q): %v", tt.in, err)
			continue
		}
		got, err := v.Eval(t.Context(), testVars())
		if err != nil {
			t.Errorf("Eval(%q): %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got)\n%s", tt.in, diff)
		}
	}
}

func TestTemplateErrors(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	for in, offset := range map[string]int{
		"ab ${ input.n":      3,
		"ab ${ 'x }":         3,
		"ab ${}":             5,
		"ab ${ nope.x }":     6,
		"${ 1 } and ${ 1 + ": 11,
	} {
		_, err := env.Template(in)
		var e *expr.Error
		if !errors.As(err, &e) || e.Offset != offset {
			t.Errorf("Template(%q) = %v, want an error at %d", in, err, offset)
		}
	}
}

// tree compiles a YAML document.
func tree(t *testing.T, src string) (*expr.Value, error) {
	t.Helper()
	var doc yaml.Node
	checktest.Must(t, yaml.Unmarshal([]byte(src), &doc))
	var errs []error
	v := newEnv(t).Tree(doc.Content[0], func(n *yaml.Node, err error) {
		var e *expr.Error
		if !errors.As(err, &e) || e.Node != n {
			t.Errorf("%v is not of line %d", err, n.Line)
		}
		errs = append(errs, fmt.Errorf("%d:%d: %w", n.Line, e.Offset, err))
	})
	return v, errors.Join(errs...)
}

func TestTree(t *testing.T) {
	t.Parallel()
	v, err := tree(t, "path: ${ input.repo }\nn: 1\nday: 2020-01-01\nl: [&a 'a ${ input.n }', {x: '${ vars.count }'}, 2.5, *a, ~]")
	checktest.Must(t, err)
	got, err := v.Eval(t.Context(), testVars())
	checktest.Must(t, err)
	want := map[string]any{
		"path": "a b", "n": int64(1), "day": "2020-01-01", "l": []any{"a 3", map[string]any{"x": int64(1)}, 2.5, "a 3", nil}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	_, err = tree(t, "a: ${ x }\nl:\n- ok\n- y ${ y }\n- .nan")
	const known = "; available: input, steps, run, vars, last\n"
	if got, want := err.Error(), "1:3: unknown name \"x\""+known+"4:5: unknown name \"y\""+known+"5:0: the number .nan cannot be used, write it as text"; got != want {
		t.Errorf("error\n%s\nwant\n%s", got, want)
	}
	v, err = tree(t, "l: ['y ${ input.nope }']")
	checktest.Must(t, err)
	var e *expr.Error
	if _, err := v.Eval(t.Context(), testVars()); !errors.As(err, &e) || e.Msg != "no such key: nope" || e.Node.Column != 5 || e.Offset != 10 {
		t.Errorf("Eval = %#v", err)
	}
}

func TestConstIsCopied(t *testing.T) {
	t.Parallel()
	v, err := tree(t, "a: [x]")
	checktest.Must(t, err)
	for range 2 {
		got, err := v.Eval(t.Context(), nil)
		if diff := cmp.Diff(map[string]any{"a": []any{"x"}}, got); diff != "" || err != nil {
			t.Fatalf("%v (-want +got)\n%s", err, diff)
		}
		got.(map[string]any)["a"].([]any)[0] = "changed" //nolint:errcheck // a panic fails the test
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	p, err := newEnv(t).Compile(`steps["a-b"].output.ok && has(steps.c.error) && input.list.all(steps, steps.x == vars.y[0].z) && last["k"] == run.id && steps.?d.?output.orValue(0) == 1 && steps[?"e"].hasValue()`)
	checktest.Must(t, err)
	want := []string{
		"steps@0 a-b@6 output@13 ok@20", "steps@30 c@36", "input@48 list@54", "vars@81 y@86", "last@97 k@102", "run@110 id@114",
		"steps@120 d@127 output@130", "steps@156 e@163",
	}
	var got []string
	for _, path := range p.Paths() {
		text := fmt.Sprintf("%s@%d", path.Root, path.At.Offset)
		for i, key := range path.Keys {
			if key == "error" {
				continue // the position of a macro's result in CEL does not matter
			}
			text += fmt.Sprintf(" %s@%d", key, path.Places[i].Offset)
		}
		got = append(got, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestNormalize(t *testing.T) {
	t.Parallel()
	type named struct {
		A int      `json:"a"`
		B []string `json:"b"`
	}
	got, err := expr.Normalize(map[string]any{
		"f": 3.0, "g": 2.5, "i": 7, "u": uint8(1), "n": json.Number("9"), "big": 1e300, "s": "a\xff", "st": named{1, []string{"x"}},
		"l": []any{1.0, nil, true}, "m": map[string]string{"k": "v"},
	}, 1<<20)
	checktest.Must(t, err)
	want := map[string]any{
		"f": int64(3), "g": 2.5, "i": int64(7), "u": int64(1), "n": int64(9), "big": 1e300, "s": "a\uFFFD",
		"st": map[string]any{"a": int64(1), "b": []any{"x"}}, "l": []any{int64(1), nil, true}, "m": map[string]any{"k": "v"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	for _, bad := range []any{math.NaN(), math.Inf(1), make(chan int), strings.Repeat("x", 100), cyclic} {
		if _, err := expr.Normalize(bad, 50); err == nil {
			t.Errorf("Normalize(%T) passed", bad)
		}
	}
}

// TestDecodeJSON verifies that only white space may follow a JSON document.
func TestDecodeJSON(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{"{} \n": true, "{}}": false, "[]]": false, "1 2": false, "": false} {
		if _, err := expr.DecodeJSON([]byte(text)); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "a-b", "1a", "in", "true", "ä"} {
		if expr.IsIdent(name) {
			t.Errorf("%q is a valid name", name)
		}
	}
	env, err := newEnv(t).With(expr.Var{Name: "item"}, expr.Var{Name: "input"})
	checktest.Must(t, err)
	if diff := cmp.Diff([]string{"input", "steps", "run", "vars", "last", "item"}, env.Names()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// FuzzTemplate verifies that compiling and evaluating arbitrary text ends without a panic and that data stays
// unchanged.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"", "a ${ input.n } b", "$${", "${ '}' }", "${ input.list.map(x, x) }", "${ {'a': 1} }", "${", "}", "${ steps.test.output }", "${ \"\"\"}\"\"\" }"} {
		f.Add(s)
	}
	env := newEnv(f)
	f.Fuzz(func(t *testing.T, s string) {
		v, err := env.Template(s)
		if err != nil {
			var e *expr.Error
			if !errors.As(err, &e) || e.Offset < 0 || e.Offset > len(s) {
				t.Fatalf("Template(%q) = %#v", s, err)
			}
			return
		}
		if len(v.Programs()) == 0 {
			got, err := v.Eval(t.Context(), nil)
			if want := strings.ReplaceAll(s, "$${", "${"); err != nil || got != want {
				t.Fatalf("constant %q became %q, %v", s, got, err)
			}
			return
		}
		out, err := v.Eval(t.Context(), testVars())
		if err != nil {
			return
		}
		if again, err := expr.Normalize(out, expr.MaxBytes); err != nil || expr.Text(out) != expr.Text(again) {
			t.Fatalf("%q returned %#v, which is not plain data (%#v, %v)", s, out, again, err)
		}
	})
}
