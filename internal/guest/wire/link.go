package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// SocketName is the address of a guest's socket, in the abstract namespace of its sandbox's network: there is no file that a
// command could remove or replace, and nothing outside of the namespace can reach it.
const SocketName = "@workcell-guest"

// Sizes of the link.
const (
	// MaxChunk is the largest chunk body.
	MaxChunk = 64 << 10
	// ChunkHeaderSize is the size of a chunk's header.
	ChunkHeaderSize = 20
	// MarkerSize is the size of a preamble and of its acknowledgement.
	MarkerSize = 32
	// FlushSize is how many zero bytes a host sends before its preamble when an earlier host may have died in the
	// middle of a chunk: enough to complete the largest one.
	FlushSize = MaxChunk + ChunkHeaderSize
	// NonceSize is the size of a host's nonce.
	NonceSize = 16
)

// Magics. They share no prefix longer than three bytes, so four bytes tell them apart.
var (
	chunkMagic    = [4]byte{0xF5, 'W', 'C', 'h'}
	preambleMagic = [8]byte{0xF5, 'W', 'C', 'p', 'r', 'e', '\r', '\n'}
	ackMagic      = [8]byte{0xF5, 'W', 'C', 'a', 'c', 'k', '\r', '\n'}
)

// checksum is CRC-32C. Its tables are made at the first call, which takes a good part of a millisecond that a process which
// never speaks the protocol, such as the launcher of a sandbox, does not have to spend.
func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// Errors of the link.
var (
	// ErrLostSync: bytes came where a chunk had to begin, or a chunk's checksum is wrong.
	ErrLostSync = errors.New("link lost its place")
	// ErrChunkSize: a chunk larger than MaxChunk was to be written.
	ErrChunkSize = fmt.Errorf("chunk larger than %d bytes", MaxChunk)
)

// Nonce names one host's use of a link.
type Nonce [NonceSize]byte

// Generation is the number that every chunk of this use carries.
func (n Nonce) Generation() uint32 { return binary.BigEndian.Uint32(n[:4]) }

// Direction is who sends a marker.
type Direction int

// Directions. The zero value is the host's.
const (
	FromHost  Direction = iota // preamble
	FromGuest                  // acknowledgement
)

func (d Direction) magic() [8]byte {
	if d == FromGuest {
		return ackMagic
	}
	return preambleMagic
}

// Marker begins a host's use of a link: the host sends it as the preamble, the guest answers with the same nonce.
type Marker struct {
	Nonce   Nonce
	Version uint16
}

// AppendMarker appends the 32 bytes of m:
// magic (8), nonce (16), version (2), zero (2), CRC-32C of all that (4); integers are big-endian.
func AppendMarker(dst []byte, d Direction, m Marker) []byte {
	start := len(dst)
	magic := d.magic()
	dst = append(dst, magic[:]...)
	dst = append(dst, m.Nonce[:]...)
	dst = binary.BigEndian.AppendUint16(dst, m.Version)
	dst = append(dst, 0, 0)
	return binary.BigEndian.AppendUint32(dst, checksum(dst[start:]))
}

func parseMarker(b []byte, magic [8]byte) (Marker, bool) {
	if len(b) < MarkerSize || !bytes.Equal(b[:8], magic[:]) || b[26] != 0 || b[27] != 0 ||
		checksum(b[:28]) != binary.BigEndian.Uint32(b[28:]) {
		return Marker{}, false
	}
	return Marker{Nonce: Nonce(b[8:24]), Version: binary.BigEndian.Uint16(b[24:])}, true
}

// putChunkHeader writes the header of a chunk whose body is body into the first ChunkHeaderSize bytes of dst:
// magic (4), generation (4), length (4), CRC-32C of the body (4), CRC-32C of the 16 bytes before (4).
func putChunkHeader(dst []byte, generation uint32, body []byte) error {
	if len(body) > MaxChunk {
		return ErrChunkSize
	}
	copy(dst, chunkMagic[:])
	binary.BigEndian.PutUint32(dst[4:], generation)
	binary.BigEndian.PutUint32(dst[8:], uint32(len(body)))
	binary.BigEndian.PutUint32(dst[12:], checksum(body))
	binary.BigEndian.PutUint32(dst[16:], checksum(dst[:16]))
	return nil
}

// AppendChunk appends a whole chunk.
func AppendChunk(dst []byte, generation uint32, body []byte) ([]byte, error) {
	var h [ChunkHeaderSize]byte
	if err := putChunkHeader(h[:], generation, body); err != nil {
		return dst, err
	}
	return append(append(dst, h[:]...), body...), nil
}

// Item is what a LinkReader finds: a marker, or a chunk. A chunk without a body means that its generation has ended.
type Item struct {
	Marker     *Marker
	Generation uint32
	Body       []byte // valid until the next call of Next
}

// LinkReader finds markers and chunks in a stream. It begins without a place and looks for a marker; from then on it
// follows lengths only, so that contents can never be taken for a marker. When it loses its place it reports that once,
// with ErrLostSync, and looks for a marker again. Not safe for concurrent use.
type LinkReader struct {
	r      *bufio.Reader
	magic  [8]byte
	want   *Nonce // the only marker to begin with; nil for any
	synced bool
	pass   int // bytes of the last item, still in r
}

// readAhead is how many chunks one read of the stream may take.
const readAhead = 4

// NewLinkReader reads what the other side, from, sends.
func NewLinkReader(r io.Reader, from Direction) *LinkReader {
	return &LinkReader{r: bufio.NewReaderSize(r, readAhead*(ChunkHeaderSize+MaxChunk)), magic: from.magic()}
}

// Await makes the reader begin with the marker of this nonce and no other. A host needs it: what it drops may hold
// anything, whole markers and chunks of somebody's making included, but not a nonce that was just drawn.
func (l *LinkReader) Await(n Nonce) { l.want = &n }

// Next returns the next item. Errors of the underlying reader pass through and may be retried: no byte is lost by them.
func (l *LinkReader) Next() (Item, error) {
	if l.pass > 0 {
		l.discard(l.pass)
		l.pass = 0
	}
	if l.synced {
		return l.follow()
	}
	m, err := l.scan()
	if err != nil {
		return Item{}, err
	}
	l.synced = true
	return Item{Marker: &m, Generation: m.Nonce.Generation()}, nil
}

// follow reads the item that begins here.
func (l *LinkReader) follow() (Item, error) {
	head, err := l.r.Peek(len(chunkMagic))
	if err != nil {
		return Item{}, err
	}
	if !bytes.Equal(head, chunkMagic[:]) {
		return l.followMarker()
	}
	head, err = l.r.Peek(ChunkHeaderSize)
	if err != nil {
		return Item{}, err
	}
	length := binary.BigEndian.Uint32(head[8:])
	if checksum(head[:16]) != binary.BigEndian.Uint32(head[16:]) || length > MaxChunk {
		l.synced = false
		return Item{}, ErrLostSync
	}
	generation, sum := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[12:])
	size := ChunkHeaderSize + int(length)
	whole, err := l.r.Peek(size)
	if err != nil {
		return Item{}, err
	}
	body := whole[ChunkHeaderSize:]
	if checksum(body) != sum {
		// The rest of this chunk never came and another host's bytes filled it. They are dropped unseen: a body is
		// never searched for a marker.
		l.discard(size)
		l.synced = false
		return Item{}, ErrLostSync
	}
	l.pass = size
	return Item{Generation: generation, Body: body}, nil
}

func (l *LinkReader) followMarker() (Item, error) {
	b, err := l.peekMarker()
	if err != nil {
		return Item{}, err
	}
	m, ok := parseMarker(b, l.magic)
	if !ok {
		l.synced = false
		return Item{}, ErrLostSync
	}
	l.pass = MarkerSize
	return Item{Marker: &m, Generation: m.Nonce.Generation()}, nil
}

// scan drops bytes until a valid marker. It never waits for a byte behind the marker.
func (l *LinkReader) scan() (Marker, error) {
	for {
		if _, err := l.r.Peek(1); err != nil {
			return Marker{}, err
		}
		buf, _ := l.r.Peek(l.r.Buffered())
		at := bytes.IndexByte(buf, l.magic[0])
		if at < 0 {
			l.discard(len(buf))
			continue
		}
		l.discard(at)
		b, err := l.peekMarker()
		if err != nil {
			return Marker{}, err
		}
		if m, ok := parseMarker(b, l.magic); ok && (l.want == nil || *l.want == m.Nonce) {
			l.discard(MarkerSize)
			return m, nil
		}
		l.discard(1)
	}
}

// peekMarker peeks at as many bytes as are needed to tell whether a marker begins here.
func (l *LinkReader) peekMarker() ([]byte, error) {
	for n := 1; n <= MarkerSize; n++ {
		b, err := l.r.Peek(n)
		if err != nil {
			return nil, err
		}
		if n <= len(l.magic) && b[n-1] != l.magic[n-1] {
			return b, nil
		}
	}
	return l.r.Peek(MarkerSize)
}

// discard drops n buffered bytes; they are there, so it cannot fail.
func (l *LinkReader) discard(n int) { _, _ = l.r.Discard(n) }
