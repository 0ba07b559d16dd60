package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/runtrace"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

const (
	keepAlive    = 10 * time.Second // an idle stream sends something, to keep the connection open
	pollEntries  = 50 * time.Millisecond
	pollRuns     = time.Second
	pollEngine   = 3 * time.Second
	streamEvents = "text/event-stream"
)

// events is an open stream of server-sent events.
type events struct {
	ctx context.Context // ends with the client, and with the server
	w   http.ResponseWriter

	questions func(context.Context) any // part of every page
}

// stream opens a stream. The caller must call end.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) (e *events, end func()) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(s.ctx, cancel)
	h := w.Header()
	h.Set("Content-Type", streamEvents)
	h.Set("X-Accel-Buffering", "no") // of proxies
	e = &events{ctx: ctx, w: w, questions: seldom(pollRuns, func(ctx context.Context) any {
		list, err := s.questions(ctx, "")
		return []any{list, err == nil}
	})}
	s.see(r, 1)
	_ = e.write(":\n\n") // the client connects at once, even if an engine is slow
	return e, func() { cancel(); stop(); s.see(r, -1) }
}

func (e *events) write(text string) error {
	if err := e.ctx.Err(); err != nil {
		return err
	}
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return http.NewResponseController(e.w).Flush()
}

// send sends an event.
func (e *events) send(name string, data any) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return e.write(fmt.Sprintf("event: %s\ndata: %s\n\n", name, raw))
}

// seldom returns a function like mark that calls mark at most once in a time, and returns the latest value.
func seldom(every time.Duration, mark func(context.Context) any) func(context.Context) any {
	var at time.Time
	var value any
	return func(ctx context.Context) any {
		if time.Since(at) >= every {
			at, value = time.Now(), mark(ctx)
		}
		return value
	}
}

// poll sends a change at first, because the page may be older, and if mark returns a new value, until the stream ends.
func (e *events) poll(every time.Duration, mark func(context.Context) any) {
	last, sent := "", time.Now()
	for e.ctx.Err() == nil {
		raw, err := json.Marshal([]any{mark(e.ctx), e.questions(e.ctx)})
		switch {
		case err == nil && string(raw) != last:
			last, sent = string(raw), time.Now()
			err = e.send("change", nil)
		case err == nil && time.Since(sent) >= keepAlive:
			sent = time.Now()
			err = e.write(":\n\n")
		}
		if err != nil {
			return
		}
		bound.Pause(e.ctx, every)
	}
}

// events rings when a page has changed: the page of a run or a sandbox, or a list.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if run := q.Get("run"); run != "" {
		return s.runEvents(w, r, run)
	}
	e, end := s.stream(w, r)
	defer end()
	switch r.SetPathValue("id", q.Get("sandbox")); {
	case q.Get("inbox") != "": // the questions are enough
		e.poll(pollRuns, func(context.Context) any { return nil })
	case q.Get("sandboxes") != "":
		e.poll(pollEngine, func(ctx context.Context) any {
			list, err := s.listSandboxes(ctx)
			return []any{list, err == nil}
		})
	case r.PathValue("id") != "":
		e.poll(pollEngine, func(ctx context.Context) any {
			var p sandboxPage
			err := s.look(r.WithContext(ctx), &p, func(ctx context.Context, box *session.Session) (err error) {
				p.Execs, err = app.Execs(ctx, box)
				return err
			})
			return []any{p, err == nil}
		})
	default:
		e.poll(pollRuns, func(ctx context.Context) any {
			list, err := s.opts.App.ListRuns(ctx, s.opts.Journal, runQuery(q))
			return []any{list, err == nil}
		})
	}
	return nil
}

// runEvents rings for new journal entries of a run, and for each change of the state or the trace.
func (s *Server) runEvents(w http.ResponseWriter, r *http.Request, run string) error {
	dir, err := s.opts.App.RunFiles()
	if err != nil {
		return err
	}
	e, end := s.stream(w, r)
	defer end()
	var last int64 // number of the latest entry
	var failed error
	rest := seldom(pollRuns, func(ctx context.Context) any {
		failed = nil
		known, err := s.opts.Journal.Run(ctx, run)
		state, _ := app.RunState(ctx, s.opts.Journal, known) // an unknown state is a state
		size := int64(-1)
		if info, err := os.Stat(dir.Of(run, runtrace.FileName)); err == nil {
			size = info.Size()
		}
		return []any{state, err == nil, size}
	})
	e.poll(pollEntries, func(ctx context.Context) any {
		seen := rest(ctx)
		if failed == nil { // otherwise it tries again with the next look at the rest
			var list []workflow.Entry
			if list, failed = s.opts.Journal.EntriesAfter(ctx, run, last); len(list) > 0 {
				last = list[len(list)-1].Seq
			}
		}
		return []any{seen, last, failed == nil}
	})
	return nil
}
