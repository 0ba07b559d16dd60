package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
)

// Envelope is the head of a request.
type Envelope struct {
	Op  Op              `json:"op"`
	Arg json.RawMessage `json:"arg,omitempty"`
}

// bodyFields is implemented by messages with fields in the body: bytes, and strings with any bytes (not only valid
// UTF-8). JSON only supports UTF-8, so the tags of these fields exclude them from the head.
type bodyFields interface {
	// fields returns pointers to []byte, string, or []string, in the order of the body.
	fields() []any
}

func (s *Spawn) fields() []any        { return []any{&s.Argv, &s.Env, &s.Dir} }
func (r *RunRequest) fields() []any   { return append(r.Spawn.fields(), &r.Stdin) }
func (r *StdinRequest) fields() []any { return []any{&r.Data} }
func (r *RunResult) fields() []any {
	return []any{&r.Stdout.Head, &r.Stdout.Tail, &r.Stderr.Head, &r.Stderr.Tail}
}
func (r *ReadResult) fields() (all []any) {
	for i := range r.Chunks {
		all = append(all, &r.Chunks[i].Data)
	}
	return all
}
func (r *ListResult) fields() (all []any) {
	for i := range r.Entries {
		all = append(all, &r.Entries[i].Path)
	}
	return all
}
func (i *FileInfo) fields() []any       { return []any{&i.Path} }
func (r *FileGetRequest) fields() []any { return []any{&r.Path} }
func (r *FilePutRequest) fields() []any { return []any{&r.Path} }
func (r *PathRequest) fields() []any    { return []any{&r.Path} }
func (r *ListRequest) fields() []any    { return []any{&r.Path} }
func (r *RenameRequest) fields() []any  { return []any{&r.From, &r.To} }
func (r *DigestRequest) fields() []any  { return []any{&r.Paths} }

// AppendRequest appends the frame of a request.
func AppendRequest(dst []byte, op Op, msg any) ([]byte, error) {
	arg, body, err := encode(msg)
	if err != nil {
		return dst, err
	}
	head, err := json.Marshal(Envelope{Op: op, Arg: arg})
	if err != nil {
		return dst, err
	}
	return AppendFrame(dst, Frame{Kind: KindRequest, Head: head, Body: body})
}

// AppendAnswer appends the frame of a response.
func AppendAnswer(dst []byte, msg any) ([]byte, error) { return appendMessage(dst, KindAnswer, msg) }

// AppendError appends the frame of an error.
func AppendError(dst []byte, e *Error) ([]byte, error) { return appendMessage(dst, KindError, e) }

func appendMessage(dst []byte, kind FrameKind, msg any) ([]byte, error) {
	head, body, err := encode(msg)
	if err != nil {
		return dst, err
	}
	return AppendFrame(dst, Frame{Kind: kind, Head: head, Body: body})
}

// encode returns the head and body of a message or of a pointer to a message.
func encode(msg any) (head, body []byte, err error) {
	if v := reflect.ValueOf(msg); v.Kind() != reflect.Pointer { // only pointers implement bodyFields
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		msg = p.Interface()
	}
	if head, err = json.Marshal(msg); err != nil {
		return nil, nil, err
	}
	if m, ok := msg.(bodyFields); ok {
		for _, f := range m.fields() {
			body = appendField(body, f)
		}
	}
	return head, body, nil
}

// appendField appends a field: bytes or a string after a 4-byte length, or a list of strings after a 4-byte count.
func appendField(dst []byte, field any) []byte {
	switch f := field.(type) {
	case *[]byte:
		return append(binary.BigEndian.AppendUint32(dst, uint32(len(*f))), *f...)
	case *string:
		return append(binary.BigEndian.AppendUint32(dst, uint32(len(*f))), *f...)
	case *[]string:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(*f)))
		for i := range *f {
			dst = appendField(dst, &(*f)[i])
		}
	}
	return dst
}

// Decode decodes a message's head into msg. If the message has fields in the body, it also decodes the body. The fields
// share memory with body.
func Decode(head, body []byte, msg any) error {
	if len(head) > 0 {
		if err := json.Unmarshal(head, msg); err != nil {
			return fmt.Errorf("%w: %v", ErrFrame, err)
		}
	}
	m, ok := msg.(bodyFields)
	if !ok {
		return nil
	}
	r := bodyReader{rest: body}
	for _, f := range m.fields() {
		switch f := f.(type) {
		case *[]byte:
			if b := r.next(); len(b) > 0 {
				*f = b
			}
		case *string:
			*f = string(r.next())
		case *[]string:
			for n := r.number(); n > 0 && r.err == nil; n-- {
				*f = append(*f, string(r.next()))
			}
		}
	}
	if r.err == nil && len(r.rest) > 0 {
		return fmt.Errorf("%w: body too long", ErrFrame)
	}
	return r.err
}

// bodyReader reads the fields of a body. After an error, all fields are empty.
type bodyReader struct {
	rest []byte
	err  error
}

// number reads a length or a count. It must not exceed the size of the rest of the body.
func (r *bodyReader) number() int {
	if len(r.rest) < 4 || int64(binary.BigEndian.Uint32(r.rest)) > int64(len(r.rest)-4) {
		r.rest, r.err = nil, fmt.Errorf("%w: body too short", ErrFrame)
		return 0
	}
	n := binary.BigEndian.Uint32(r.rest)
	r.rest = r.rest[4:]
	return int(n)
}

func (r *bodyReader) next() []byte {
	n := r.number()
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}
