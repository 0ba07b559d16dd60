package cli

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

// progress shows on standard error what is being done. On a terminal the last line is live: it shows what is running
// now and for how long. Elsewhere there are only plain lines. Safe for concurrent use.
type progress struct {
	in   io.Reader // where answers come from
	w    io.Writer
	kind string // of runs: workflow or agent
	live bool
	now  func() time.Time

	mu      sync.Mutex // guards what follows and keeps lines whole
	status  string
	since   time.Time
	held    bool                                       // somebody is asked something: nothing is drawn over the answer
	shown   bool                                       // a live line stands on the terminal
	pulls   map[string]map[string]backend.PullProgress // layers of the images that are fetched
	running []string                                   // steps of runs under way, oldest first

	stop chan struct{} // ends the ticker; nil when not live
	done chan struct{}
}

// newProgress starts telling. On a terminal it has a goroutine that redraws the live line until Close.
func newProgress(in io.Reader, w io.Writer) *progress {
	p := &progress{in: in, w: w, kind: "workflow", now: time.Now, pulls: map[string]map[string]backend.PullProgress{}}
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

// Hold keeps the live line away while somebody types an answer.
func (p *progress) Hold(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
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
	if !p.live || p.held || p.status == "" {
		return
	}
	width := 80
	if f, ok := p.w.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 20 {
			width = w
		}
	}
	elapsed := p.now().Sub(p.since).Truncate(time.Second)
	fmt.Fprint(p.w, sanitize.Cut(fmt.Sprintf("%s … %s", sanitize.Line(p.status), elapsed), width-1))
	p.shown = true
}

// Pull is a session.Request's OnPull: it prints once that an image is fetched and keeps the live line up to date.
func (p *progress) Pull(ev backend.PullProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	layers := p.pulls[ev.Image]
	if layers == nil {
		layers = map[string]backend.PullProgress{}
		p.pulls[ev.Image] = layers
		p.line("pulling image %s", ev.Image)
	}
	if ev.Layer != "" {
		layers[ev.Layer] = ev
	}
	var current, total int64
	for _, l := range layers {
		if l.Status == "Downloading" {
			current += l.Current
			total += l.Total
		}
	}
	text := fmt.Sprintf("pulling %s: %s", ev.Image, ev.Status)
	if total > 0 {
		text = fmt.Sprintf("pulling %s: %s of %s", ev.Image, ByteSize(current), ByteSize(total))
	}
	p.setStatus(text)
}

// Kind sets what runs are called.
func (p *progress) Kind(kind string) { p.kind = kind }

// Event is workflow.Options.OnEvent.
func (p *progress) Event(ev workflow.Event) {
	switch ev.Kind {
	case workflow.EventRunStarted:
		p.Line("run %s started: %s %s", ev.RunID, p.kind, ev.Workflow)
	case workflow.EventRunResumed:
		p.Line("run %s resumed: %s %s", ev.RunID, p.kind, ev.Workflow)
	case workflow.EventStepReplayed:
		p.Line("  %-26s already completed", ev.Path)
	case workflow.EventStepStarted:
		switch {
		case ev.Turns > 0:
			p.Line("  %-26s interrupted, continues after turn %d", ev.Path, ev.Turns)
		case ev.Lost != "":
			p.Line("  %-26s restarts because its conversation was not saved: %s", ev.Path, ev.Lost)
		case ev.Repeats:
			p.Line("  %-26s interrupted, restarts", ev.Path)
		}
		p.started(ev)
	case workflow.EventStepProgress:
		if ev.Repeats {
			p.Line("  %-26s restarts: %s", ev.Path, ev.Lost)
		} else {
			p.Line("  %-26s conversation no longer saved: %s", ev.Path, ev.Lost)
		}
	case workflow.EventStepFinished:
		p.finished(ev)
	case workflow.EventStepSkipped:
		p.Line("  %-26s skipped", ev.Path)
	case workflow.EventStepRetry:
		p.Line("  %-26s retries in %s", ev.Path, ev.Delay)
	case workflow.EventCleanup:
		if ev.Error != nil {
			p.Line("cleanup failed: %s; run `workcell sandbox ls` to list the remaining sandboxes", ev.Error.Message)
		}
	case workflow.EventRunFinished:
		p.Status("")
		p.Line("%s after %s", ev.Outcome, Short(ev.Duration))
	}
}

// started announces steps that take a while; the others are over before it could be read.
func (p *progress) started(ev workflow.Event) {
	if !slow(ev.Type) {
		return
	}
	what := string(ev.Type)
	if ev.Agent != "" {
		what += " " + ev.Agent
	}
	if !p.live {
		p.Line("  %-26s %s", ev.Path, what)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = append(p.running, ev.Path)
	p.setStatus(strings.Join(p.running, ", "))
}

func (p *progress) finished(ev workflow.Event) {
	word := "ok"
	if ev.Status != workflow.StatusSucceeded {
		word = string(ev.Status)
	}
	if slow(ev.Type) {
		word += " after " + Short(ev.Duration)
	}
	if ev.Next != "" {
		word += ", next: " + ev.Next
	}
	if ev.Error != nil {
		word += ": " + sanitize.Cut(sanitize.Line(ev.Error.Message), 300)
	}
	p.Line("  %-26s %s", ev.Path, word)
	if ev.Status == workflow.StatusFailed && ev.Type == workflow.TypeExec {
		for _, line := range LastWords(ev.Output) {
			p.Line("    | %s", line)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.running, ev.Path); i >= 0 {
		p.running = slices.Delete(p.running, i, i+1)
	}
	p.setStatus(strings.Join(p.running, ", "))
}

// Tool shows an agent's tool calls: what it does now on the live line, what it did in a line that stays.
func (p *progress) Tool(agent string, e tools.ToolEvent) {
	if !e.Done {
		return
	}
	word := "ok"
	if e.Failure != "" {
		word = e.Failure
	}
	p.Line("    %s: %s %s after %s", agent, e.Tool, word, Short(e.Duration))
}

// slow reports whether steps of a type do more than decide.
func slow(t workflow.Type) bool {
	return slices.Contains([]workflow.Type{workflow.TypeAgent, workflow.TypeExec, workflow.TypeParallel, workflow.TypeForEach}, t)
}

// Short rounds a duration for people.
func Short(d time.Duration) string {
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

// LastWords returns the last lines that a command of a workflow wrote, by the output of its step: of standard error,
// else of standard output.
func LastWords(output any) []string {
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
		lines[i] = sanitize.Cut(strings.TrimRight(line, "\r"), lastWordsWidth)
	}
	return lines
}
