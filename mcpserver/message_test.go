package mcpserver_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/workcell-dev/workcell/mcpserver"
)

func TestMessages(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		message string
		code    int64
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, 0},
		{` {"jsonrpc":"2.0","id":"a","method":"ping","params":{}} `, 0},
		{`{"jsonrpc":"2.0","method":"x"}`, 0},
		{`{"jsonrpc":"2.0","id":1,"method":"no/such"}`, jsonrpc.CodeMethodNotFound},
		{`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, jsonrpc.CodeMethodNotFound},
		{`{"jsonrpc":"2.0","id":1,"result":{}}`, 0},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`, 0},
		{`{"jsonrpc":"2.0","id":5,"result":{},"error":{}}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":1}`, jsonrpc.CodeInvalidRequest},
		{`{"id":1,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":2.0,"id":1,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":9007199254740992,"method":"ping"}`, 0},
		{`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":1e3,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":true,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":[1],"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 300) + `","method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":1,"method":1}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":1,"method":null}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}`, 0},
		{`{"jsonrpc":"2.0","method":"notifications/initialized","params":null}`, 0},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"x"}`, jsonrpc.CodeInvalidParams},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat(`{"a":`, 62) + `1` + strings.Repeat(`}`, 62) + `}`, 0},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat(`{"a":`, 70) + `1` + strings.Repeat(`}`, 70) + `}`, jsonrpc.CodeInvalidRequest},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"brackets":"` + strings.Repeat("[{", 1000) + `\"[["}}`, 0},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"} {}`, jsonrpc.CodeParseError},
		{"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xff\"}", jsonrpc.CodeParseError},
		{"\x00", jsonrpc.CodeParseError}, {`nul`, jsonrpc.CodeParseError}, {`{`, jsonrpc.CodeParseError}, {``, jsonrpc.CodeParseError},
		{`null`, jsonrpc.CodeInvalidRequest}, {`"text"`, jsonrpc.CodeInvalidRequest}, {`17`, jsonrpc.CodeInvalidRequest},
		{`[]`, jsonrpc.CodeInvalidRequest}, {`{}`, jsonrpc.CodeInvalidRequest},
	} {
		if code, text := mcpserver.Fault([]byte(tc.message)); code != tc.code {
			t.Errorf("%.80s: %d %s, want %d", tc.message, code, text, tc.code)
		}
	}
}

// FuzzMessage verifies that every rejected message gets one of the four codes, and every accepted message is a JSON
// object.
func FuzzMessage(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `[]`, `{"id":1,"id":2}`, `{"jsonrpc":"2.0","id":null,"error":{}}`, `{"a":"\"`, `{}`, `"`, `{"jsonrpc":"2.0","id":1.0,"method":"x","params":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		switch code, text := mcpserver.Fault(data); code {
		case 0:
			var object map[string]any
			if err := json.Unmarshal(data, &object); err != nil {
				t.Errorf("%q is taken: %v", data, err)
			}
		case jsonrpc.CodeParseError, jsonrpc.CodeInvalidRequest, jsonrpc.CodeInvalidParams, jsonrpc.CodeMethodNotFound:
			if text == "" {
				t.Errorf("%q: code %d without a text", data, code)
			}
		default:
			t.Errorf("%q: code %d", data, code)
		}
	})
}
