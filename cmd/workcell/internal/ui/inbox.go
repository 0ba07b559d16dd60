package ui

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/httpguard"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

const (
	maxQuestions = 200
	maxAnswered  = 50
	waits        = "waits" // state of a run with an open question

	// awayTime is how long the server remains an approver after the last page was closed. Hidden pages have no stream and
	// send a request every 20 seconds, or every minute if the browser saves power.
	awayTime = 90 * time.Second
)

// questions are the calls waiting for approval, for the template of the same name.
type questions struct {
	Open []runstore.Approval
	Done *runstore.Approval // the client has just answered it
	Back bool               // return to the page of the run
}

// questions returns the open questions, oldest first. An empty run selects all.
func (s *Server) questions(ctx context.Context, run string) ([]runstore.Approval, error) {
	list, err := s.opts.App.Approvals(ctx, s.opts.Journal)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range list {
		if !slices.Contains(s.asked, q.ID) {
			s.asked = append(s.asked[max(len(s.asked)+1-maxQuestions-maxAnswered, 0):], q.ID)
		}
	}
	return slices.DeleteFunc(list, func(q runstore.Approval) bool { return run != "" && q.Run != run }), err
}

// answered returns the latest closed questions of this server's pages, newest first.
func (s *Server) answered(ctx context.Context, open []runstore.Approval) (list []runstore.Approval, err error) {
	s.mu.Lock()
	ids := slices.Clone(s.asked)
	s.mu.Unlock()
	for _, id := range slices.Backward(ids) {
		if len(list) == maxAnswered || slices.ContainsFunc(open, func(q runstore.Approval) bool { return q.ID == id }) {
			continue
		}
		found, err := s.opts.Journal.Approvals(ctx, id)
		if list = append(list, found...); err != nil {
			return list, err
		}
	}
	return list, nil
}

// done returns the question just answered by the client, or nil.
func (s *Server) done(r *http.Request) *runstore.Approval {
	if id := r.URL.Query().Get("done"); id != "" {
		if list, _ := s.opts.Journal.Approvals(r.Context(), id); len(list) == 1 {
			return &list[0]
		}
	}
	return nil
}

// verdict describes the answer to a question.
func verdict(q runstore.Approval) string {
	switch q.Answer {
	case "":
		return "not answered in time"
	case runstore.AllowedTool:
		return "allowed for the rest of the run by " + q.By
	case runstore.Withdrawn:
		return "not answered, and withdrawn by " + q.By
	}
	return q.Answer + " by " + q.By
}

// inboxPage is the data of inbox.html.
type inboxPage struct {
	questions
	More     int // number of hidden questions
	Answered []runstore.Approval
}

func (s *Server) inbox(w http.ResponseWriter, r *http.Request) error {
	list, err := s.questions(r.Context(), "")
	if err != nil {
		return err
	}
	body := inboxPage{questions: questions{Open: list, Done: s.done(r)}, More: max(len(list)-maxQuestions, 0)}
	if body.Answered, err = s.answered(r.Context(), list); err != nil {
		return err
	}
	body.Open = list[:len(list)-body.More]
	return s.render(w, r, http.StatusOK, "inbox", page{Title: "Inbox", Nav: "inbox", Body: body})
}

// answer answers a question. Exactly one answer counts; later ones fail.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) error {
	ctx, id := r.Context(), r.PathValue("id")
	d, known := map[string]hosttools.Decision{
		"allow": {Allow: true}, "tool": {Allow: true, For: hosttools.ForTool}, "deny": {Note: r.PostFormValue("note")},
	}[r.PathValue("answer")]
	if !known {
		return app.Fail(app.ExitNotFound, fmt.Errorf("%s not found", r.URL.Path), "")
	}
	list, err := s.opts.Journal.Approvals(ctx, id)
	if err == nil && len(list) != 1 { // Answer accepts prefixes, but a page shows the call it answers
		err = app.Fail(app.ExitNotFound, fmt.Errorf("approval request %s not found", id), "")
	}
	if err != nil {
		return err
	}
	q := list[0]
	if err := s.note(r, q.Run); err != nil {
		return err
	}
	by, _ := s.identify(r) // ServeHTTP has checked it
	if by == httpguard.Local {
		by = cmp.Or(s.opts.User, "a user of the page")
	}
	if q, err = s.opts.App.Answer(ctx, s.opts.Journal, id, d, by); err != nil {
		return err
	}
	to := "/inbox"
	if r.URL.Query().Get("back") != "" {
		to = "/runs/" + url.PathEscape(q.Run)
	}
	return redirect(w, r, to+"?done="+url.QueryEscape(q.ID))
}

// see notes more or fewer streams, or a request, of a browser with the right to approve. Programs with a token do not
// count.
func (s *Server) see(r *http.Request, streams int64) {
	program := strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ")
	if proxied, _ := s.proxied(r); !s.opts.may(approves) || program && !(proxied && s.opts.UserName != "") {
		return
	}
	s.browsers.Add(streams)
	select {
	case s.seen <- struct{}{}:
	default: // attend has not received the previous element
	}
}

// attend registers the server as an approver while a page is open, until the server ends. If other processes consider
// it dead, because the database was not reachable, it registers again.
func (s *Server) attend() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.seen:
		}
		for lost := true; lost && s.ctx.Err() == nil; {
			owner, leave, err := s.opts.App.Attend(s.ctx, s.opts.Journal, s.records)
			if err == nil {
				lost = s.stay(owner)
				err = leave()
			}
			if err != nil && s.ctx.Err() == nil {
				s.opts.App.Notice("the page is not registered as an approver: %v", err)
				break // the next request of a page tries again
			}
		}
	}
}

// stay returns when no page is open, or, with true, when other processes consider the owner dead.
func (s *Server) stay(owner string) (lost bool) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	dead := make(chan struct{})
	go state.AwaitLost(ctx, s.records, owner, func(error) { close(dead) })
	for {
		select {
		case <-ctx.Done():
			return false
		case <-dead:
			return true
		case <-s.seen:
		case <-time.After(cmp.Or(s.opts.away, awayTime)):
			if s.browsers.Load() == 0 {
				return false
			}
		}
	}
}
