package app

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// journals returns an App with an empty state directory, and the journals.
func journals(t *testing.T) (*App, runstore.Store) {
	t.Helper()
	a := New(Options{Env: os.LookupEnv, Stderr: io.Discard, StateDir: t.TempDir()})
	j, err := a.OpenJournal(t.Context())
	checktest.Must(t, err)
	t.Cleanup(func() { _ = j.Close() }) // the last entry is already on disk
	return a, j
}

// journal appends entries of a run after the start.
func journal(t *testing.T, j workflow.Journal, run string, list ...workflow.Entry) {
	t.Helper()
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	start := workflow.Entry{Kind: workflow.EventRunStarted, Workflow: "w", Hash: "h"}
	for i, e := range append([]workflow.Entry{start}, list...) {
		e.RunID, e.Seq, e.Time = run, int64(i+1), at.Add(time.Duration(i)*time.Second)
		checktest.Must(t, j.Append(t.Context(), e))
	}
}

func step(kind workflow.EventKind, path string) workflow.Entry {
	return workflow.Entry{Kind: kind, Path: path, Type: workflow.TypeAgent, Visit: 1, Attempt: 1}
}

// TestListRuns verifies that a state selects runs on all pages, also a state depending on processes.
func TestListRuns(t *testing.T) {
	t.Parallel()
	a, j := journals(t)
	for i := range 9 {
		owner, list := "", []workflow.Entry{step(workflow.EventStepStarted, "fix")}
		switch i % 3 {
		case 1:
			owner = "dead"
		case 2:
			end := workflow.Entry{Kind: workflow.EventRunFinished, Outcome: workflow.Failed}
			end.Error = &workflow.Error{Message: "no"}
			list = append(list, end)
		}
		journal(t, j.For(owner, ""), fmt.Sprintf("run_%d", i), list...)
	}
	for state, want := range map[string]string{
		RunQueued: "run_6 run_3|run_0", RunInterrupted: "run_7 run_4|run_1", string(workflow.Failed): "run_8 run_5|run_2",
		RunRunning: "", string(workflow.Succeeded): "",
	} {
		var got []string
		q := RunQuery{State: state, Limit: 2}
		for {
			page, err := a.ListRuns(t.Context(), j, q)
			checktest.Must(t, err)
			var ids []string
			for _, r := range page.Runs {
				failed := r.Error == "no" && r.Step == ""
				if ids = append(ids, r.ID); r.State != state || failed != (state == string(workflow.Failed)) {
					t.Errorf("%+v", r)
				}
			}
			got = append(got, strings.Join(ids, " "))
			if q.Before = page.Next; q.Before == "" {
				break
			}
		}
		if text := strings.Join(got, "|"); text != want {
			t.Errorf("%s: %s, want %s", state, text, want)
		}
	}
}

// TestTranscript verifies that the conversation of each attempt is returned with the answer after the end.
func TestTranscript(t *testing.T) {
	t.Parallel()
	a, j := journals(t)
	part := func(attempt int, text string) workflow.Entry {
		e := step(workflow.EventStepProgress, "fix")
		e.Attempt, e.Conversation = attempt, json.RawMessage(text)
		return e
	}
	turn := `{"turn":{"number":1,"messages":[{"content":[{"text":"go"}],"role":"user"}],` +
		`"answer":{"content":[{"toolRequest":{"name":"x","ref":"1"}}],"role":"model"}}}`
	call := `{"call":{"turn":1,"ref":"1","result":{"output":"ok"}}}`
	failed, done := step(workflow.EventStepFinished, "fix"), step(workflow.EventStepFinished, "fix")
	failed.Status, failed.Retry = workflow.StatusFailed, true
	done.Attempt, done.Status, done.Output, done.Has = 2, workflow.StatusSucceeded, "fixed", true
	journal(t, j, "run_1", part(1, turn), failed, part(2, turn), part(2, call), done,
		workflow.Entry{Kind: workflow.EventRunFinished, Outcome: workflow.Succeeded})
	for attempt, want := range map[int]string{
		0: "1 user go;1 model x;2 user go;2 model x;2 tool x ok;2 model fixed", 1: "1 user go;1 model x",
		2: "2 user go;2 model x;2 tool x ok;2 model fixed",
	} {
		list, err := a.Transcript(t.Context(), j, "run_1", TranscriptOf{Step: "fix", Attempt: attempt})
		checktest.Must(t, err)
		var got []string
		for _, p := range list {
			text := fmt.Sprint(p.Attempt, " ", p.Role, " ", p.Tool)
			if text = strings.TrimSpace(text) + " " + p.Text; p.Output != nil {
				text += fmt.Sprint(p.Output)
			}
			got = append(got, strings.TrimSpace(text))
		}
		if text := strings.Join(got, ";"); text != want {
			t.Errorf("attempt %d: %s, want %s", attempt, text, want)
		}
	}
	_, err := a.Transcript(t.Context(), j, "run_1", TranscriptOf{Step: "test"})
	if err == nil || !strings.Contains(err.Error(), "no conversation of step test") {
		t.Errorf("of another step: %v", err)
	}
}
