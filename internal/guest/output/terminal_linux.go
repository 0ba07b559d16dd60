package output

import (
	"bytes"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// replayMax is how much of what was written before a host gets that joins a terminal.
const replayMax = 32 << 10

// Terminal is the sink of a command on a terminal: everything is recorded, and goes live to the host that is there.
type Terminal struct {
	rec  *Recorder
	wait time.Duration // how long the command runs with no host there; 0 for no limit

	out   sync.Mutex // held while output is handed out, so that one who joins misses none of it; before mu
	shown *LiveSink  // the viewer that has been shown what was written before it; guarded by out

	mu      sync.Mutex  // guards the fields below; never held while a host is waited for
	viewer  *LiveSink   // nil when nobody is there
	alone   *time.Timer // runs then
	hurried bool        // the command is being ended, or has ended
	ended   bool
}

// NewTerminal calls over when nobody was there for as long as wait.
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

// Join shows a viewer what was written lately, and what comes. Whoever was there before has to leave, unless it waits
// for nothing but the answer.
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
		_ = before.host.Close() // its host may have left
	}
	t.out.Lock()
	defer t.out.Unlock()
	if !t.at(v) {
		return // somebody has joined meanwhile
	}
	if p := replay(t.rec.latest(replayMax)); len(p) > 0 {
		v.write(wire.ChanStdout, p)
	}
	t.shown = v
}

// at reports whether v is the viewer that is there.
func (t *Terminal) at(v *LiveSink) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.viewer == v
}

// Leave is for a viewer that has left.
func (t *Terminal) Leave(v *LiveSink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.viewer != v {
		return // somebody has taken its place
	}
	t.viewer = nil
	if t.wait > 0 && !t.ended {
		t.alone.Reset(t.wait)
	}
}

// Hurry is for a command that is being ended, or has ended: from now on no viewer can hold it back for long.
func (t *Terminal) Hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hurried = true
	if t.viewer != nil {
		t.viewer.hurry()
	}
}

// End is for a command that has ended: that nobody is there has no effect any more.
func (t *Terminal) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.alone.Stop()
}

// replay makes of recorded output what can be shown once more: from the beginning of a line, if its beginning is
// missing, and without what asks the host's terminal something. Its answer would be typed into a program that did not
// ask.
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

// sequence returns the length of the character or control sequence at the beginning of p, and whether it only shows
// something.
func sequence(p []byte) (n int, keep bool) {
	const enquiry, escape = 0x05, 0x1b
	switch {
	case p[0] == 0xc2 && len(p) > 1 && p[1] < 0xa0: // the same as an escape and a letter, to some
		return 2, false
	case p[0] != escape:
		return 1, p[0] != enquiry
	case len(p) == 1:
		return 1, true
	case p[1] < ' ' || p[1] > '~': // it continues behind a control character, and begins again with an escape
		return 1, false
	}
	switch p[1] {
	case '[':
		for n = 2; n < len(p); n++ {
			switch c := p[n]; {
			case c == escape:
				return n, false
			case c >= 0x40 && c <= 0x7e:
				return n + 1, !asks(p[2], c) && bytes.IndexByte(p[2:n], enquiry) < 0
			}
		}
		return n, false
	case ']', 'P', '_', '^', 'X': // a text for the terminal: a title, a colour, the clipboard
		for n = 2; n < len(p); n++ {
			if p[n] == '\a' {
				return n + 1, false
			}
			if p[n] == escape {
				return min(n+2, len(p)), false
			}
		}
		return n, false
	case 'Z': // "what are you?"
		return 2, false
	}
	return 2, true
}

// asks reports whether a control sequence whose parameters begin with first and that ends with final asks something.
func asks(first, final byte) bool {
	private := first >= '<' && first <= '?'
	return bytes.IndexByte([]byte("cnpqtxy|"), final) >= 0 || private && (final == 'u' || final == 'S')
}
