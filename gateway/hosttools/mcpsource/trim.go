package mcpsource

import (
	"bytes"
	"fmt"
	"io"
)

// Bounds of a tool as a server lists it. What is within them may still be more than the registry takes.
const (
	maxToolBytes = 1 << 20
	maxToolDepth = 100
	maxSkipped   = 256 << 20 // bytes of one tool that are read to find its end
	maxWord      = 64        // bytes of a key or name that are looked at
)

// trimmed is what a server writes, with each tool of its lists that is too large or too deep replaced by null. Such a tool would
// make the message unreadable, and take the server's other tools, and the calls under way, along.
//
// It follows the nesting of JSON alone: whether it is JSON is for its reader to find out.
type trimmed struct {
	r    io.Reader
	note func(name, why string) // is called for each tool that is left out

	in, out []byte // a buffer; what is ready
	err     error

	depth             int
	inString, escaped bool
	word              []byte         // the string being read, or the last one, cut
	keys              [depths]string // of the objects around, by their depth

	inTool  bool
	tool    []byte // nil when it is left out
	why     string // it is
	name    string
	skipped int
}

// Depths of a list: {"result": {"tools": [{…}]}}.
const (
	depthMessage = 1 + iota
	depthResult
	depthTools
	depthTool
	depths
)

func (t *trimmed) Read(p []byte) (int, error) {
	for len(t.out) == 0 && t.err == nil {
		if t.in == nil {
			t.in = make([]byte, 64<<10)
		}
		var n int
		n, t.err = t.r.Read(t.in)
		t.out = t.out[:0]
		for rest := t.in[:n]; len(rest) > 0; {
			rest = rest[t.take(rest):]
		}
		if t.skipped > maxSkipped {
			t.err = errTooLarge
		}
	}
	if len(t.out) == 0 {
		return 0, t.err
	}
	n := copy(p, t.out)
	t.out = t.out[n:]
	return n, nil
}

// take takes the next byte, or the next ones of a string, and returns how many.
func (t *trimmed) take(rest []byte) int {
	n := 1
	switch b := rest[0]; {
	case t.inString:
		n = t.text(rest)
	case b == '"':
		t.inString, t.word = true, t.word[:0]
	case b == ':' && t.depth < depths:
		t.keys[t.depth] = string(t.word)
	case b == '{' || b == '[':
		t.depth++
		if t.depth < depths {
			t.keys[t.depth] = ""
		}
		if t.depth == depthTool && t.keys[depthMessage] == "result" && t.keys[depthResult] == "tools" {
			t.inTool, t.tool, t.why, t.name, t.skipped = true, []byte{}, "", "", 0
		}
	case b == '}' || b == ']':
		t.depth = max(t.depth-1, 0)
	}
	if !t.inTool {
		t.out = append(t.out, rest[:n]...)
		return n
	}
	t.keep(rest[:n])
	if t.depth == depthTools {
		t.end()
	}
	return n
}

// text takes bytes of a string and returns how many.
func (t *trimmed) text(rest []byte) int {
	n := 1
	switch b := rest[0]; {
	case t.escaped:
		t.escaped = false
	case b == '\\':
		t.escaped = true
	case b == '"':
		t.inString = false
		if t.inTool && t.depth == depthTool && t.keys[depthTool] == "name" {
			t.name, t.keys[depthTool] = string(t.word), ""
		}
		return n
	default:
		if n = bytes.IndexAny(rest, "\"\\"); n < 0 {
			n = len(rest)
		}
	}
	t.word = append(t.word, rest[:min(n, maxWord-len(t.word))]...)
	return n
}

// keep keeps bytes of a tool unless that is left out.
func (t *trimmed) keep(b []byte) {
	switch {
	case t.why != "":
		t.skipped += len(b)
		return
	case t.depth > maxToolDepth:
		t.why = fmt.Sprintf("it is nested more than %d levels deep", maxToolDepth)
	case len(t.tool)+len(b) > maxToolBytes:
		t.why = fmt.Sprintf("it is larger than %d KiB", maxToolBytes>>10)
	default:
		t.tool = append(t.tool, b...)
		return
	}
	t.tool = nil
}

// end hands on a tool.
func (t *trimmed) end() {
	t.inTool = false
	if t.why == "" {
		t.out = append(t.out, t.tool...)
		return
	}
	t.out = append(t.out, "null"...)
	t.note(t.name, t.why)
}
