package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
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

// runProgress shows a run's steps.
type runProgress struct {
	p *progress

	mu      sync.Mutex // guards running
	running []string   // steps under way, oldest first
}

// event is workflow.Options.OnEvent.
func (r *runProgress) event(ev workflow.Event) {
	switch ev.Kind {
	case workflow.EventRunStarted:
		r.p.Line("run %s of %s", ev.RunID, ev.Workflow)
	case workflow.EventRunResumed:
		r.p.Line("run %s of %s goes on", ev.RunID, ev.Workflow)
	case workflow.EventStepReplayed:
		r.p.Line("  %-26s done before", ev.Path)
	case workflow.EventStepStarted:
		if ev.Repeats {
			r.p.Line("  %-26s again: it was under way when the run was interrupted", ev.Path)
		}
		r.started(ev)
	case workflow.EventStepFinished:
		r.finished(ev)
	case workflow.EventStepSkipped:
		r.p.Line("  %-26s skipped", ev.Path)
	case workflow.EventStepRetry:
		r.p.Line("  %-26s again in %s", ev.Path, ev.Delay)
	case workflow.EventCleanup:
		if ev.Error != nil {
			r.p.Line("sandboxes may be left behind: %s; `workcell sessions ls` shows them", ev.Error.Message)
		}
	case workflow.EventRunFinished:
		r.p.Status("")
		r.p.Line("%s after %s", ev.Outcome, short(ev.Duration))
	}
}

// started announces steps that take a while; the others are over before it could be read.
func (r *runProgress) started(ev workflow.Event) {
	if !slow(ev.Type) {
		return
	}
	what := string(ev.Type)
	if ev.Agent != "" {
		what += " " + ev.Agent
	}
	if !r.p.live {
		r.p.Line("  %-26s %s", ev.Path, what)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, ev.Path)
	r.show()
}

func (r *runProgress) finished(ev workflow.Event) {
	word := "ok"
	if ev.Status != workflow.StatusSucceeded {
		word = string(ev.Status)
	}
	if slow(ev.Type) {
		word += " after " + short(ev.Duration)
	}
	if ev.Next != "" {
		word += ", on to " + ev.Next
	}
	if ev.Error != nil {
		word += ": " + clip(sanitize.Line(ev.Error.Message), 300)
	}
	r.p.Line("  %-26s %s", ev.Path, word)
	if ev.Status == workflow.StatusFailed && ev.Type == workflow.TypeExec {
		for _, line := range lastWords(ev.Output) {
			r.p.Line("    | %s", line)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.running, ev.Path); i >= 0 {
		r.running = slices.Delete(r.running, i, i+1)
	}
	r.show()
}

// tool shows an agent's tool calls: what it does now on the live line, what it did in a line that stays.
func (r *runProgress) tool(agent string, e tools.ToolEvent) {
	if !e.Done {
		return
	}
	word := "ok"
	if e.Failure != "" {
		word = string(e.Failure)
	}
	r.p.Line("    %s: %s %s after %s", agent, e.Tool, word, short(e.Duration))
}

// show puts the steps under way on the live line; mu is held.
func (r *runProgress) show() {
	r.p.Status(strings.Join(r.running, ", "))
}

// slow reports whether steps of a type do more than decide.
func slow(t workflow.Type) bool {
	switch t {
	case workflow.TypeAgent, workflow.TypeExec, workflow.TypeParallel, workflow.TypeForEach:
		return true
	}
	return false
}

// short rounds a duration for people.
func short(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return fmt.Sprint(d.Round(100 * time.Millisecond))
}

// What is shown of what a failed command wrote.
const (
	lastWordsLines = 10
	lastWordsWidth = 200 // runes of a line
)

// lastWords returns the last lines that a command of a workflow wrote, by the output of its step: of standard error, else of
// standard output.
func lastWords(output any) []string {
	fields, _ := output.(map[string]any)
	text := ""
	for _, stream := range []string{"stderr", "stdout"} {
		if s, _ := fields[stream].(string); strings.TrimSpace(s) != "" {
			text = strings.TrimRight(s, " \t\r\n")
			break
		}
	}
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-lastWordsLines):]
	for i, line := range lines {
		lines[i] = clip(strings.TrimRight(line, "\r"), lastWordsWidth)
	}
	return lines
}
