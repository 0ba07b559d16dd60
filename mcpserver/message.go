package mcpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Bounds of one message beside its size: decoding costs many times the bytes when there is no bound on the parts.
const (
	maxDepth = 64
	maxParts = 100_000
	maxID    = 1 << 53 // beyond it, clients that keep numbers as floats mix ids up
	maxIDLen = 256
)

// methods are the requests that this server answers. The SDK would answer some more, as if there were prompts, and refuses
// an unknown one over HTTP without a JSON-RPC answer.
var methods = []string{
	methodInitialize, "ping", "server/discover", "logging/setLevel", "tools/list", "tools/call",
	"resources/list", "resources/templates/list", "resources/read", "subscriptions/listen",
}

// fault is a JSON-RPC error about a message.
type fault struct {
	code int64
	text string
	id   jsonrpc.ID // of the request, when it can be read
	// mute: the message is an answer itself, and answers are never answered.
	mute bool
}

var errTooLong = &fault{code: jsonrpc.CodeInvalidRequest, text: fmt.Sprintf("the message is longer than %d bytes", MaxMessageBytes)}

func invalid(format string, args ...any) *fault {
	return &fault{code: jsonrpc.CodeInvalidRequest, text: fmt.Sprintf(format, args...)}
}

// encode returns the answer. Where the id cannot be read it is null, as JSON-RPC wants.
func (f *fault) encode() []byte {
	out, err := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		ID      any            `json:"id"`
		Error   *jsonrpc.Error `json:"error"`
	}{"2.0", f.id.Raw(), &jsonrpc.Error{Code: f.code, Message: f.text}})
	if err != nil {
		panic("mcpserver: a fault that cannot be encoded: " + err.Error()) // only strings and numbers: a bug in this file
	}
	return out
}

// decodeMessage reads one message and refuses what JSON-RPC and MCP do not allow. It is strict where the SDK guesses: an
// id of 1.5 would become 1 there, and belong to another request.
func decodeMessage(data []byte) (jsonrpc.Message, *fault) {
	if f := checkForm(data); f != nil {
		return nil, f
	}
	fields, f := envelope(data)
	if f != nil {
		return nil, f
	}
	id, f := idOf(fields)
	if f == nil {
		f = checkFields(fields)
	}
	if f != nil {
		f.id = id
		f.mute = isAnswer(fields)
		return nil, f
	}
	msg, err := jsonrpc.DecodeMessage(data)
	if err != nil {
		return nil, &fault{code: jsonrpc.CodeInvalidRequest, text: "not a JSON-RPC message", id: id, mute: isAnswer(fields)}
	}
	return msg, nil
}

func isAnswer(fields map[string]json.RawMessage) bool {
	return fields["method"] == nil && (fields["result"] != nil || fields["error"] != nil)
}

// checkForm looks at the bytes before anything is decoded.
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
				return invalid("the message has more than %d parts", maxParts)
			}
		}
	}
	if !json.Valid(data) {
		return &fault{code: jsonrpc.CodeParseError, text: "the message is not JSON"}
	}
	return nil
}

// envelope returns the fields of a message. A field that is there twice is refused: of two readers each may take another.
func envelope(data []byte) (map[string]json.RawMessage, *fault) {
	data = bytes.TrimSpace(data)
	if data[0] == '[' {
		return nil, invalid("batches are not supported; send the messages one by one")
	}
	if data[0] != '{' {
		return nil, invalid("the message is not an object")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if _, err := dec.Token(); err != nil {
		return nil, invalid("the message is not an object")
	}
	fields := map[string]json.RawMessage{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, invalid("the message is not an object")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, invalid("the message is not an object")
		}
		key, ok := name.(string)
		if _, twice := fields[key]; twice || !ok {
			return nil, invalid("the field %q is there twice", clip(key))
		}
		fields[key] = value
	}
	if _, err := dec.Token(); err != nil && err != io.EOF {
		return nil, invalid("the message is not an object")
	}
	return fields, nil
}

// idOf reads the id: a string or a whole number, or nothing for a notification.
func idOf(fields map[string]json.RawMessage) (jsonrpc.ID, *fault) {
	raw, ok := fields["id"]
	if !ok {
		return jsonrpc.ID{}, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		if len(text) > maxIDLen {
			return jsonrpc.ID{}, invalid("the id is longer than %d bytes", maxIDLen)
		}
		id, err := jsonrpc.MakeID(text)
		if err != nil {
			return jsonrpc.ID{}, invalid("the id is not usable")
		}
		return id, nil
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n > maxID || n < -maxID {
		return jsonrpc.ID{}, invalid("the id must be a string or a whole number up to 2^53")
	}
	id, err := jsonrpc.MakeID(float64(n))
	if err != nil {
		return jsonrpc.ID{}, invalid("the id is not usable")
	}
	return id, nil
}

// checkFields checks the rest of the envelope.
func checkFields(fields map[string]json.RawMessage) *fault {
	var version, method string
	if json.Unmarshal(fields["jsonrpc"], &version) != nil || version != "2.0" {
		return invalid(`jsonrpc must be "2.0"`)
	}
	raw, isCall := fields["method"]
	if !isCall {
		if _, ok := fields["id"]; !ok {
			return invalid("neither method nor id")
		}
		_, hasResult := fields["result"]
		_, hasError := fields["error"]
		if hasResult == hasError {
			return invalid("a response has either a result or an error")
		}
		return nil
	}
	if json.Unmarshal(raw, &method) != nil || method == "" || raw[0] != '"' {
		return invalid("method must be a string")
	}
	if _, hasID := fields["id"]; hasID && !slices.Contains(methods, method) {
		return &fault{code: jsonrpc.CodeMethodNotFound, text: fmt.Sprintf("there is no method %q", clip(method))}
	}
	if params, ok := fields["params"]; ok && bytes.TrimSpace(params)[0] != '{' {
		return &fault{code: jsonrpc.CodeInvalidParams, text: "params must be an object"}
	}
	return nil
}
