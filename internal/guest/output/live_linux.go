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

// Small output is held back for up to liveHold, to allow sending it together with later output or with the exit.
const (
	liveHold  = time.Millisecond
	liveFlush = 16 << 10
)

// hurryTime is how long an unresponsive host may delay the end of a command on a terminal. After that, the command
// ends. When the host reads again, it gets the result and the amount of missed output.
const hurryTime = 2 * time.Second

// Host receives the output of an attached command.
type Host interface {
	io.Writer
	SetWriteDeadline(t time.Time) error
	// Release ends the request, even if the host does not know this.
	Release()
	// Close closes the request's stream and unblocks a pending Write.
	Close() error
}

// LiveSink is the sink of an attached command. It sends output on the request's stream. A slow host blocks it.
type LiveSink struct {
	host    Host
	hurried atomic.Bool // the command is ending or has ended; sends take at most hurryTime

	mu      sync.Mutex // guards the fields below
	pending []byte     // frames to send
	timer   *time.Timer
	shut    bool  // the host no longer reads
	behind  bool  // pending frames and a note about missing output are sent with the response
	missing int64 // bytes of output dropped since
}

// NewLiveSink returns a sink for sending output to h.
func NewLiveSink(h Host) *LiveSink {
	l := &LiveSink{host: h}
	l.timer = time.AfterFunc(time.Hour, l.flush)
	l.timer.Stop()
	return l
}

// hurry limits the time of current and later sends.
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

// Control sends a frame other than output. The frame comes after all pending frames, because a part of a pending frame
// may have been sent. If the command is about to end, the frame may be sent together with the response.
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

// send sends the pending frames. The caller must hold mu.
func (l *LiveSink) send() {
	for len(l.pending) > 0 && !l.behind && !l.shut {
		if l.hurried.Load() {
			_ = l.host.SetWriteDeadline(time.Now().Add(hurryTime)) // cannot fail
		}
		n, err := l.host.Write(l.pending)
		l.pending = append(l.pending[:0], l.pending[n:]...)
		switch {
		case errors.Is(err, yamux.ErrTimeout):
			l.behind = n == 0 // the host does not read
		case err != nil:
			l.shut = true
			l.host.Release() // even if the host does not know: a partial frame may have been sent
		}
	}
}

// Finish sends the pending frames together with the response when the host reads. Later output is dropped without
// blocking.
func (l *LiveSink) Finish(res *wire.RunResult) error {
	l.mu.Lock()
	l.timer.Stop()
	if l.missing > 0 {
		note := fmt.Sprintf("\r\n[%d bytes omitted: they were not read before the command exited]\r\n", l.missing)
		l.pending = wire.AppendData(l.pending, wire.ChanStdout, []byte(note))
	}
	b, err := wire.AppendAnswer(l.pending, res)
	gone := l.shut // the host stopped reading
	l.shut, l.pending = true, nil
	l.mu.Unlock()
	if err != nil {
		return wire.Errorf(wire.CodeInternal, "%v", err)
	}
	if !gone {
		_ = l.host.SetWriteDeadline(time.Time{}) // cannot fail
		_, _ = l.host.Write(b)                   // the host may have disconnected
	}
	return nil
}
