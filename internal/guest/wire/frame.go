package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// FrameKind is the kind of a frame.
type FrameKind uint8

// Frame kinds. An unknown kind ends the stream, but not the connection.
const (
	KindRequest FrameKind = 1 // from the host; head: an Envelope, body: the request's body fields
	KindAnswer  FrameKind = 2 // from the guest agent; head: the response, body: the response's body fields
	KindError   FrameKind = 3 // from the guest agent; head: an Error
	KindData    FrameKind = 4 // raw bytes of the channel
	KindEOF     FrameKind = 5 // end of the channel; no head or body
	KindCredit  FrameKind = 6 // from the guest agent; body: 4 bytes, number of additional bytes the host may send
)

// Channel identifies the data in a KindData frame.
type Channel uint8

// Channels.
const (
	chanNone   Channel = 0
	ChanStdin  Channel = 1
	ChanStdout Channel = 2
	ChanStderr Channel = 3
	ChanFile   Channel = 4
	ChanConn   Channel = 5 // connection to a service or port
)

// Limits of a frame and of the contents.
const (
	// FramePrefixSize is the size of the prefix before head and body.
	FramePrefixSize = 12
	// MaxHead is the maximum size of a head.
	MaxHead = 4 << 20
	// MaxBody is the maximum size of the body of a request or response. Two MiB of arguments, the kernel's limit, fit.
	MaxBody = 4 << 20
	// MaxData is the maximum size of the body of a data frame.
	MaxData = 60 << 10
	// InlineData is the maximum size of standard input or a file sent inside a request instead of after it.
	InlineData = MaxData
	// StdinCredit is the number of bytes of standard input a host may send before the first KindCredit.
	StdinCredit = 64 << 10
	// MaxStdinWrite is the maximum size of StdinRequest.Data.
	MaxStdinWrite = 1 << 20
	// MaxKeep is the maximum value of RunRequest.HeadBytes and RunRequest.TailBytes.
	MaxKeep = 512 << 10
	// MaxReadBytes is the maximum size of the output in one ReadResult.
	MaxReadBytes = 1 << 20
	// MaxListEntries is the maximum number of entries in one ListResult.
	MaxListEntries = 10_000
	// DefaultListEntries is the limit if ListRequest.Limit is 0.
	DefaultListEntries = 1000
	// MaxListBytes is the maximum total size of the paths in one ListResult.
	MaxListBytes = 2 << 20
	// MaxDigests is the maximum number of paths in one DigestRequest.
	MaxDigests = 500
	// MaxListTotal is the maximum value of ListResult.Total.
	MaxListTotal = 200_000
	// MaxExecID is the maximum length of a command ID. Allowed characters are a-z, A-Z, 0-9, '_', and '-'.
	MaxExecID = 64
)

// ErrFrame is the error for a frame outside of the protocol, for example a frame over a limit.
var (
	ErrFrame     = errors.New("malformed frame")
	errFrameSize = fmt.Errorf("%w: larger than its limit", ErrFrame)
)

// Frame is one message on a stream.
type Frame struct {
	Kind    FrameKind
	Channel Channel
	Head    []byte
	Body    []byte
}

// AppendFrame appends f: kind (1 byte), channel (1), zero (2), length of the head (4), length of the body (4), head,
// body.
func AppendFrame(dst []byte, f Frame) ([]byte, error) {
	if err := checkFrame(f.Kind, f.Channel, len(f.Head), len(f.Body)); err != nil {
		return dst, err
	}
	dst = appendPrefix(dst, f.Kind, f.Channel, len(f.Head), len(f.Body))
	return append(append(dst, f.Head...), f.Body...), nil
}

// AppendData appends a data frame with p, which must have at most MaxData bytes.
func AppendData(dst []byte, ch Channel, p []byte) []byte {
	return append(appendPrefix(dst, KindData, ch, 0, len(p)), p...)
}

// AppendEOF appends the last frame of a channel.
func AppendEOF(dst []byte, ch Channel) []byte { return appendPrefix(dst, KindEOF, ch, 0, 0) }

// PutDataPrefix writes the prefix of a data frame with n bytes to the first FramePrefixSize bytes of dst.
func PutDataPrefix(dst []byte, ch Channel, n int) {
	appendPrefix(dst[:0], KindData, ch, 0, n)
}

func appendPrefix(dst []byte, k FrameKind, ch Channel, head, body int) []byte {
	dst = append(dst, byte(k), byte(ch), 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(head))
	return binary.BigEndian.AppendUint32(dst, uint32(body))
}

// ReadFrame reads one frame. Head and body share a buffer, which the caller owns. If buf is large enough, ReadFrame
// uses it as the buffer. If the stream ended between frames, the error is io.EOF.
func ReadFrame(r io.Reader, buf []byte) (Frame, error) {
	var p [FramePrefixSize]byte
	if _, err := io.ReadFull(r, p[:]); err != nil {
		return Frame{}, err
	}
	f, head, body, err := ParsePrefix(p[:])
	if err != nil {
		return Frame{}, err
	}
	b, err := readBytes(r, head+body, buf)
	if err != nil {
		return Frame{}, err
	}
	f.Head, f.Body = b[:head:head], b[head:]
	return f, nil
}

// ParsePrefix parses a prefix of FramePrefixSize bytes. It returns the frame without head and body, and the lengths of
// head and body.
func ParsePrefix(p []byte) (f Frame, head, body int, err error) {
	f = Frame{Kind: FrameKind(p[0]), Channel: Channel(p[1])}
	h, b := binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint32(p[8:])
	if p[2] != 0 || p[3] != 0 || h > MaxHead || b > MaxBody {
		return Frame{}, 0, 0, errFrameSize
	}
	return f, int(h), int(b), checkFrame(f.Kind, f.Channel, int(h), int(b))
}

// readBytes reads n bytes. The buffer grows with the received data, to avoid large allocations for a declared length
// alone.
func readBytes(r io.Reader, n int, buf []byte) ([]byte, error) {
	const step = 256 << 10
	if n <= cap(buf) {
		buf = buf[:n]
	} else {
		buf = make([]byte, min(n, step))
	}
	for done := 0; ; {
		m, err := io.ReadFull(r, buf[done:])
		done += m
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if done == n {
			return buf, nil
		}
		buf = append(buf, make([]byte, min(n-done, len(buf)))...)
	}
}

func checkFrame(k FrameKind, ch Channel, head, body int) error {
	if head > MaxHead || body > MaxBody {
		return errFrameSize
	}
	ok := false
	switch k {
	case KindRequest, KindAnswer:
		ok = ch == chanNone
	case KindError:
		ok = ch == chanNone && body == 0
	case KindData:
		if body > MaxData {
			return errFrameSize
		}
		ok = ch != chanNone && ch <= ChanConn && head == 0
	case KindEOF:
		ok = ch != chanNone && ch <= ChanConn && head == 0 && body == 0
	case KindCredit:
		ok = ch == ChanStdin && head == 0 && body == 4
	}
	if !ok {
		return ErrFrame
	}
	return nil
}
