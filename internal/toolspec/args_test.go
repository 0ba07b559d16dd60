package toolspec

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// common contains fields several inputs share.
type common struct {
	SandboxID string `json:"sandbox_id,omitempty"`
}

// input has a field of each kind that inputs may have.
type input struct {
	common
	Path           string   `json:"path"`
	Cmd            []string `json:"cmd,omitempty"`
	Paths          []string `json:"paths,omitempty"`
	Command        string   `json:"command,omitempty"`
	Cwd            string   `json:"cwd,omitempty"`
	Env            TextMap  `json:"env,omitempty"`
	Stdin          *string  `json:"stdin,omitempty"`
	TimeoutSeconds int64    `json:"timeout_seconds,omitempty"`
	YieldMS        *int64   `json:"yield_ms,omitempty"`
	Stream         bool     `json:"stream,omitempty"`
	Text           string   `json:"text,omitempty"`
}

func TestDecodeInput(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args string
		want input
	}{
		"null field":        {`{"env":null}`, input{}},
		"plain":             {`{"cmd":["a","b"],"env":{"A":"1"},"timeout_seconds":3,"yield_ms":5,"stream":true,"stdin":"","sandbox_id":"s"}`, input{common: common{"s"}, Cmd: []string{"a", "b"}, Env: TextMap{"A": "1"}, TimeoutSeconds: 3, YieldMS: new(int64(5)), Stream: true, Stdin: new("")}},
		"aliases":           {`{"argv":["a"],"timeout":3,"workdir":"/x","data":"y"}`, input{Cmd: []string{"a"}, TimeoutSeconds: 3, Cwd: "/x", Text: "y"}},
		"numbers as text":   {`{"timeout_seconds":"30","stream":"true"}`, input{TimeoutSeconds: 30, Stream: true}},
		"whole float":       {`{"timeout_seconds":30.0}`, input{TimeoutSeconds: 30}},
		"text from scalars": {`{"cmd":["sleep",1,true]}`, input{Cmd: []string{"sleep", "1", "true"}}},
		"env of scalars":    {`{"env":{"N":1.50,"B":false}}`, input{Env: TextMap{"N": "1.50", "B": "false"}}},
		"env as list":       {`{"env":["A=b=c","D="]}`, input{Env: TextMap{"A": "b=c", "D": ""}}},
		"env as pairs":      {`{"env":[{"name":"A","value":"b"},{"key":"C","value":1}]}`, input{Env: TextMap{"A": "b", "C": "1"}}},
		"env as text":       {`{"env":"{\"A\":\"b\"}"}`, input{Env: TextMap{"A": "b"}}},
		"list as text":      {`{"cmd":" [\"python3\",1]"}`, input{Cmd: []string{"python3", "1"}}},
		"JSON in a text":    {`{"command":"[\"a\"]","stdin":"{}"}`, input{Command: `["a"]`, Stdin: new("{}")}},
		"arguments as text": {`"{\"command\":\"x\"}"`, input{Command: "x"}},
	} {
		tt.args = strings.Replace(tt.args, "{", `{"path":"p",`, 1)
		if name == "arguments as text" {
			tt.args = `"{\"path\":\"p\",\"command\":\"x\"}"`
		}
		tt.want.Path = "p"
		got, fail := DecodeInput[input]([]byte(tt.args))
		if fail != nil {
			t.Errorf("%s: %v", name, fail)
			continue
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(input{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, args := range []string{``, `null`, `{}`, `""`} {
		if _, fail := DecodeInput[struct{}]([]byte(args)); fail != nil {
			t.Errorf("no arguments as %q: %v", args, fail)
		}
	}
}

func TestDecodeInputErrors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ args, want string }{
		"missing":          {`{}`, `path is required`},
		"empty":            {`{"path":""}`, `path is empty`},
		"unknown":          {`{"comand":"x"}`, `unknown argument "comand", did you mean "command"?`},
		"unknown far":      {`{"colour":"x"}`, `unknown argument "colour", available: sandbox_id, path, cmd, paths, command`},
		"cmd as text":      {`{"cmd":"ls -l"}`, `cmd must be a list of strings, not text; pass one line for the shell as command, or a list, for example ["ls", "-l"]`},
		"half a list":      {`{"argv":"[\"a\""}`, `cmd must be a list of strings, not text; pass one line for the shell`},
		"list and more":    {`{"cmd":"[\"a\"] b"}`, `cmd must be a list of strings, not text`},
		"list and bracket": {`{"cmd":"[\"a\"]]"}`, `cmd must be a list of strings, not text`},
		"paths as text":    {`{"paths":"a"}`, `paths must be a list of strings, not text; for example ["a", "b"]`},
		"command as list":  {`{"command":["ls"]}`, `command must be text, not a list; pass a list of arguments as cmd`},
		"object as text":   {`{"path":{"a":1}}`, `path must be text, not an object; write it as a JSON string`},
		"wrong number":     {`{"timeout_seconds":"soon"}`, `timeout_seconds must be a whole number, not text`},
		"fraction":         {`{"timeout_seconds":1.5}`, `timeout_seconds must be a whole number, not the number 1.5`},
		"no time":          {`{"timeout":"0"}`, `timeout_seconds must be 1 to 3600, not 0`},
		"nested in list":   {`{"cmd":["a",["b"]]}`, `cmd[1] must be text, not a list`},
		"env of objects":   {`{"env":{"A":{}}}`, `env: the value of "A" must be text, not an object`},
		"env item":         {`{"env":["A"]}`, `env: item 0 must be "name=value" or an object with name and value`},
		"env number":       {`{"env":5}`, `env: must be an object of names to texts, not the number 5`},
		"list":             {`[1]`, `the arguments must be a JSON object`},
		"alias and target": {`{"timeout":1,"timeout_seconds":2}`, `unknown argument "timeout", did you mean "timeout_seconds"?`},
		"two aliases":      {`{"timeout_secs":900,"timeout":5}`, `unknown argument "timeout_secs", did you mean`},
		"several":          {`{"zzz":1,"cmd":5}`, `unknown argument "zzz", available:`},
	} {
		_, fail := DecodeInput[input]([]byte(tt.args))
		if fail == nil || fail.Code != CodeInvalid || !strings.Contains(fail.Message, tt.want) {
			t.Errorf("%s: %v, want %q", name, fail, tt.want)
		}
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	bounds := []Bound{{Name: "timeout_seconds", Least: 1, Most: 3600}, {Name: "yield_ms"}}
	for want, in := range map[string]input{
		"": {TimeoutSeconds: 3600},
		"timeout_seconds must be 1 to 3600, not 3601": {TimeoutSeconds: 3601},
		"timeout_seconds must be 1 to 3600, not -1":   {TimeoutSeconds: -1},
		"yield_ms is -5, must not be negative":        {YieldMS: new(int64(-5))},
	} {
		got := ""
		if fail := CheckBounds(&in, bounds); fail != nil {
			got = fail.Message
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func FuzzDecodeInput(f *testing.F) {
	for _, seed := range []string{`{"cmd":["a"]}`, `{"env":[{"name":"A","value":"b"}]}`, `"{}"`, `{"stdin":null}`, `{"yield_ms":1e3}`, `[]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, args string) {
		if _, fail := DecodeInput[input]([]byte(args)); fail != nil && (fail.Message == "" || fail.Remediation == "" || !utf8.ValidString(fail.Message)) {
			t.Errorf("%q: %+v", args, fail)
		}
	})
}
