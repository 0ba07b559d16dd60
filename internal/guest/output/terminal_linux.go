package output

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// replayMax is the maximum amount of earlier output for a host joining a terminal.
const replayMax = 32 << 10

// Terminal is the sink of a command on a terminal. It records all output and sends it to the connected host.
type Terminal struct {
	rec  *Recorder
	wait time.Duration // maximum time without a connected host; 0 means no limit

	out   sync.Mutex // held during output, to avoid gaps for a joining host; lock before mu
	shown *LiveSink  // the viewer with the earlier output; guarded by out

	mu      sync.Mutex  // guards the fields below; never held while waiting for a host
	viewer  *LiveSink   // nil if no host is connected
	alone   *time.Timer // timer, running while viewer is nil
	hurried bool        // the command is ending or has ended
	ended   bool
}

// NewTerminal returns a sink. It calls over when no host was connected for the time wait.
func NewTerminal(rec *Recorder, wait time.Duration, over func()) *Terminal {
	t := &Terminal{rec: rec, wait: wait, alone: time.AfterFunc(time.Hour, over)}
	t.alone.Stop()
	return t
}

func (t *Terminal) write(ch wire.Channel, p []byte) {
	t.out.Lock()
	defer t.out.Unlock()
	t.rec.write(ch, p)
	if t.shown != nil {
		t.shown.write(ch, p)
	}
}

func (t *Terminal) flush() {
	t.out.Lock()
	defer t.out.Unlock()
	if t.shown != nil {
		t.shown.flush()
	}
}

// Join sends recent and future output to a viewer. It disconnects the previous viewer, unless the previous viewer only
// waits for the response.
func (t *Terminal) Join(v *LiveSink) {
	t.mu.Lock()
	before, ended := t.viewer, t.ended
	t.viewer = v
	t.alone.Stop()
	if t.hurried {
		v.hurry()
	}
	t.mu.Unlock()
	if before != nil && !ended {
		_ = before.host.Close() // the host may have disconnected
	}
	t.out.Lock()
	defer t.out.Unlock()
	if !t.at(v) {
		return // another host has joined
	}
	if p := replay(t.rec.latest(replayMax)); len(p) > 0 {
		v.write(wire.ChanStdout, p)
	}
	t.shown = v
}

// at reports whether v is the current viewer.
func (t *Terminal) at(v *LiveSink) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.viewer == v
}

// Leave is called when a viewer has disconnected.
func (t *Terminal) Leave(v *LiveSink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.viewer != v {
		return // another viewer has replaced it
	}
	t.viewer = nil
	if t.wait > 0 && !t.ended {
		t.alone.Reset(t.wait)
	}
}

// Hurry is called when a command is ending or has ended. From then on, viewers cannot delay it for long.
func (t *Terminal) Hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hurried = true
	if t.viewer != nil {
		t.viewer.hurry()
	}
}

// End is called when a command has ended. From then on, a missing viewer has no effect.
func (t *Terminal) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.alone.Stop()
}

// replay returns the repeatable parts of recorded output. If earlier output is missing, the result starts at the
// beginning of a line. It contains no queries to the host's terminal, because the terminal's response would be input
// for another program than the sender of the query.
func replay(p []byte, cut bool) []byte {
	if i := bytes.IndexByte(p, '\n'); cut && i >= 0 {
		p = p[i+1:]
	}
	out := make([]byte, 0, len(p))
	for len(p) > 0 {
		n, keep := sequence(p)
		if keep {
			out = append(out, p[:n]...)
		}
		p = p[n:]
	}
	return out
}

// sequence returns the length of the character or control sequence at the beginning of p. keep reports whether the
// sequence only displays something.
func sequence(p []byte) (n int, keep bool) {
	const enquiry, escape = 0x05, 0x1b
	switch {
	case p[0] == 0xc2 && len(p) > 1 && p[1] < 0xa0: // some terminals treat this like an escape and a letter
		return 2, false
	case p[0] != escape:
		return 1, p[0] != enquiry
	case len(p) == 1:
		return 1, true
	case p[1] < ' ' || p[1] > '~': // an escape starts a new sequence
		return 1, false
	}
	switch p[1] {
	case '[':
		end := slices.IndexFunc(p[2:], func(c byte) bool { return c == escape || c >= 0x40 && c <= 0x7e })
		if end < 0 {
			return len(p), false
		}
		if n = 2 + end; p[n] == escape {
			return n, false
		}
		return n + 1, !asks(p[2], p[n]) && bytes.IndexByte(p[2:n], enquiry) < 0
	case ']', 'P', '_', '^', 'X': // a string for the terminal: title, color, or clipboard
		end := bytes.IndexAny(p[2:], "\a\x1b")
		switch {
		case end < 0:
			return len(p), false
		case p[2+end] == '\a':
			return 2 + end + 1, false
		}
		return min(2+end+2, len(p)), false
	case 'Z': // query for the terminal's identity
		return 2, false
	}
	return 2, true
}

// asks reports whether a control sequence is a query. The parameters begin with first, and the query ends with final.
func asks(first, final byte) bool {
	private := first >= '<' && first <= '?'
	return bytes.IndexByte([]byte("cnpqtxy|"), final) >= 0 || private && (final == 'u' || final == 'S')
}
