package mcpsource

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Limits of a message. A message above maxSkipped ends the connection.
const (
	maxMessage = 4 << 20 // bytes
	maxDepth   = 1000
	maxSkipped = 256 << 20
	maxWord    = 64 // examined bytes of a key or an id
)

// codeTooLarge is the JSON-RPC error code for a dropped answer.
const codeTooLarge = -32098

// bounded reads the output of a server. It replaces a too large or too deep message with an error for the call, to
// prevent the MCP SDK from closing the connection and failing all other calls.
//
// It tracks only the nesting of JSON. The reader must check whether the message is valid JSON.
type bounded struct {
	io.ReadCloser
	stray func(line []byte) // gets each line of a program that is not a message; nil for HTTP

	in, out []byte // read buffer; data ready for the reader
	err     error

	message           []byte
	size, depth       int
	inString, escaped bool
	why               string // if not empty, the reason for dropping the message
	word              []byte // current or latest string, truncated
	key               string // current top-level field of the message
	id                []byte
	isRequest         bool
}

func (m *bounded) Read(p []byte) (int, error) {
	for len(m.out) == 0 && m.err == nil {
		if m.in == nil {
			m.in = make([]byte, 64<<10)
		}
		var n int
		n, m.err = m.ReadCloser.Read(m.in)
		m.out = m.out[:0]
		for rest := m.in[:n]; len(rest) > 0; {
			rest = rest[m.take(rest):]
		}
		if m.size > maxSkipped {
			m.err = errTooLarge
		}
		switch {
		case m.err == nil:
		case m.stray != nil:
			m.endLine()
		default: // a message without an end is not JSON
			m.out = append(m.out, m.message...)
		}
	}
	if len(m.out) == 0 {
		return 0, m.err
	}
	n := copy(p, m.out)
	m.out = m.out[n:]
	return n, nil
}

// take processes the next byte, or the next bytes of a string, and returns their number.
func (m *bounded) take(rest []byte) int {
	n, b := 1, rest[0]
	switch {
	case m.stray != nil && b == '\n':
		m.endLine()
		return 1
	case m.escaped:
		m.escaped = false
	case m.inString && b == '\\':
		m.escaped = true
	case b == '"' && m.depth > 0:
		m.inString = !m.inString
		if m.inString {
			m.word = m.word[:0]
		}
	case m.inString:
		part := rest[:min(len(rest), 256)] // limited, because both searches may stop at the same early byte
		if n = bytes.IndexByte(part, '"'); n < 0 {
			n = len(part)
		}
		if i := bytes.IndexByte(part[:n], '\\'); i >= 0 {
			n = i
		}
		if i := bytes.IndexByte(part[:n], '\n'); i >= 0 && m.stray != nil {
			n = i
		}
		m.word = append(m.word, rest[:min(n, maxWord-len(m.word))]...)
	case b == '{' || b == '[':
		m.depth++
	case (b == '}' || b == ']') && m.depth > 0:
		if m.depth--; m.depth == 0 && m.stray == nil {
			m.keep(rest[:1])
			m.end()
			return 1
		}
	case m.depth == 1 && b == ',':
		m.key = ""
	case m.depth == 1 && b == ':':
		m.key = string(m.word)
		m.isRequest = m.isRequest || m.key == "method"
		m.keep(rest[:1])
		return 1
	}
	if m.depth == 0 && m.stray == nil {
		m.out = append(m.out, b)
		return 1
	}
	if m.depth == 1 && m.key == "id" {
		m.id = append(m.id, rest[:min(n, maxWord-len(m.id))]...)
	}
	m.keep(rest[:n])
	return n
}

// keep appends bytes to the message. If the message exceeds a limit, keep drops it.
func (m *bounded) keep(b []byte) {
	m.size += len(b)
	switch {
	case m.why != "":
	case m.size > maxMessage:
		m.why, m.message = fmt.Sprintf("larger than %d MiB", maxMessage>>20), nil
	case m.depth > maxDepth:
		m.why, m.message = fmt.Sprintf("nested more than %d levels deep", maxDepth), nil
	default:
		m.message = append(m.message, b...)
	}
}

// end passes on a complete message, or the error for a dropped answer. Dropped requests and notifications have no
// replacement.
func (m *bounded) end() {
	if m.why == "" {
		m.out = append(m.out, exact(m.message)...)
	} else if !m.isRequest && json.Valid(m.id) {
		m.out = fmt.Appendf(m.out, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"%s"}}`, m.id, codeTooLarge, m.why)
	}
	m.reset()
}

func (m *bounded) reset() {
	m.message, m.size, m.why, m.key, m.id, m.isRequest = m.message[:0], 0, "", "", m.id[:0], false
}

// endLine passes on the message of a line, and drops other lines.
func (m *bounded) endLine() {
	line := bytes.TrimSpace(m.message)
	m.message = line
	switch _, err := jsonrpc.DecodeMessage(line); {
	case m.why != "", (err == nil || bytes.HasPrefix(line, []byte("[{"))) && json.Valid(line):
		m.end()
		m.out = append(m.out, '\n')
	case len(line) > 0:
		m.stray(line[:min(len(line), maxStderrLine)])
	}
	m.depth, m.inString, m.escaped = 0, false, false
	m.reset()
}

// exactKey is the only key of structured content from exact.
const exactKey = "workcell.exact"

// exact replaces the structured content of a result by an object with its bytes, because the MCP SDK would round large
// numbers.
func exact(message []byte) []byte {
	var outer, result map[string]json.RawMessage
	if !bytes.Contains(message, []byte(`"structuredContent"`)) || json.Unmarshal(message, &outer) != nil ||
		json.Unmarshal(outer["result"], &result) != nil {
		return message
	}
	data, ok := result["structuredContent"]
	if !ok || string(data) == "null" {
		return message
	}
	result["structuredContent"] = encode(map[string][]byte{exactKey: data})
	outer["result"] = encode(result)
	return encode(outer)
}

// encode returns valid JSON of about the same size.
func encode(v any) []byte {
	data, _ := sanitize.JSON(v) // v has only bytes and valid JSON
	return data
}

// structured returns structured content, with the numbers of the server if exact replaced it.
func structured(content any) (json.RawMessage, error) {
	if object, ok := content.(map[string]any); ok && len(object) == 1 {
		text, _ := object[exactKey].(string)
		if data, err := base64.StdEncoding.DecodeString(text); err == nil && len(data) > 0 {
			d := json.NewDecoder(bytes.NewReader(data))
			d.UseNumber()
			if err := d.Decode(&content); err != nil {
				return nil, err
			}
		}
	}
	return json.Marshal(content)
}
