package hosttools_test

import (
	"context"
	"encoding/json"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
)

// nowhere accepts and discards files.
type nowhere struct{}

func (nowhere) WriteFile(_ context.Context, _ string, r io.Reader, _ sandbox.WriteFileOptions) (sandbox.FileInfo, error) {
	_, err := io.Copy(io.Discard, r)
	return sandbox.FileInfo{}, err
}

// describe calls a tool that returns data, and returns the description of the saved file.
func describe(t testing.TB, data string) (saved hosttools.Saved) {
	t.Helper()
	give := tool("give", func(context.Context, hosttools.Call) (hosttools.Result, error) {
		return hosttools.Result{Data: json.RawMessage(data)}, nil
	})
	r, err := hosttools.New(nil, hosttools.Static("app", give))
	checktest.Must(t, err)
	s, err := r.Set(t.Context(), hosttools.Grant{Rules: allow("app.give")})
	checktest.Must(t, err)
	a := s.Access(hosttools.Command{Files: nowhere{}})
	reply := a.Call(t.Context(), "ex1", trace.SpanContext{}, hosttools.Request{Tool: "app.give", Save: "x"})
	if reply.Error != nil {
		t.Fatal(reply.Error)
	}
	var out map[string]hosttools.Saved
	checktest.Must(t, json.Unmarshal(reply.Data, &out))
	return out["$saved"]
}

func TestSavedIsDescribed(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]hosttools.Saved{
		` {} `:                      {Kind: "object"},
		`{"a":{"b":[1,2,{"c":3}]}}`: {Kind: "object", Length: 1, Keys: []string{"a"}},
		"{ \"a\" : \"x,\\\"]}\" ,\n\"\\u00e9,\":[{},{}]}": {Kind: "object", Length: 2, Keys: []string{"a", "é,"}},
		`[ ]`:                          {Kind: "array"},
		`[[],[]]`:                      {Kind: "array", Length: 2},
		`["]",",","\\",{"a":1,"b":2}]`: {Kind: "array", Length: 4},
		`"été"`:                        {Kind: "string", Length: 3},
		`"\ud83d\ude00\n"`:             {Kind: "string", Length: 2},
		`-1.5e3`:                       {Kind: "number"},
		`false`:                        {Kind: "boolean"},
		`null`:                         {Kind: "null"},
	} {
		want.Path, want.Bytes, want.Head = "/workspace/x", len(data), data
		if diff := cmp.Diff(want, describe(t, data)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", data, diff)
		}
	}
}

// FuzzSaved verifies that the description of a saved result agrees with a JSON decoder.
func FuzzSaved(f *testing.F) {
	f.Add([]byte(`{"a":[1,"\"}",{}],"b":{"c":[]}}`))
	f.Add([]byte(` [ "\\" , [ ] ] `))
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		if json.Unmarshal(data, &v) != nil {
			return
		}
		saved := describe(t, string(data))
		switch v := v.(type) {
		case map[string]any: // keys may be duplicates
			if saved.Kind != "object" || saved.Length < len(v) || len(saved.Keys) > saved.Length {
				t.Errorf("%q is %+v", data, saved)
			}
		case []any:
			if saved.Kind != "array" || saved.Length != len(v) || saved.Keys != nil {
				t.Errorf("%q is %+v", data, saved)
			}
		}
	})
}

// TestResultFitsItsSchema verifies that a result that does not fit the output schema of its tool is a failure.
func TestResultFitsItsSchema(t *testing.T) {
	t.Parallel()
	add := tool("add", func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
		return hosttools.Result{Data: c.Args}, nil
	})
	add.Output = obj{"type": "object", "properties": obj{"sum": obj{"type": "number"}}, "required": []any{"sum"}}
	s := set(t, registry(t, nil, hosttools.Static("app", add)), hosttools.Grant{Rules: allow("app.add")})
	a := s.Access(hosttools.Command{})
	if r := call(t, a, "app_add", `{"sum":3}`); r.Error != nil || string(r.Data) != `{"sum":3}` {
		t.Errorf("%s, %v", r.Data, r.Error)
	}
	const want = `tool_failed: the result of app.add does not fit its schema: type: many has type "string", want "number"`
	if r := call(t, a, "app_add", `{"sum":"many"}`); r.Error == nil || r.Error.Error() != want {
		t.Errorf("%s, %v", r.Data, r.Error)
	}
}
