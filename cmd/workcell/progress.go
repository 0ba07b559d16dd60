package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// progress shows on standard error what is being done. On a terminal the last line is live: it shows what is running now
// and for how long. Elsewhere there are only plain lines. Safe for concurrent use.
type progress struct {
	w    io.Writer
	live bool
	now  func() time.Time

	mu     sync.Mutex // guards what follows and keeps lines whole
	status string
	since  time.Time
	shown  bool // a live line stands on the terminal
	pulls  map[string]*pullState

	stop chan struct{} // ends the ticker; nil when not live
	done chan struct{}
}

// newProgress starts telling. On a terminal it has a goroutine that redraws the live line until Close.
func newProgress(w io.Writer) *progress {
	p := &progress{w: w, now: time.Now, pulls: map[string]*pullState{}}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.live = true
		p.stop, p.done = make(chan struct{}), make(chan struct{})
		go p.tick()
	}
	return p
}

// Line writes a line that stays.
func (p *progress) Line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line(format, args...)
}

func (p *progress) line(format string, args ...any) {
	p.erase()
	fmt.Fprintln(p.w, sanitize.Line(fmt.Sprintf(format, args...)))
	p.draw()
}

// Status sets what the live line shows; empty clears it. It is nothing when standard error is no terminal.
func (p *progress) Status(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setStatus(text)
}

func (p *progress) setStatus(text string) {
	if p.status == "" && text != "" {
		p.since = p.now()
	}
	p.status = text
	p.erase()
	p.draw()
}

// Close erases the live line and ends the goroutine. Idempotent for a progress that is not live; call it once.
func (p *progress) Close() {
	if !p.live {
		return
	}
	close(p.stop)
	<-p.done
	p.Status("")
}

func (p *progress) tick() {
	defer close(p.done)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-t.C:
			p.mu.Lock()
			p.erase()
			p.draw()
			p.mu.Unlock()
		}
	}
}

func (p *progress) erase() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) draw() {
	if !p.live || p.status == "" {
		return
	}
	width := 80
	if f, ok := p.w.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 20 {
			width = w
		}
	}
	elapsed := p.now().Sub(p.since).Truncate(time.Second)
	fmt.Fprint(p.w, clip(fmt.Sprintf("%s … %s", sanitize.Line(p.status), elapsed), width-1))
	p.shown = true
}

// pullState adds up the layers of an image that is fetched.
type pullState struct {
	layers map[string]backend.PullProgress
}

// Pull is a session.Request's OnPull: it prints once that an image is fetched and keeps the live line up to date.
func (p *progress) Pull(ev backend.PullProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.pulls[ev.Image]
	if st == nil {
		st = &pullState{layers: map[string]backend.PullProgress{}}
		p.pulls[ev.Image] = st
		p.line("pulling image %s", ev.Image)
	}
	if ev.Layer != "" {
		st.layers[ev.Layer] = ev
	}
	var current, total int64
	for _, l := range st.layers {
		if l.Status == "Downloading" {
			current += l.Current
			total += l.Total
		}
	}
	text := fmt.Sprintf("pulling %s: %s", ev.Image, ev.Status)
	if total > 0 {
		text = fmt.Sprintf("pulling %s: %s of %s", ev.Image, byteSize(current), byteSize(total))
	}
	p.setStatus(text)
}

// byteSize writes a number of bytes for people.
func byteSize(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := int64(unit), 0
	for m := n / unit; m >= unit; m /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}
