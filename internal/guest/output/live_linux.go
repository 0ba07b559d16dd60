package output

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Small output waits up to liveHold, so that it travels with what follows: more output, or the exit.
const (
	liveHold  = time.Millisecond
	liveFlush = 16 << 10
)

// hurryTime is how long a host that takes nothing may hold up the end of a command on a terminal. Then the command
// ends, and the host is told of that, and of what it missed, when it takes something again.
const hurryTime = 2 * time.Second

// Host takes the output of an attached exec.
type Host interface {
	io.Writer
	SetWriteDeadline(t time.Time) error
	// Release ends the request, whether or not the host knows.
	Release()
	// Close ends the request's stream, and with it a Write that waits.
	Close() error
}

// LiveSink is the sink of an attached exec: it sends output over the request's stream, at the host's pace.
type LiveSink struct {
	host    Host
	hurried atomic.Bool // the command is being ended, or has ended: it waits for hurryTime

	mu      sync.Mutex // guards the fields below
	pending []byte     // frames that wait
	timer   *time.Timer
	shut    bool  // nobody reads any more
	behind  bool  // what waits, and a note of what is missing, goes with the answer
	missing int64 // bytes of output left out since
}

// NewLiveSink returns a sink that sends to h.
func NewLiveSink(h Host) *LiveSink {
	l := &LiveSink{host: h}
	l.timer = time.AfterFunc(time.Hour, l.flush)
	l.timer.Stop()
	return l
}

// hurry bounds what is being sent and what will be.
func (l *LiveSink) hurry() {
	l.hurried.Store(true)
	_ = l.host.SetWriteDeadline(time.Now().Add(hurryTime)) // cannot fail
}

func (l *LiveSink) write(ch wire.Channel, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return
	}
	if l.behind {
		l.missing += int64(len(p))
		return
	}
	first := len(l.pending) == 0
	l.pending = wire.AppendData(l.pending, ch, p)
	if len(l.pending) >= liveFlush {
		l.send()
	} else if first {
		l.timer.Reset(liveHold)
	}
}

// Control sends a frame that is no output, behind what waits: of that a part of a frame may be on its way. When the
// command is about to end, it waits for the answer.
func (l *LiveSink) Control(frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.shut {
		l.pending = append(l.pending, frame...)
		l.send()
	}
}

func (l *LiveSink) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.send()
}

// send sends what waits. The caller holds mu.
func (l *LiveSink) send() {
	for len(l.pending) > 0 && !l.behind && !l.shut {
		if l.hurried.Load() {
			_ = l.host.SetWriteDeadline(time.Now().Add(hurryTime)) // cannot fail
		}
		n, err := l.host.Write(l.pending)
		l.pending = append(l.pending[:0], l.pending[n:]...)
		switch {
		case errors.Is(err, yamux.ErrTimeout):
			l.behind = n == 0 // it takes nothing
		case err != nil:
			l.shut = true
			l.host.Release() // the request is over, whether or not its host knows: a frame may be there in part
		}
	}
}

// Finish sends what waits and the answer, together, when the host takes it. Later output is dropped, and waits for
// nobody.
func (l *LiveSink) Finish(res *wire.RunResult) error {
	b, gone, err := l.rest(res)
	if err != nil {
		return wire.Errorf(wire.CodeInternal, "%v", err)
	}
	if !gone {
		_ = l.host.SetWriteDeadline(time.Time{}) // cannot fail
		_, _ = l.host.Write(b)                   // it may be gone
	}
	return nil
}

// rest shuts the sink and returns what is left to send. It reports whether nobody reads it.
func (l *LiveSink) rest(res *wire.RunResult) (b []byte, gone bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	if l.missing > 0 {
		note := fmt.Sprintf("\r\n[%d bytes omitted: they were not read before the command exited]\r\n", l.missing)
		l.pending = wire.AppendData(l.pending, wire.ChanStdout, []byte(note))
	}
	b, err = wire.AppendAnswer(l.pending, res)
	gone = l.shut
	l.shut, l.pending = true, nil
	return b, gone, err
}
