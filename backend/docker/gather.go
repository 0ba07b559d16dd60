package docker

import (
	"io"
	"time"
)

const (
	// gatherWindow is the time window for the rate.
	gatherWindow = 2 * time.Millisecond
	// bulkRate is the rate, in bytes per second, from which on a read waits for more data. Commands with request-response
	// traffic stay far below this rate.
	bulkRate = 16 << 20
	// gatherWait is the duration of this wait. In a measurement with 100 MiB from a Docker container on 2 cores, in steps
	// of 4 KiB, it reduced the reader's CPU time by half and the engine's by a quarter. With 1.5 ms, the buffers on the
	// path (270 KiB) are full before the wait ends.
	gatherWait = time.Millisecond
)

// gatherer reads from a stream to which another process writes in small steps. Each step costs a read and wakes up
// every process on the path. These costs dominate transfers of many megabytes. Therefore, at a high rate, gatherer
// waits for a moment if the previous read returned little data. Only one goroutine may read at a time.
type gatherer struct {
	r     io.Reader
	since time.Time
	bytes int  // bytes read since then
	bulk  bool // the rate was high in the last window
	short bool // the last read filled less than half of the buffer
}

// newGatherer returns a gatherer for r. Callers should pass buffers for several small steps, for example with a 64 KiB
// bufio.Reader.
func newGatherer(r io.Reader) *gatherer { return &gatherer{r: r, since: time.Now()} }

// Read reads at most len(p) bytes, like the Read method of the stream.
func (g *gatherer) Read(p []byte) (int, error) {
	if g.bulk && g.short {
		time.Sleep(gatherWait)
	}
	n, err := g.r.Read(p)
	g.bytes += n
	g.short = n < len(p)/2
	if took := time.Since(g.since); took >= gatherWindow {
		g.bulk = float64(g.bytes) >= bulkRate*took.Seconds()
		g.since, g.bytes = g.since.Add(took), 0
	}
	return n, err
}
