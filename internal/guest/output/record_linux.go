package output

import (
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Recorder is the sink of a recorded command. It contains the ring for readers, head and tail for the response, and the
// spill files.
type Recorder struct {
	budget  *Budget
	done    <-chan struct{}        // closed when the command ends
	status  func() wire.ExecStatus // returns the command's current status
	mu      sync.Mutex             // guards the fields below; not held during file writes
	ring    *ring
	keep    [2]*keeper    // nil after Forget
	kept    int           // their size in the budget, after the command has ended
	over    bool          // the command has ended
	ended   int           // size of the output in the budget's part of ended commands
	news    chan struct{} // closed when a chunk arrives; nil if no reader waits
	spilled [2]*spill
}

// NewRecorder returns the sink of a new command. done must be closed when the command ends. status must return the
// command's current status.
func NewRecorder(
	req *wire.RunRequest, b *Budget, s *Spiller, done <-chan struct{}, status func() wire.ExecStatus,
) *Recorder {
	r := &Recorder{budget: b, done: done, status: status, ring: newRing()}
	head, tail := min(max(0, req.HeadBytes), wire.MaxKeep), min(max(0, req.TailBytes), wire.MaxKeep)
	for i := range r.keep {
		r.keep[i] = &keeper{headMax: head, tailMax: tail}
	}
	if req.Spill {
		r.spilled[0] = s.plan(req.ExecID, wire.Stdout)
		r.spilled[1] = s.plan(req.ExecID, wire.Stderr)
	}
	return r
}

// index returns a channel's index in the arrays.
func index(ch wire.Channel) int { return int(ch - wire.ChanStdout) }

func (r *Recorder) write(ch wire.Channel, p []byte) {
	i := index(ch)
	r.mu.Lock()
	k, sp := r.keep[i], r.spilled[i]
	// When the output no longer fits in head and tail, the file starts with all output up to this point.
	var before []byte
	if sp != nil && !sp.begun && k != nil && !k.fits(len(p)) {
		sp.begun = true
		before = append(append([]byte(nil), k.head...), k.ordered()...)
	}
	if k != nil { // the output was not forgotten
		k.add(p)
		n := r.ring.add(ch, p, r.budget.limit(len(r.ring.buf)))
		if r.budget.add(n); r.over { // by a process that outlives the command
			r.ended += n
			r.budget.ended.Add(int64(n))
		}
	}
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
	begun := sp != nil && sp.begun
	r.mu.Unlock()
	if begun {
		sp.write(before)
		sp.write(p)
	}
}

func (r *Recorder) flush() {}

// Answer sets head and tail of both streams in res, and reports whether they are still available.
func (r *Recorder) Answer(res *wire.RunResult) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keep[0] == nil {
		return false
	}
	for i, out := range []*wire.Output{&res.Stdout, &res.Stderr} {
		*out = r.keep[i].output()
		if sp := r.spilled[i]; sp != nil && sp.begun {
			out.Path, out.PathCut = sp.result()
		}
	}
	res.StdoutBytes, res.StderrBytes = res.Stdout.Total, res.Stderr.Total
	return true
}

// latest returns at most the last n bytes of the recorded output. cut reports whether earlier output exists.
func (r *Recorder) latest(n int) (p []byte, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p = make([]byte, min(n, r.ring.used))
	r.ring.copyOut(p, r.ring.used-len(p))
	return p, len(p) < r.ring.used || r.ring.first > 1
}

// Ended closes the files and adds the size of head and tail to the budget.
func (r *Recorder) Ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, k := range r.keep {
		r.kept += cap(k.head) + cap(k.tail)
		if sp := r.spilled[i]; sp != nil {
			sp.close()
		}
	}
	r.budget.add(r.kept - r.ring.trim())
	r.over, r.ended = true, r.kept+len(r.ring.buf)
	r.budget.ended.Add(int64(r.ended))
}

// Forget drops the recorded output.
func (r *Recorder) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget.add(-r.ring.release() - r.kept)
	r.budget.ended.Add(-int64(r.ended))
	r.keep, r.kept, r.ended = [2]*keeper{}, 0, 0
}

// Read returns chunks. It waits up to req.WaitMillis for the first chunk or for the end of the command. It returns
// early if left is closed.
func (r *Recorder) Read(req *wire.ReadRequest, left <-chan struct{}) wire.ReadResult {
	limit := time.After(time.Duration(req.WaitMillis) * time.Millisecond)
	maxChunks := req.MaxChunks
	if maxChunks <= 0 || maxChunks > maxReadChunks {
		maxChunks = maxReadChunks
	}
	for {
		final := false
		select {
		case <-r.done:
			final = true
		default:
		}
		r.mu.Lock()
		chunks, dropped := r.ring.read(req.SinceSeq, maxChunks, wire.MaxReadBytes)
		end := r.ring.nextSeq()
		if r.news == nil {
			r.news = make(chan struct{})
		}
		news := r.news
		r.mu.Unlock()
		if len(chunks) > 0 || dropped > 0 || final || req.WaitMillis <= 0 {
			return r.result(req, chunks, dropped, end, final)
		}
		select {
		case <-news:
		case <-r.done:
		case <-limit:
			req.WaitMillis = 0
		case <-left:
			req.WaitMillis = 0
		}
	}
}

func (r *Recorder) result(req *wire.ReadRequest, chunks []wire.Chunk, dropped, end int64, final bool) wire.ReadResult {
	res := wire.ReadResult{Chunks: chunks, Dropped: dropped, NextSeq: max(req.SinceSeq, 0) + dropped, Status: r.status()}
	if n := len(chunks); n > 0 {
		res.NextSeq = chunks[n-1].Seq
	}
	res.Done = final && res.NextSeq >= end-1
	return res
}

// maxReadChunks limits the number of chunks in a ReadResult, because the headers of small chunks need more space than
// their data.
const maxReadChunks = 4096
