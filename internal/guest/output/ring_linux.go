package output

import (
	"sync/atomic"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Limits of a ring and the chunks in it.
const (
	chunkMax   = 32 << 10 // maximum bytes of a chunk
	chunkMerge = 4 << 10  // up to this size, small output is appended to an unread chunk
	chunkCost  = 32       // memory cost of a chunk in addition to the data
	ringMin    = 4 << 10  // size of the first allocation
	ringMax    = 1 << 20  // recorded output of one command
	ringBudget = 4 << 20  // recorded output of all commands
	ringFloor  = 64 << 10 // limit for a running command if the budget is exhausted
)

// ring records a command's latest output as numbered chunks. It drops the oldest chunks when it is full. It is not safe
// for concurrent use.
type ring struct {
	chunks []chunkMeta // oldest first
	first  int64       // number of chunks[0]
	sealed int64       // highest returned number; chunks up to it are immutable
	buf    []byte      // circular buffer with the chunks' bytes
	start  int         // position of the oldest byte
	used   int
}

type chunkMeta struct {
	size   int32
	stderr bool
}

func newRing() *ring { return &ring{first: 1} }

// nextSeq returns the number of the next chunk.
func (r *ring) nextSeq() int64 { return r.first + int64(len(r.chunks)) }

// add records p, which must have at most chunkMax bytes. The ring then holds at most limit bytes. add returns the
// increase of used memory.
func (r *ring) add(ch wire.Channel, p []byte, limit int) int {
	before := len(r.buf)
	r.room(len(p), max(limit, chunkMax))
	at := (r.start + r.used) % len(r.buf)
	n := copy(r.buf[at:], p)
	copy(r.buf, p[n:])
	r.used += len(p)
	stderr := ch == wire.ChanStderr
	if last := len(r.chunks) - 1; last >= 0 && r.chunks[last].stderr == stderr && r.nextSeq()-1 > r.sealed &&
		int(r.chunks[last].size)+len(p) <= chunkMerge {
		r.chunks[last].size += int32(len(p))
	} else {
		r.chunks = append(r.chunks, chunkMeta{size: int32(len(p)), stderr: stderr})
	}
	for r.used+chunkCost*len(r.chunks) > max(limit, chunkMax+chunkCost) && len(r.chunks) > 1 {
		r.drop()
	}
	return len(r.buf) - before
}

// room makes space for n more bytes. It first grows the buffer up to limit and then drops the oldest chunks.
func (r *ring) room(n, limit int) {
	size := max(len(r.buf), ringMin)
	for size < r.used+n && size < limit {
		size *= 2
	}
	if size = min(size, max(limit, len(r.buf))); size > len(r.buf) {
		r.resize(size)
	}
	for r.used+n > len(r.buf) {
		r.drop()
	}
}

func (r *ring) resize(size int) {
	b := make([]byte, size)
	r.copyOut(b[:r.used], 0)
	r.buf, r.start = b, 0
}

func (r *ring) drop() {
	n := int(r.chunks[0].size)
	r.chunks = r.chunks[1:]
	r.first++
	r.start = (r.start + n) % len(r.buf)
	r.used -= n
}

// copyOut copies bytes from offset on to dst.
func (r *ring) copyOut(dst []byte, offset int) {
	if len(dst) == 0 {
		return
	}
	at := (r.start + offset) % len(r.buf)
	n := copy(dst, r.buf[at:])
	copy(dst[n:], r.buf)
}

// release drops all chunks and frees the memory. It returns the number of freed bytes.
func (r *ring) release() int {
	n := len(r.buf)
	r.first, r.chunks = r.nextSeq(), nil
	r.buf, r.start, r.used = nil, 0, 0
	return n
}

// trim frees memory not needed by an ended command. It returns the number of freed bytes.
func (r *ring) trim() int {
	before := len(r.buf)
	if r.used < before {
		if r.used == 0 {
			r.buf, r.start = nil, 0
		} else {
			r.resize(r.used)
		}
	}
	r.chunks = append([]chunkMeta(nil), r.chunks...)
	return before - len(r.buf)
}

// read returns at most maxChunks chunks and maxBytes bytes after since. dropped is the number of dropped chunks after
// since.
func (r *ring) read(since int64, maxChunks, maxBytes int) (chunks []wire.Chunk, dropped int64) {
	from := since + 1
	if from < r.first {
		dropped = r.first - from
		from = r.first
	}
	offset := 0
	for i := range r.chunks {
		size := int(r.chunks[i].size)
		seq := r.first + int64(i)
		if seq >= from {
			if len(chunks) == maxChunks || len(chunks) > 0 && maxBytes < size {
				break
			}
			maxBytes -= size
			c := wire.Chunk{Seq: seq, Stream: wire.Stdout, Data: make([]byte, size)}
			if r.chunks[i].stderr {
				c.Stream = wire.Stderr
			}
			r.copyOut(c.Data, offset)
			chunks = append(chunks, c)
			r.sealed = max(r.sealed, seq)
		}
		offset += size
	}
	return chunks, dropped
}

// keeper keeps the first and the last bytes of a stream.
type keeper struct {
	head, tail       []byte
	headMax, tailMax int
	at               int // position of the oldest byte in a full tail
	total            int64
}

func (k *keeper) add(p []byte) {
	k.total += int64(len(p))
	if n := min(len(p), k.headMax-len(k.head)); n > 0 {
		k.head = append(k.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > k.tailMax {
		p = p[len(p)-k.tailMax:]
	}
	if n := min(len(p), k.tailMax-len(k.tail)); n > 0 {
		k.tail = append(k.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(k.tail[k.at:], p)
		k.at = (k.at + n) % k.tailMax
		p = p[n:]
	}
}

// fits reports whether n more bytes fit without omitting data.
func (k *keeper) fits(n int) bool { return k.total+int64(n) <= int64(k.headMax+k.tailMax) }

// ordered returns the tail, oldest byte first.
func (k *keeper) ordered() []byte {
	if k.at == 0 {
		return k.tail
	}
	out := make([]byte, 0, len(k.tail))
	return append(append(out, k.tail[k.at:]...), k.tail[:k.at]...)
}

// output describes the stream. It copies head and tail, because the keeper may change.
func (k *keeper) output() wire.Output {
	head, tail := append([]byte(nil), k.head...), append([]byte(nil), k.ordered()...)
	return wire.Output{Head: head, Tail: tail, Total: k.total, Omitted: k.total - int64(len(head)+len(tail))}
}

// Budget counts the memory of recorded output.
type Budget struct{ used, ended atomic.Int64 }

func (b *Budget) add(n int) { b.used.Add(int64(n)) }

// limit returns the maximum size of a ring with a current size of now bytes.
func (b *Budget) limit(now int) int {
	free := ringBudget - int(b.used.Load())
	return min(ringMax, max(now, ringFloor, now+free))
}

// Exceeded reports whether ended commands have too much output, to allow recording for running commands.
func (b *Budget) Exceeded() bool { return b.ended.Load() > ringBudget/2 }
