package output

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

const (
	// replayMax is how much of what was written before a host gets that joins a terminal.
	replayMax = 32 << 10
	// stallMax is how long a viewer that takes nothing may hold up other viewers. Then it is detached, and may join again.
	stallMax = 10 * time.Second
	// stallEnd is how long it may hold up the end of the command. Then the others get the answer, and the viewer hears
	// of it, and of what it missed, when it takes something again.
	stallEnd = 2 * time.Second
	// stallTries is in how many parts it gets that time.
	stallTries = 4
)

// Terminal is the sink of a command on a terminal: everything is recorded, and goes live to each host that is there.
type Terminal struct {
	rec  *Recorder
	wait time.Duration // how long the command runs with no host there; 0 for no limit

	out sync.Mutex // held while output is handed out, so that one who joins misses none of it; before mu

	mu      sync.Mutex  // guards the fields below; never held while a host is waited for
	viewers []*LiveSink // not changed in place
	present int         // viewers, and those that are about to be
	alone   *time.Timer // runs while there are none
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
	for _, v := range t.there() {
		v.write(ch, p)
	}
}

func (t *Terminal) flush() {
	t.out.Lock()
	defer t.out.Unlock()
	for _, v := range t.there() {
		v.flush()
	}
}

func (t *Terminal) there() []*LiveSink {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.viewers
}

// Join shows a viewer what was written lately, and what comes.
func (t *Terminal) Join(v *LiveSink) {
	v.pace = func() bool { return t.pace(v) }
	t.mu.Lock()
	t.alone.Stop()
	t.present++
	if t.present == 2 {
		t.repace()
	}
	t.mu.Unlock()
	t.out.Lock()
	defer t.out.Unlock()
	if p := replay(t.rec.latest(replayMax)); len(p) > 0 {
		v.write(wire.ChanStdout, p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers = append(slices.Clone(t.viewers), v)
}

// Leave forgets a viewer.
func (t *Terminal) Leave(v *LiveSink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers = slices.DeleteFunc(slices.Clone(t.viewers), func(o *LiveSink) bool { return o == v })
	t.present--
	switch {
	case t.present == 1:
		t.repace()
	case t.present == 0 && t.wait > 0 && !t.ended:
		t.alone.Reset(t.wait)
	}
}

// Hurry is for a command that is being ended, or has ended: from now on no viewer can hold it back for long.
func (t *Terminal) Hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hurried {
		t.hurried = true
		t.repace()
	}
}

// pace sets until when a viewer must take what it is about to be sent: at any time, unless others wait with it. It reports
// whether the command is about to end.
func (t *Terminal) pace(v *LiveSink) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = v.host.SetWriteDeadline(t.limit()) // cannot fail
	return t.hurried
}

// repace does that for what is being sent. The caller holds mu.
func (t *Terminal) repace() {
	for _, v := range t.viewers {
		_ = v.host.SetWriteDeadline(t.limit()) // cannot fail
	}
}

// limit is zero for none. The caller holds mu.
func (t *Terminal) limit() time.Time {
	switch {
	case t.hurried:
		return time.Now().Add(stallEnd / stallTries)
	case t.present > 1:
		return time.Now().Add(stallMax / stallTries)
	}
	return time.Time{}
}

// End is for a command that has ended: that nobody is there has no effect any more.
func (t *Terminal) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.alone.Stop()
}

// replay makes of recorded output what can be shown once more: from the beginning of a line, if its beginning is missing,
// and without what asks the host's terminal something. Its answer would be typed into a program that did not ask.
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
