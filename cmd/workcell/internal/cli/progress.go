package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// progress shows the current activity on standard error. On a terminal, the last line is live: it shows the current
// step and its duration. Otherwise, progress prints only plain lines. It is safe for concurrent use.
type progress struct {
	in   io.Reader // for answers of the user
	w    io.Writer
	kind string // kind of the run: workflow or agent
	live bool
	now  func() time.Time

	mu      sync.Mutex // guards the fields below and keeps lines whole
	status  string
	since   time.Time
	pull    string                                     // latest message of a pull
	pulled  time.Time                                  // time of pull
	held    bool                                       // the user is typing an answer, so nothing is drawn
	shown   bool                                       // the live line is visible
	pulls   map[string]map[string]backend.PullProgress // layers of images during a pull
	running []string                                   // current steps of runs, oldest first

	stop    chan struct{} // stops the ticker; nil without a live line
	done    chan struct{}
	restore func() // restores the console's mode; nil for nothing to do
}

// newProgress starts a progress display. On a terminal that supports control sequences, a goroutine redraws the live
// line until Close. dumb is whether the terminal does not support them.
func newProgress(in io.Reader, w io.Writer, dumb bool) *progress {
	p := &progress{in: in, w: w, kind: "workflow", now: time.Now, pulls: map[string]map[string]backend.PullProgress{}}
	_, onTerminal := terminal(w)
	if p.live = onTerminal && !dumb; p.live {
		p.restore = showSequences(w)
		p.stop, p.done = make(chan struct{}), make(chan struct{})
		go p.tick()
	}
	return p
}

// Line prints a permanent line.
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

// Status sets the text of the live line. Empty text clears the line. Status has no effect if standard error is not a
// terminal.
func (p *progress) Status(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setStatus(text)
}

func (p *progress) setStatus(text string) {
	if p.status == "" && text != "" {
		p.since = p.now()
	}
	if p.status = text; text == "" {
		p.pull = ""
	}
	p.erase()
	p.draw()
}

// Hold hides the live line while the user types an answer.
func (p *progress) Hold(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
	p.erase()
	p.draw()
}

// Close erases the live line and stops the goroutine. Call it once. Without a live line, it does nothing.
func (p *progress) Close() {
	if !p.live {
		return
	}
	close(p.stop)
	<-p.done
	p.Status("")
	if p.restore != nil {
		p.restore()
	}
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

// pullShown is the time to show the latest message of a pull instead of the status.
const pullShown = 3 * time.Second

func (p *progress) draw() {
	text := p.status
	if text == "" || p.now().Sub(p.pulled) < pullShown {
		text = cmp.Or(p.pull, text)
	}
	if !p.live || p.held || text == "" {
		return
	}
	width, _ := TerminalWidth(p.w)
	width = cmp.Or(width, 80) // unknown
	elapsed := p.now().Sub(p.since).Truncate(time.Second)
	fmt.Fprint(p.w, sanitize.Cut(fmt.Sprintf("%s … %s", sanitize.Line(text), elapsed), max(width-1, 1)))
	p.shown = true
}

// Pull implements OnPull of a session.Request. It prints one line per pulled image and updates the live line.
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
	if p.status == "" && p.pull == "" {
		p.since = p.now()
	}
	p.pull, p.pulled = text, p.now()
	p.erase()
	p.draw()
}

// Kind sets the kind of runs in messages.
func (p *progress) Kind(kind string) { p.kind = kind }

// Event implements workflow.Options.OnEvent.
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
			p.Line("  %-26s restarts because its conversation cannot continue: %s", ev.Path, ev.Lost)
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

// started announces slow steps. Other steps end too fast to read a message.
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

// Tool shows an agent's tool calls: running calls on the live line, and finished calls on permanent lines.
func (p *progress) Tool(agent string, e tools.ToolEvent) {
	if !e.Done {
		return
	}
	p.Line("    %s: %s %s after %s", agent, e.Tool, cmp.Or(e.Failure, "ok"), Short(e.Duration))
}

// slow reports whether steps of a type do more than decide.
func slow(t workflow.Type) bool {
	return slices.Contains([]workflow.Type{workflow.TypeAgent, workflow.TypeExec, workflow.TypeParallel,
		workflow.TypeForEach}, t)
}

// Short rounds a duration for display.
func Short(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return fmt.Sprint(d.Round(100 * time.Millisecond))
}

// Limits for the displayed output of a failed command.
const (
	lastWordsLines = 10
	lastWordsWidth = 200 // runes per line
)

// LastWords returns the last output lines of a workflow command from the output of the step. It prefers standard error
// to standard output.
func LastWords(output any) []string {
	fields, _ := output.(map[string]any)
	for _, stream := range []string{"stderr", "stdout"} {
		text, _ := fields[stream].(string)
		if strings.TrimSpace(text) == "" {
			continue
		}
		lines := strings.Split(strings.TrimRight(text, " \t\r\n"), "\n")
		lines = lines[max(0, len(lines)-lastWordsLines):]
		for i, line := range lines {
			lines[i] = sanitize.Cut(strings.TrimRight(line, "\r"), lastWordsWidth)
		}
		return lines
	}
	return nil
}
