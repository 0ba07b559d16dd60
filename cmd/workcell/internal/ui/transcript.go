package ui

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/workflow"
)

const (
	partsPerPage = 200
	maxSaid      = 8 << 10 // bytes of a part
)

// transcriptPage is the data of transcript.html.
type transcriptPage struct {
	head
	At         string         // selected attempt
	Attempts   []app.StepView // of the step
	Parts      []said
	From, Next int // numbers of the first part, and of the first part of the next page, or zero
	Total      int
	Missing    string // why no conversation is shown
}

// said is a part of a conversation.
type said struct {
	transcript.Part
	value
	Kind string // of the color: model, tool, or step
	Head bool   // first part of a turn
	Last bool   // Head of the last turn
}

func (s *Server) transcript(w http.ResponseWriter, r *http.Request, h head) error {
	q := r.URL.Query()
	body := transcriptPage{head: h, At: q.Get("at")}
	steps := slices.DeleteFunc(h.Steps(), func(st app.StepView) bool { return st.Entry.Agent == "" })
	i := slices.IndexFunc(steps, func(st app.StepView) bool { return stepID(st.Entry) == body.At })
	if i < 0 {
		return app.Fail(app.ExitNotFound, fmt.Errorf("agent step %q not found in run %s", body.At, h.ID), "")
	}
	st := steps[i]
	e := st.Entry
	body.Attempts = slices.DeleteFunc(steps, func(other app.StepView) bool { return other.Entry.Path != e.Path })
	of := app.TranscriptOf{Step: e.Path, Visit: e.Visit, Attempt: e.Attempt}
	list, err := s.opts.App.Transcript(r.Context(), s.opts.Journal, h.ID, of)
	if code, _ := app.Classify(err); err != nil && code != app.ExitNotFound {
		return err
	} else if err != nil {
		body.Missing = s.notKept(st, h)
	}
	body.Total = len(list)
	if n, err := strconv.Atoi(q.Get("part")); err == nil && n >= 0 && n < len(list) {
		return send(w, r, fmt.Sprintf("%s.%d.txt", e.Step, n), strings.NewReader(partText(list[n].Part)))
	}
	if body.From, err = strconv.Atoi(q.Get("from")); err != nil && st.State == string(workflow.StatusFailed) {
		body.From = len(list) - partsPerPage // the last turn
	}
	body.From = min(max(body.From, 0), len(list))
	if end := body.From + partsPerPage; end < len(list) {
		body.Next = end
	}
	last := -1
	for n, p := range list[body.From:min(body.From+partsPerPage, len(list))] {
		whole := fmt.Sprintf("?at=%s&part=%d", url.QueryEscape(body.At), body.From+n)
		part := said{Part: p.Part, value: cutValue("", partText(p.Part), whole, maxSaid), Kind: "step"}
		switch {
		case p.Tool != "":
			part.Kind = "tool"
		case p.Role == "model":
			part.Kind = "model"
		}
		if part.Head = n == 0 || p.Turn != body.Parts[n-1].Turn; part.Head {
			last = n
		}
		body.Parts = append(body.Parts, part)
	}
	if last >= 0 && body.Next == 0 {
		body.Parts[last].Last = true
	}
	return s.render(w, r, http.StatusOK, "transcript", runPage(h, body))
}

func partText(p transcript.Part) string {
	switch {
	case p.Media != "":
		return "[" + p.Media + "]"
	case p.Input != nil:
		return jsonText(p.Input)
	case p.Output != nil:
		return jsonText(p.Output)
	}
	return p.Text
}

// notKept returns the probable reason why no conversation of an attempt is in the journal.
func (s *Server) notKept(st app.StepView, h head) string {
	conf, err := s.opts.App.Config()
	u := st.Entry.Usage
	switch {
	case st.Finished.IsZero():
		return "the agent has called no tool yet"
	case u != nil && u.Calls == 0:
		return "the agent called no tool, and only conversations with tool calls are recorded"
	case err != nil:
		return err.Error()
	case conf.KeepTranscripts == 0:
		return "retention.transcripts is 0"
	case h.Now.Sub(st.Finished) > conf.KeepTranscripts:
		return "it is older than retention.transcripts, which is " + conf.KeepTranscripts.String()
	}
	return "conversations of coding agents and conversations without tool calls are not recorded"
}
