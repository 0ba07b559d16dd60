// Package gather reads a stream in fewer and larger steps when much comes in.
package gather

import (
	"io"
	"time"
)

const (
	// window is the time over which the rate is taken.
	window = 2 * time.Millisecond
	// bulk is the rate, in bytes a second, from which on a read waits for company. Commands that answer as fast as they
	// can stay far below it.
	bulk = 16 << 20
	// wait is how long a read waits then. What lies between a Docker container and its reader holds some 270 KiB, and when it
	// is full all before it stands still. 100 MiB are 400 times that: with a wait of a millisecond they took the time of 400
	// waits on an idle machine of 2 cores, which had work for little more than one. With much less than half of that there is
	// little to gather, and each step of 4 KiB wakes every process again.
	wait = 500 * time.Microsecond
)

// Reader reads from a stream to which another process writes in small steps. Each of them costs a read, and a wake-up of
// every process on the way, which is most of what a transfer of many megabytes costs. So while much comes in, a read that
// found little is followed by one that waits a moment first. One goroutine may read at a time.
type Reader struct {
	r     io.Reader
	since time.Time
	bytes int  // since then
	much  bool // in the last window
	short bool // the last read left room for more
	pause func(time.Duration)
}

// NewReader reads r. The reads should have room for several small steps, as those of a bufio.Reader of 64 KiB.
func NewReader(r io.Reader) *Reader { return &Reader{r: r, since: time.Now(), pause: pause} }

// Read reads at most len(p) bytes, as the stream's own Read does.
func (g *Reader) Read(p []byte) (int, error) {
	if g.much && g.short {
		g.pause(wait)
	}
	n, err := g.r.Read(p)
	g.bytes += n
	g.short = n < len(p)/2
	if took := time.Since(g.since); took >= window {
		g.much = float64(g.bytes) >= bulk*took.Seconds()
		g.since, g.bytes = g.since.Add(took), 0
	}
	return n, err
}
