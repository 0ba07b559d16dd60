package executor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// maxDetail is the maximum size of Result.Detail in bytes.
const maxDetail = stderrTail

// line processes a line of the CLI's output.
func (r *run) line(b []byte, cut bool) error {
	if len(bytes.TrimSpace(b)) == 0 && !r.inv.Text {
		return nil
	}
	select {
	case r.alive <- struct{}{}:
	default:
	}
	if cut {
		r.event(Raw(b))
		return nil
	}
	for _, e := range r.parser.Line(b) {
		r.event(e)
	}
	if r.t.MaxTurns > 0 && r.turns >= r.t.MaxTurns && r.seen.End == nil {
		r.once.Do(func() { close(r.spent) })
	}
	return nil
}

// Raw returns the event for an unknown line. JSON of at most MaxToolText bytes is kept. Otherwise, the event has the
// beginning of the line as a JSON string.
func Raw(line []byte) Event {
	if len(line) > MaxToolText || !json.Valid(line) {
		// Encoding a string never fails.
		line, _ = json.Marshal(strings.ToValidUTF8(string(line[:min(len(line), MaxToolText)]), "\ufffd"))
	} else {
		line = append([]byte(nil), line...)
	}
	return Event{Kind: KindRaw, Raw: line}
}

// event records an event and passes it on.
func (r *run) event(e Event) {
	if e.Kind != KindRaw {
		r.seen.Events++
	}
	switch e.Kind {
	case KindSession:
		if r.seen.Session == "" && validID.MatchString(e.Session) {
			r.seen.Session = e.Session
			ctx := r.noting
			r.early.Go(func() { _ = r.remember(ctx, r.state.Told) }) // repeated at the end
		}
	case KindText:
		if !e.Delta || r.fresh {
			r.text = r.text[:0]
		}
		r.fresh = false
		if len(r.text) < maxLine {
			r.text = append(r.text, e.Text...)
		}
	case KindToolStart:
		r.fresh = true
		r.res.ToolCalls++
	case KindUsage:
		if r.inv.CountTurns {
			r.turns++
		}
		switch u := e.Usage; {
		case u == nil:
		case u.Whole:
			r.whole = u
		default:
			r.res.Told.add(*u, 1)
		}
	case KindEnd:
		r.seen.End = e.End
		if r.talk != nil {
			r.talk.close()
		}
		select {
		case r.said <- e.End.Outcome:
		default: // only the first result counts
		}
	}
	if r.o.OnEvent != nil {
		r.o.OnEvent(e)
	}
}

// count subtracts the usage of earlier invocations from the session's usage.
func (r *run) count() {
	if r.whole == nil {
		return
	}
	r.res.Told = *r.whole
	r.res.Told.Whole = false
	if r.res.Resumed {
		r.res.Told.add(r.state.Told, -1)
	}
}

// add adds v multiplied by sign. Counts do not fall below zero.
func (u *Usage) add(v Usage, sign int64) {
	u.Input = max(0, u.Input+sign*v.Input)
	u.Output = max(0, u.Output+sign*v.Output)
	u.CacheRead = max(0, u.CacheRead+sign*v.CacheRead)
	u.CacheWrite = max(0, u.CacheWrite+sign*v.CacheWrite)
}

// answer sets the CLI's answer in the result.
func (r *run) answer() {
	r.res.Text = string(r.text)
	if end := r.seen.End; end != nil {
		r.res.Text, r.res.Data, r.res.Turns = cmp.Or(end.Text, r.res.Text), end.Data, end.Turns
	}
	r.res.Turns = max(r.res.Turns, r.turns)
	if r.t.Schema != nil && r.res.Data == nil && json.Valid([]byte(r.res.Text)) {
		r.res.Data = []byte(strings.TrimSpace(r.res.Text))
	}
}

// explain sets Detail in the result. It prefers the error known to this package, then the CLI's message, then the
// standard error.
func (r *run) explain(ended bool) {
	detail := ""
	if r.seen.End != nil {
		detail = strings.TrimSpace(sanitize.Text(r.seen.End.Detail))
	}
	detail = cmp.Or(detail, r.seen.Stderr)
	switch {
	case r.res.Outcome == Completed, r.res.Outcome == Cancelled, r.res.Outcome == Budget, r.res.Outcome == MaxTurns:
		detail = ""
	case r.res.Outcome == TimedOut:
		detail = "after " + r.o.Timeout.String()
	case r.res.Outcome == Stalled:
		detail = "no events for " + r.o.Stall.String()
	case ended && r.res.Outcome == Crashed && r.seen.End == nil:
		detail = strings.TrimSpace("no events in its first " + r.o.Start.String() + "\n" + r.seen.Stderr)
	case r.res.Exit.Limit != "":
		detail = r.res.Exit.Limit + "\n" + detail
	case detail == "" && r.res.Exit.Signal != "":
		detail = "killed by " + r.res.Exit.Signal
	case detail == "":
		detail = fmt.Sprintf("exit code %d", r.res.Exit.ExitCode)
	}
	r.res.Detail = strings.ToValidUTF8(detail[:min(len(detail), maxDetail)], "")
}

// CutText truncates a text to MaxToolText.
func CutText(s string) string {
	if len(s) <= MaxToolText {
		return s
	}
	return strings.ToValidUTF8(s[:MaxToolText], "")
}

// CutInput returns the input of a tool. It returns nil if the input is longer than MaxToolText or invalid JSON.
func CutInput(raw json.RawMessage) json.RawMessage {
	if len(raw) > MaxToolText || !json.Valid(raw) {
		return nil
	}
	return raw
}
