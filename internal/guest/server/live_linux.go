package server

import (
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Small output waits up to liveHold, so that it travels with what follows: more output, or the exit.
const (
	liveHold  = time.Millisecond
	liveFlush = 16 << 10
)

// liveSink is the sink of an attached exec: it sends output over the request's stream, at the host's pace.
type liveSink struct {
	r    *request
	pace func() // sets the time that the host has to take what is sent next; nil when it may take any

	mu      sync.Mutex // guards the fields below
	pending []byte     // frames that wait
	timer   *time.Timer
	shut    bool // nobody reads any more
}

func newLiveSink(r *request) *liveSink {
	l := &liveSink{r: r}
	l.timer = time.AfterFunc(time.Hour, l.flush)
	l.timer.Stop()
	return l
}

func (l *liveSink) write(ch wire.Channel, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return
	}
	first := len(l.pending) == 0
	var prefix [wire.FramePrefixSize]byte
	wire.PutDataPrefix(prefix[:], ch, len(p))
	l.pending = append(append(l.pending, prefix[:]...), p...)
	if len(l.pending) >= liveFlush {
		l.send()
	} else if first {
		l.timer.Reset(liveHold)
	}
}

func (l *liveSink) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.send()
}

// send sends what waits. The caller holds mu.
func (l *liveSink) send() {
	if len(l.pending) == 0 || l.shut {
		return
	}
	if !l.transmit(l.pending) {
		l.shut = true
		l.r.release() // the request is over, whether or not its host knows: a frame may be there in part
	}
	l.pending = l.pending[:0]
}

func (l *liveSink) transmit(b []byte) bool {
	if l.pace != nil {
		l.pace()
	}
	return l.r.write(b)
}

// finish sends what waits and the answer, together. Later output is dropped.
func (l *liveSink) finish(res *wire.RunResult) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	b, err := wire.AppendAnswer(l.pending, res)
	if err != nil {
		return failf(wire.CodeInternal, "%v", err)
	}
	if !l.shut {
		l.transmit(b)
	}
	l.shut, l.pending = true, nil
	return nil
}
