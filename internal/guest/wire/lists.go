package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// maxElements is the maximum length of a list in a response. In memory, an element is much larger than the two or more
// bytes in the message. Therefore the length is checked during decoding, not afterwards.
const maxElements = 1 << 16

// List is a list in a response.
type List[T any] []T

// UnmarshalJSON decodes at most maxElements elements.
func (l *List[T]) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	open, err := dec.Token()
	if err != nil || open == nil {
		return err
	}
	if open != json.Delim('[') {
		return fmt.Errorf("%w: no list", ErrFrame)
	}
	*l = nil
	for dec.More() {
		if len(*l) == maxElements {
			return fmt.Errorf("%w: more than %d elements", errFrameSize, maxElements)
		}
		var v T
		if err := dec.Decode(&v); err != nil {
			return err
		}
		*l = append(*l, v)
	}
	return nil
}
