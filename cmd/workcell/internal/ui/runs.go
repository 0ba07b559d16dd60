package ui

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/runtrace"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

const (
	runsPerPage = 50
	maxName     = 200 // characters of a workflow's name
)

// runsPage is the data of runs.html.
type runsPage struct {
	app.RunPage
	Query  app.RunQuery
	States []string
	Waits  map[string]runstore.Approval // the oldest question of each waiting run
	Older  string                       // URL of the next page; empty on the last page
	Now    time.Time
}

func runQuery(q url.Values) app.RunQuery {
	return app.RunQuery{
		State: q.Get("state"), Workflow: q.Get("workflow"), Text: q.Get("q"), Before: q.Get("before"), Limit: runsPerPage,
	}
}

func (s *Server) runs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	body := runsPage{Query: runQuery(q), Now: time.Now(), States: app.RunStates}
	var err error
	if body.RunPage, err = s.opts.App.ListRuns(r.Context(), s.opts.Journal, body.Query); err != nil {
		return err
	}
	waiting, err := s.questions(r.Context(), "")
	if err != nil {
		return err
	}
	body.Waits = map[string]runstore.Approval{}
	for _, q := range slices.Backward(waiting) {
		body.Waits[q.Run] = q
	}
	if body.Next != "" {
		q.Set("before", body.Next)
		body.Older = "/runs?" + q.Encode()
	}
	p := page{Title: "Runs", Nav: "runs", Events: "/events?" + r.URL.RawQuery, Body: body}
	return s.render(w, r, http.StatusOK, "runs", p)
}

// head is the top of every page of a run.
type head struct {
	app.RunDetail
	questions
	Tab string
	Now time.Time
}

// Shown returns the run's state. A run with an open question waits.
func (h head) Shown() string {
	if len(h.Open) > 0 {
		return waits
	}
	return h.State
}

// Live reports whether the run's process is running.
func (h head) Live() bool { return h.State == app.RunRunning }

// ofRun returns the handler of a run's page.
func (s *Server) ofRun(tab string, serve func(http.ResponseWriter, *http.Request, head) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		detail, err := s.opts.App.ShowRun(r.Context(), s.opts.Journal, r.PathValue("run"))
		h := head{RunDetail: detail, Tab: tab, Now: time.Now(), questions: questions{Done: s.done(r), Back: true}}
		if err == nil && h.Finished.IsZero() {
			h.Open, err = s.questions(r.Context(), h.ID)
		}
		if err != nil {
			return err
		}
		return serve(w, r, h)
	}
}

// runPage returns the layout's data for a page of a run.
func runPage(h head, body any) page {
	p := page{Title: sanitize.Cut(h.Workflow, maxName) + " " + sign(h.Shown()) + " " + h.ID, Nav: "runs", Body: body}
	if h.Finished.IsZero() {
		p.Events = "/events?run=" + url.QueryEscape(h.ID)
	}
	return p
}

// timelinePage is the data of run.html.
type timelinePage struct {
	head
	timeline
	All     bool
	NoTrace string  // why there are no spans
	Values  []value // input
}

func (s *Server) run(w http.ResponseWriter, r *http.Request, h head) error {
	q := r.URL.Query()
	body := timelinePage{head: h, All: q.Get("all") != ""}
	traces, why := s.traces(h)
	body.NoTrace = why
	talks := map[string][]app.TranscriptPart{} // of the running agents
	for _, st := range h.Steps() {
		if e := st.Entry; h.Live() && st.State == app.RunRunning && e.Agent != "" {
			of := app.TranscriptOf{Step: e.Path, Visit: e.Visit, Attempt: e.Attempt}
			talks[stepID(e)], _ = s.opts.App.Transcript(r.Context(), s.opts.Journal, h.ID, of) // it may be empty
		}
	}
	body.timeline = newTimeline(h, traces, talks, body.All, q.Get("at"), q.Get("from"))
	if len(h.Entries) > 0 {
		if h.Entries[0].Input != nil {
			body.Values = []value{newValue("Input", jsonText(h.Entries[0].Input), rawURL(h.Entries[0], "entry"))}
		}
	}
	return s.render(w, r, http.StatusOK, "run", runPage(h, body))
}

// cancelWait is how long a request waits for a run to stop. The page shows the later states.
const cancelWait = 3 * time.Second

// cancel asks the process of a run to stop, or ends an interrupted run.
func (s *Server) cancel(w http.ResponseWriter, r *http.Request) error {
	run, err := app.FindRun(r.Context(), s.opts.Journal, r.PathValue("run"))
	if err == nil {
		err = s.note(r, run.ID)
	}
	if err != nil {
		return err
	}
	ctx := context.WithoutCancel(r.Context()) // otherwise closing the tab would leave a run that cannot be resumed
	_, err = s.opts.App.Cancel(ctx, s.opts.Journal, run.ID, cancelWait)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return redirect(w, r, "/runs/"+url.PathEscape(run.ID))
}

// traces returns the traces of a run, or the reason why there are none.
func (s *Server) traces(h head) (list []*runtrace.Trace, why string) {
	dir, err := s.opts.App.RunFiles()
	if err != nil {
		return nil, err.Error()
	}
	f, err := os.Open(dir.Of(h.ID, runtrace.FileName))
	switch {
	case errors.Is(err, fs.ErrNotExist) && h.Detached:
		return nil, "the trace is on the host of the run's worker"
	case errors.Is(err, fs.ErrNotExist):
		return nil, "no spans are stored"
	case err != nil:
		return nil, err.Error()
	}
	defer f.Close() // opened for reading only
	if list, err = runtrace.Read(f); err != nil {
		return nil, err.Error()
	}
	return list, ""
}

const entriesPerPage = 200

// journalPage is the data of journal.html.
type journalPage struct {
	head
	Part []workflow.Entry
	From int64 // number of the last entry before this page
	Next int64 // From of the next page, or zero
}

func (s *Server) journal(w http.ResponseWriter, r *http.Request, h head) error {
	body := journalPage{head: h}
	body.From, _ = strconv.ParseInt(r.URL.Query().Get("from"), 10, 64) // anything else means the start
	for _, e := range h.Entries {
		switch {
		case e.Seq <= body.From:
		case len(body.Part) == entriesPerPage:
			body.Next = body.Part[entriesPerPage-1].Seq
		default:
			body.Part = append(body.Part, e)
		}
	}
	return s.render(w, r, http.StatusOK, "journal", runPage(h, body))
}

// rawURL returns the URL of a download of rawStep.
func rawURL(e workflow.Entry, field string) string {
	return "/runs/" + url.PathEscape(e.RunID) + "/steps/" + strconv.FormatInt(e.Seq, 10) + "/" + field
}

// rawStep downloads an entry or a field of it: the output, or one stream of a command.
func (s *Server) rawStep(w http.ResponseWriter, r *http.Request, h head) error {
	field := r.PathValue("field")
	for _, e := range h.Entries {
		if strconv.FormatInt(e.Seq, 10) != r.PathValue("seq") {
			continue
		}
		fields, _ := e.Output.(map[string]any)
		text, found := fields[field].(string)
		switch {
		case field == "entry":
			text, found = jsonText(e), true
		case field == "output" && e.Has:
			text, found = jsonText(e.Output), true
		case field != "stdout" && field != "stderr": // the link would choose the type of the file
			found = false
		}
		if found {
			return send(w, r, cmp.Or(e.Step, "run")+"."+field, strings.NewReader(text))
		}
	}
	return app.Fail(app.ExitNotFound, errors.New("the step has no such output"), "")
}
