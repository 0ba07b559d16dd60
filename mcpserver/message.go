package mcpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Limits of one message in addition to the size. Without a limit on the parts, decoding needs many times the message
// size in memory.
const (
	maxDepth = 64
	maxParts = 100_000
	maxID    = 1 << 53 // above this, clients with floats confuse ids
	maxIDLen = 256
)

// methods are the supported requests. The SDK would answer further methods, for example for prompts. For unknown
// methods over HTTP, it sends no JSON-RPC answer.
var methods = []string{
	methodInitialize, "ping", "server/discover", "logging/setLevel", "tools/list", "tools/call",
	"resources/list", "resources/templates/list", "resources/read", "subscriptions/listen",
}

// fault is a JSON-RPC error for an invalid message.
type fault struct {
	code int64
	text string
	id   jsonrpc.ID // id of the request, if it was readable
	// mute means the invalid message is an answer or a notification, which gets no answer.
	mute bool
}

func invalid(format string, args ...any) *fault {
	return &fault{code: jsonrpc.CodeInvalidRequest, text: fmt.Sprintf(format, args...)}
}

// encode returns the JSON-RPC answer. If the request's id was unreadable, the id is null, as JSON-RPC requires.
func (f *fault) encode() []byte {
	out, _ := json.Marshal(struct { // strings and numbers, so the error is always nil
		Version string         `json:"jsonrpc"`
		ID      any            `json:"id"`
		Error   *jsonrpc.Error `json:"error"`
	}{"2.0", f.id.Raw(), &jsonrpc.Error{Code: f.code, Message: f.text}})
	return out
}

// decodeMessage parses one message and rejects everything outside of JSON-RPC and MCP. It is stricter than the SDK. For
// example, the SDK converts the id 1.5 to 1, which belongs to another request.
func decodeMessage(data []byte) (jsonrpc.Message, *fault) {
	if f := checkForm(data); f != nil {
		return nil, f
	}
	fields, f := envelope(data)
	if f != nil {
		return nil, f
	}
	id, f := idOf(fields["id"])
	var msg jsonrpc.Message
	if f == nil {
		msg, f = messageOf(id, fields, data)
	}
	if f != nil {
		f.id = id
		f.mute = f.mute || fields["method"] == nil && (fields["result"] != nil || fields["error"] != nil)
		return nil, f
	}
	return msg, nil
}

// checkForm checks the bytes before they are decoded.
func checkForm(data []byte) *fault {
	if !utf8.Valid(data) {
		return &fault{code: jsonrpc.CodeParseError, text: "the message is not UTF-8"}
	}
	depth, parts := 0, 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			if depth++; depth > maxDepth {
				return invalid("the message is nested deeper than %d", maxDepth)
			}
		case '}', ']':
			depth--
		case ',':
			if parts++; parts > maxParts {
				return invalid("the message has more than %d values", maxParts)
			}
		}
	}
	if !json.Valid(data) {
		return &fault{code: jsonrpc.CodeParseError, text: "the message is not JSON"}
	}
	return nil
}

// envelope returns the fields of a message, which must be valid JSON. It rejects duplicate fields, because different
// parsers use different duplicates.
func envelope(data []byte) (map[string]json.RawMessage, *fault) {
	dec := json.NewDecoder(bytes.NewReader(data))
	switch first, _ := dec.Token(); first {
	case json.Delim('{'):
	case json.Delim('['):
		return nil, invalid("batches are not supported; send each message separately")
	default:
		return nil, invalid("the message is not an object")
	}
	fields := map[string]json.RawMessage{}
	for dec.More() {
		name, _ := dec.Token()
		key := fmt.Sprint(name)
		if _, twice := fields[key]; twice {
			return nil, invalid("duplicate field %q", sanitize.Clip(key))
		}
		var value json.RawMessage
		_ = dec.Decode(&value) // the message is valid JSON
		fields[key] = value
	}
	return fields, nil
}

// idOf parses the id: a string, a whole number, or nothing for a notification.
func idOf(raw json.RawMessage) (jsonrpc.ID, *fault) {
	var value any
	switch {
	case raw == nil:
		return jsonrpc.ID{}, nil
	case raw[0] == '"':
		var text string
		if json.Unmarshal(raw, &text) != nil || len(text) > maxIDLen {
			return jsonrpc.ID{}, invalid("id is longer than %d bytes", maxIDLen)
		}
		value = text
	default:
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil || n > maxID || n < -maxID {
			return jsonrpc.ID{}, invalid("id must be a string or a whole number up to 2^53")
		}
		value = float64(n)
	}
	id, _ := jsonrpc.MakeID(value) // fails only for other types
	return id, nil
}

// messageOf checks the remaining fields and creates the message. It builds requests from the parsed fields, because
// decoding them again in the SDK costs a tenth of a call.
func messageOf(id jsonrpc.ID, fields map[string]json.RawMessage, data []byte) (jsonrpc.Message, *fault) {
	var version, method string
	if json.Unmarshal(fields["jsonrpc"], &version) != nil || version != "2.0" {
		return nil, invalid(`jsonrpc must be "2.0"`)
	}
	params := fields["params"]
	if string(params) == "null" { // some clients send it instead of no params
		params = nil
	}
	switch raw := fields["method"]; {
	case raw == nil && fields["id"] == nil:
		return nil, invalid("method or id is required")
	case raw == nil && (fields["result"] == nil) == (fields["error"] == nil):
		return nil, invalid("a response has either a result or an error")
	case raw == nil:
		msg, err := jsonrpc.DecodeMessage(data)
		if err != nil {
			return nil, invalid("not a JSON-RPC message")
		}
		return msg, nil
	case json.Unmarshal(raw, &method) != nil || method == "":
		return nil, invalid("method must be a string")
	case fields["id"] != nil && !slices.Contains(methods, method):
		return nil, &fault{code: jsonrpc.CodeMethodNotFound, text: fmt.Sprintf("unknown method %q", sanitize.Clip(method))}
	case params != nil && params[0] != '{':
		return nil, &fault{code: jsonrpc.CodeInvalidParams, text: "params must be an object", mute: fields["id"] == nil}
	}
	return &jsonrpc.Request{ID: id, Method: method, Params: params}, nil
}
