package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// Envelope is the head of a request.
type Envelope struct {
	Op  Op              `json:"op"`
	Arg json.RawMessage `json:"arg,omitempty"`
}

// bulkFields is implemented by messages with byte fields that travel raw in the body and not in the head, as their tags say.
type bulkFields interface {
	// bulk returns the fields in the order in which they stand in the body, each behind its length (4 bytes).
	bulk() []*[]byte
}

func (r *RunRequest) bulk() []*[]byte   { return []*[]byte{&r.Stdin} }
func (r *StdinRequest) bulk() []*[]byte { return []*[]byte{&r.Data} }
func (r *RunResult) bulk() []*[]byte {
	return []*[]byte{&r.Stdout.Head, &r.Stdout.Tail, &r.Stderr.Head, &r.Stderr.Tail}
}
func (r *ReadResult) bulk() []*[]byte {
	all := make([]*[]byte, len(r.Chunks))
	for i := range r.Chunks {
		all[i] = &r.Chunks[i].Data
	}
	return all
}

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

// AppendAnswer appends the frame of an answer.
func AppendAnswer(dst []byte, msg any) ([]byte, error) {
	head, body, err := encode(msg)
	if err != nil {
		return dst, err
	}
	return AppendFrame(dst, Frame{Kind: KindAnswer, Head: head, Body: body})
}

// AppendError appends the frame of a failure.
func AppendError(dst []byte, e *Error) ([]byte, error) {
	head, err := json.Marshal(e)
	if err != nil {
		return dst, err
	}
	return AppendFrame(dst, Frame{Kind: KindError, Head: head})
}

// encode returns head and body of msg, which must be a pointer when it has bulk or raw fields. msg is as before afterwards.
func encode(msg any) (head, body []byte, err error) {
	if r, ok := msg.(rawText); ok {
		for _, f := range r.rawFields() {
			f.pack()
			defer f.unpack()
		}
	}
	if head, err = json.Marshal(msg); err != nil {
		return nil, nil, err
	}
	if b, ok := msg.(bulkFields); ok {
		for _, f := range b.bulk() {
			body = binary.BigEndian.AppendUint32(body, uint32(len(*f)))
			body = append(body, *f...)
		}
	}
	return head, body, nil
}

// Decode reads a message's head and, for one with bulk fields, its body into msg. Those fields then share body.
func Decode(head, body []byte, msg any) error {
	if len(head) > 0 {
		if err := json.Unmarshal(head, msg); err != nil {
			return fmt.Errorf("%w: %v", ErrFrame, err)
		}
	}
	if r, ok := msg.(rawText); ok {
		for _, f := range r.rawFields() {
			f.unpack()
		}
	}
	b, ok := msg.(bulkFields)
	if !ok {
		return nil
	}
	for _, f := range b.bulk() {
		if len(body) < 4 {
			return fmt.Errorf("%w: body too short", ErrFrame)
		}
		n := binary.BigEndian.Uint32(body)
		body = body[4:]
		if uint64(n) > uint64(len(body)) {
			return fmt.Errorf("%w: body too short", ErrFrame)
		}
		if n > 0 {
			*f = body[:n:n]
		}
		body = body[n:]
	}
	if len(body) > 0 {
		return fmt.Errorf("%w: body too long", ErrFrame)
	}
	return nil
}
