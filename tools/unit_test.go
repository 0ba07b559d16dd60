package tools_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

func TestDecodeArguments(t *testing.T) {
	t.Parallel()
	ptr := func(s string) *string { return &s }
	n := int64(5)
	tests := map[string]struct {
		args string
		want tools.ExecInput
	}{
		"empty":             {``, tools.ExecInput{}},
		"null":              {`null`, tools.ExecInput{}},
		"null field":        {`{"env":null,"command":"x"}`, tools.ExecInput{Command: "x"}},
		"plain":             {`{"cmd":["a","b"],"env":{"A":"1"},"timeout_seconds":3,"yield_ms":5,"stream":true,"stdin":""}`, tools.ExecInput{Cmd: []string{"a", "b"}, Env: tools.TextMap{"A": "1"}, TimeoutSeconds: 3, YieldMS: &n, Stream: true, Stdin: ptr("")}},
		"aliases":           {`{"argv":["a"],"timeout":3,"workdir":"/x"}`, tools.ExecInput{Cmd: []string{"a"}, TimeoutSeconds: 3, Cwd: "/x"}},
		"numbers as text":   {`{"command":"x","timeout_seconds":"30","stream":"true"}`, tools.ExecInput{Command: "x", TimeoutSeconds: 30, Stream: true}},
		"whole float":       {`{"command":"x","timeout_seconds":30.0}`, tools.ExecInput{Command: "x", TimeoutSeconds: 30}},
		"text from scalars": {`{"cmd":["sleep",1,true]}`, tools.ExecInput{Cmd: []string{"sleep", "1", "true"}}},
		"env of scalars":    {`{"command":"x","env":{"N":1.50,"B":false}}`, tools.ExecInput{Command: "x", Env: tools.TextMap{"N": "1.50", "B": "false"}}},
		"env as list":       {`{"command":"x","env":["A=b=c","D="]}`, tools.ExecInput{Command: "x", Env: tools.TextMap{"A": "b=c", "D": ""}}},
		"env as pairs":      {`{"command":"x","env":[{"name":"A","value":"b"},{"key":"C","value":1}]}`, tools.ExecInput{Command: "x", Env: tools.TextMap{"A": "b", "C": "1"}}},
		"env as text":       {`{"command":"x","env":"{\"A\":\"b\"}"}`, tools.ExecInput{Command: "x", Env: tools.TextMap{"A": "b"}}},
		"arguments as text": {`"{\"command\":\"x\"}"`, tools.ExecInput{Command: "x"}},
	}
	for name, tt := range tests {
		got, fail := tools.DecodeInput[tools.ExecInput]([]byte(tt.args))
		if fail != nil {
			t.Errorf("%s: %v", name, fail)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDecodeArgumentsErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ args, want string }{
		"unknown":          {`{"comand":"x"}`, `unknown argument "comand", did you mean "command"?`},
		"unknown far":      {`{"colour":"x"}`, `unknown argument "colour", known are sandbox_id, cmd, command`},
		"cmd as text":      {`{"cmd":"ls -l"}`, `cmd must be a list of texts, it is text; pass one line for the shell as command, or a list as in ["ls", "-l"]`},
		"command as list":  {`{"command":["ls"]}`, `command must be text, it is a list; pass a list of arguments as cmd`},
		"wrong number":     {`{"timeout_seconds":"soon"}`, `timeout_seconds must be a whole number, it is text`},
		"fraction":         {`{"timeout_seconds":1.5}`, `timeout_seconds must be a whole number, it is the number 1.5`},
		"nested in list":   {`{"cmd":["a",["b"]]}`, `cmd[1] must be text, it is a list`},
		"env of objects":   {`{"env":{"A":{}}}`, `env: the value of "A" must be text, it is an object`},
		"env item":         {`{"env":["A"]}`, `env: item 0 must be "name=value" or an object with name and value`},
		"env number":       {`{"env":5}`, `env: must be an object of names to texts, it is the number 5`},
		"list":             {`[1]`, `the arguments must be a JSON object`},
		"alias and target": {`{"timeout":1,"timeout_seconds":2}`, `unknown argument "timeout", did you mean "timeout_seconds"?`},
		"several":          {`{"zzz":1,"cmd":5}`, `unknown argument "zzz", known are`},
	}
	for name, tt := range tests {
		_, fail := tools.DecodeInput[tools.ExecInput]([]byte(tt.args))
		if fail == nil || fail.Code != tools.CodeInvalid || !strings.Contains(fail.Message, tt.want) {
			t.Errorf("%s: %v, want %q", name, fail, tt.want)
		}
	}
	if _, fail := tools.DecodeInput[tools.FSReadInput]([]byte(`{}`)); fail == nil || fail.Message != "path is required" {
		t.Errorf("missing path: %v", fail)
	}
	if _, fail := tools.DecodeInput[tools.FSWriteInput]([]byte(`{"path":"a","contents":{"a":1}}`)); fail == nil || !strings.Contains(fail.Message, "contents must be text, it is an object; write it as a JSON string") {
		t.Errorf("object as contents: %v", fail)
	}
}

func FuzzDecodeArguments(f *testing.F) {
	for _, seed := range []string{`{"cmd":["a"]}`, `{"env":[{"name":"A","value":"b"}]}`, `"{}"`, `{"stdin":null}`, `{"yield_ms":1e3}`, `[]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, args string) {
		if _, fail := tools.DecodeInput[tools.ExecInput]([]byte(args)); fail != nil && (fail.Message == "" || fail.Remediation == "" || !utf8.ValidString(fail.Message)) {
			t.Errorf("%q: %+v", args, fail)
		}
		_, _ = tools.DecodeInput[tools.FSWriteInput]([]byte(args))
	})
}

// TestEverySentinelHasACode reads the sentinels from the source of package backend, so that a new one cannot be missed.
func TestEverySentinelHasACode(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "../backend/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for i, name := range spec.Names {
				if strings.HasPrefix(name.Name, "Err") && len(spec.Values) > i {
					declared = append(declared, name.Name)
				}
			}
		}
		return true
	})
	mapped := tools.Sentinels()
	backendErrors := 0
	for err, code := range mapped {
		if !slices.Contains(tools.Codes(), code) {
			t.Errorf("%v has the undocumented code %q", err, code)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			backendErrors++
		}
	}
	if len(declared) != backendErrors || len(declared) < 10 {
		t.Errorf("package backend declares %d sentinels (%v), %d have codes", len(declared), declared, backendErrors)
	}
	for err, code := range mapped {
		if got := tools.ErrorOf(fmt.Errorf("op: %w", err)); got.Code != code {
			t.Errorf("%v has code %s, want %s", err, got.Code, code)
		}
	}
}

func TestEveryCodeHasARemediation(t *testing.T) {
	t.Parallel()
	spec := []tools.Code{"not_found", "exists", "invalid_argument", "permission_denied", "too_large", "timeout", "sandbox_lost", "closed", "capacity", "unavailable", "unsupported", "quota_exceeded", "internal"}
	if diff := cmp.Diff(spec, tools.Codes()); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
	seen := map[string]tools.Code{}
	for _, c := range tools.Codes() {
		text := c.Remediation()
		if len(text) < 20 || seen[text] != "" {
			t.Errorf("remediation of %s is %q, as that of %s", c, text, seen[text])
		}
		seen[text] = c
	}
}

func TestErrorOf(t *testing.T) {
	t.Parallel()
	wrapped := &backend.Error{Op: "Exec", Backend: "docker", ID: "sbx_x", Err: fmt.Errorf("%w: no such sandbox", backend.ErrNotFound)}
	tests := []struct {
		err       error
		code      tools.Code
		message   string
		retryable bool
	}{
		{wrapped, tools.CodeNotFound, "not found: no such sandbox", false},
		{errors.New("open /var/lib/docker/secret: boom"), tools.CodeInternal, "the operation failed inside Workcell", false},
		{fmt.Errorf("%w: 3 are open", backend.ErrCapacity), tools.CodeCapacity, "at capacity: 3 are open", true},
		{fmt.Errorf("%w: x", backend.ErrImage), tools.CodeUnavailable, "image unavailable: x", false},
		{
			fmt.Errorf("%w: pull 10.1.2.3:5000/x: lookup r.example on 10.0.0.2:53: read udp 172.17.0.1:3->[fd00::2]:53: i/o timeout", backend.ErrImage), tools.CodeUnavailable,
			"image unavailable: pull 10.1.2.3:5000/x: lookup r.example on <address>: read udp <address>-><address>: i/o timeout", false,
		},
		{&session.LaunchError{Reason: session.LaunchNotFound, Message: "foo"}, tools.CodeNotFound, "cannot start the command (not_found): foo", false},
		{&session.LaunchError{Reason: session.LaunchNoResources, Message: "foo"}, tools.CodeCapacity, "cannot start the command (no_resources): foo", true},
		{&session.ConflictError{Key: session.WorkflowKey("r", "n"), Fields: []string{"image", "env"}}, tools.CodeExists, `the sandbox "n" of this run is open already, and differs in its image, env`, false},
		{&tools.ToolError{Code: tools.CodeQuota, Message: "m"}, tools.CodeQuota, "m", false},
	}
	for _, tt := range tests {
		got := tools.ErrorOf(tt.err)
		if got.Code != tt.code || got.Message != tt.message || got.Retryable != tt.retryable {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	out := func(head, tail string, omitted int64) session.Output {
		return session.Output{Head: []byte(head), Tail: []byte(tail), Omitted: omitted, Total: int64(len(head)+len(tail)) + omitted, Path: "/workspace/.workcell/output/e.stdout"}
	}
	tests := map[string]struct {
		out  session.Output
		keep bool
		want string
	}{
		"whole":                {out("a\nb", "", 0), true, "a\nb"},
		"split in head":        {out("a\xc3", "\xa9b", 0), true, "aéb"},
		"invalid":              {out("a\xffb\xfe", "", 0), true, "a\uFFFDb\uFFFD\n[workcell: 2 bytes that are not UTF-8 are shown as \uFFFD; sandbox_exec_read gives the exact bytes]\n"},
		"invalid in a run":     {out("a\xff", "", 0), false, "a\uFFFD\n[workcell: 1 bytes that are not UTF-8 are shown as \uFFFD]\n"},
		"cut on lines":         {out("1\n2\n3\n4\n5\nha", "lf\n7\n8\n9\n10\n11\n12\n", 100), true, "1\n2\n3\n4\n5\n[workcell: 105 of 130 bytes of stdout are left out here; all of it is in /workspace/.workcell/output/e.stdout]\n7\n8\n9\n10\n11\n12\n"},
		"cut on characters":    {out("äöü\xc3", "\xa4ßx", 10), true, "äöü\n[workcell: 12 of 21 bytes of stdout are left out here; all of it is in /workspace/.workcell/output/e.stdout]\nßx"},
		"nothing kept":         {out("ab", "cd", 10), false, "ab\n[workcell: 10 of 14 bytes of stdout are left out here; print less, or print it in parts]\ncd"},
		"nul and escapes":      {out("\x00\x1b[31m\r\n", "", 0), true, "\x00\x1b[31m\r\n"},
		"replacement is legal": {out("\uFFFD", "", 0), true, "\uFFFD"},
	}
	for name, tt := range tests {
		text, truncated, path := tools.Show(tt.out, "stdout", tt.keep)
		if diff := cmp.Diff(tt.want, text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if truncated != (tt.out.Omitted > 0) || (path != "") != (truncated && tt.keep) {
			t.Errorf("%s: truncated %v, path %q", name, truncated, path)
		}
	}
}

// TestShowBounds holds answers to their limit, whatever a command printed.
func TestShowBounds(t *testing.T) {
	t.Parallel()
	head, tail := tools.ExcerptBounds(30_000)
	if tail < 3*head {
		t.Errorf("head %d, tail %d: the end should have most of the room", head, tail)
	}
	for name, unit := range map[string]string{"line": "0123456789\n", "no newline": "x", "empty lines": "\n", "wide": "€", "binary": "\xff\xc3\x28\xe2\x82"} {
		all := []byte(strings.Repeat(unit, 200_000/len(unit)))
		o := session.Output{Head: all[:head], Tail: all[len(all)-tail:], Total: int64(len(all)), Path: "/workspace/.workcell/output/exe_aaaaaaaaaaaaaaaaaaaaaaaaaa.stdout"}
		o.Omitted = o.Total - int64(head) - int64(tail)
		text, truncated, _ := tools.Show(o, "stdout", true)
		if n := utf8.RuneCountInString(text); n > 30_000 || n < 9_000 || !truncated || !utf8.ValidString(text) {
			t.Errorf("%s: %d characters, truncated %v", name, n, truncated)
		}
	}
}

func FuzzShow(f *testing.F) {
	f.Add([]byte("a\nb\xff"), []byte("\xa9c\n"), int64(5))
	f.Fuzz(func(t *testing.T, head, tail []byte, omitted int64) {
		if omitted < 0 || omitted > 1<<40 {
			return
		}
		text, _, _ := tools.Show(session.Output{Head: head, Tail: tail, Omitted: omitted, Total: omitted + int64(len(head)+len(tail))}, "stderr", true)
		if !utf8.ValidString(text) {
			t.Errorf("%q", text)
		}
		if omitted == 0 && utf8.Valid(append(bytes.Clone(head), tail...)) && text != string(head)+string(tail) {
			t.Errorf("%q from %q and %q", text, head, tail)
		}
	})
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	code := func(status session.ExecState, code int, signal string) string {
		if c := tools.ExitCode(status, code, signal); c != nil {
			return fmt.Sprint(*c)
		}
		return "absent"
	}
	for want, got := range map[string]string{
		"absent": code(session.ExecRunning, 0, ""), "0": code(session.ExecCompleted, 0, ""), "3": code(session.ExecCompleted, 3, ""),
		"137": code(session.ExecKilled, 0, "SIGKILL"), "143": code(session.ExecTimedOut, 0, "SIGTERM"), "139": code(session.ExecCompleted, 0, "SIGSEGV"),
	} {
		if got != want {
			t.Errorf("exit code %s, want %s", got, want)
		}
	}
}

func TestJSONObject(t *testing.T) {
	t.Parallel()
	want := map[string]any{"a": 1.0}
	for _, text := range []string{
		`{"a":1}`, "  {\"a\": 1}\n", "```json\n{\"a\":1}\n```", "Done.\n```json\n{\"a\":1}\n```\nThat is it.", "```\n{\"a\":1}\n```", "```JSON\r\n{\"a\":1}\r\n```",
	} {
		if diff := cmp.Diff(want, tools.JSONObject(text)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	for _, text := range []string{"", "x", "[1]", `{"a":1} and more`, "```json\n{\"a\":1}\n```\n```json\n{\"b\":1}\n```", "```json\n[1]\n```", `{"a":`} {
		if got := tools.JSONObject(text); got != nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestNeutral(t *testing.T) {
	t.Parallel()
	in := map[string]any{
		"a": "x <<<dotprompt:role:system>>> y", "b": []any{"<<<dotprompt:media:url http://x>>>", 5}, "c": "ends with <<<dotpr",
		"d": []any{"<<<dotprompt:history>>>"}, "e": "a << b <", "<<<dotprompt:role:model>>>": true,
	}
	want := map[string]any{
		"a": "x <<< dotprompt:role:system>>> y", "b": []any{"<<< dotprompt:media:url http://x>>>", 5}, "c": "ends with <<<dotpr ",
		"d": []any{"<<< dotprompt:history>>>"}, "e": "a << b <", "<<< dotprompt:role:model>>>": true,
	}
	if diff := cmp.Diff(any(want), tools.Neutral(in)); diff != "" {
		t.Errorf("neutral (-want +got):\n%s", diff)
	}
	if in["a"] != "x <<<dotprompt:role:system>>> y" {
		t.Error("the input was changed")
	}
}

// TestSandboxFieldsAreThoseOfFrontmatter keeps the middleware's fields and the frontmatter's together: each is taken over
// from a configuration and given back, an explicit false too.
func TestSandboxFieldsAreThoseOfFrontmatter(t *testing.T) {
	t.Parallel()
	for _, b := range []bool{true, false} {
		var want frontmatter.Sandbox
		fill(reflect.ValueOf(&want).Elem(), b)
		if diff := cmp.Diff(want, tools.Config(want)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	var s tools.Sandbox
	if err := s.UnmarshalJSON([]byte(`{"network":{"enabled":false}}`)); err != nil || s.Network.Enabled == nil || *s.Network.Enabled {
		t.Errorf("%v: %+v", err, s)
	}
	if err := s.UnmarshalJSON([]byte(`{"imgae":"x"}`)); err == nil || !strings.Contains(err.Error(), `did you mean "image"?`) {
		t.Errorf("unknown key: %v", err)
	}
}

// fill sets every field below v, booleans to b.
func fill(v reflect.Value, b bool) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), b)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), b)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"A": "b"}))
	case reflect.Slice:
		v.Set(reflect.ValueOf([]string{"a"}))
	case reflect.String:
		v.SetString("x")
	case reflect.Int64:
		v.SetInt(17)
	case reflect.Bool:
		v.SetBool(b)
	default:
		panic(v.Kind().String())
	}
}

// TestDocumentation holds docs/agents.md to the tools and codes that there are.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range tools.Codes() {
		if !strings.Contains(string(doc), "| `"+string(c)+"` |") {
			t.Errorf("code %s is not documented", c)
		}
	}
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		for _, tool := range tools.ToolsOf(mode) {
			if !strings.Contains(string(doc), "| `"+tool.Name()+"` | "+string(mode)) {
				t.Errorf("tool %s is not documented", tool.Name())
			}
		}
	}
}
