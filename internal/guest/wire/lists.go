package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Most elements of the lists in an answer. In memory an element is much larger than the two bytes that it may have on
// the wire, so the number is checked while a list is decoded and not afterwards.
const (
	MaxChunks = 1 << 16
	MaxExecs  = 1 << 14
)

// Chunks is the output in a ReadResult.
type Chunks []Chunk

// ExecStatuses are the execs in an ExecList.
type ExecStatuses []ExecStatus

// FileInfos are the entries of a ListResult.
type FileInfos []FileInfo

// UnmarshalJSON decodes at most MaxChunks chunks.
func (l *Chunks) UnmarshalJSON(b []byte) (err error) {
	*l, err = decodeList[Chunk](b, MaxChunks)
	return err
}

// UnmarshalJSON decodes at most MaxExecs execs.
func (l *ExecStatuses) UnmarshalJSON(b []byte) (err error) {
	*l, err = decodeList[ExecStatus](b, MaxExecs)
	return err
}

// UnmarshalJSON decodes at most MaxListEntries entries.
func (l *FileInfos) UnmarshalJSON(b []byte) (err error) {
	*l, err = decodeList[FileInfo](b, MaxListEntries)
	return err
}

func decodeList[T any](b []byte, most int) ([]T, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	open, err := dec.Token()
	if err != nil || open == nil {
		return nil, err
	}
	if open != json.Delim('[') {
		return nil, fmt.Errorf("%w: no list", ErrFrame)
	}
	var list []T
	for dec.More() {
		if len(list) == most {
			return nil, fmt.Errorf("%w: more than %d elements", ErrFrameSize, most)
		}
		var v T
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}
