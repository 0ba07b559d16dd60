package ui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/ui"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// join adds a living owner.
func (r *rig) join() (leave func() error) {
	r.t.Helper()
	place, err := r.app.State()
	checktest.Must(r.t, err)
	records, err := place.OpenRecords(r.t.Context())
	if err == nil {
		r.owner, leave, err = records.Join(r.t.Context())
	}
	checktest.Must(r.t, err)
	r.t.Cleanup(func() { _ = leave(); _ = records.Close() }) // the test may have left
	return leave
}

// ask adds a question of a run.
func (r *rig) ask(id, run, words, args string, left time.Duration) {
	r.t.Helper()
	err := r.journal.Ask(r.t.Context(), runstore.Approval{
		ID: id, Run: run, Workflow: words, Step: words, Agent: words, Server: "orders", Tool: "refund" + words, Why: words,
		Args: json.RawMessage(args), Owner: r.owner, Asked: time.Now(), Until: time.Now().Add(left),
	})
	checktest.Must(r.t, err)
}

// post answers a question and returns the resulting page.
func (r *rig) post(c *http.Client, path, note string) (int, string) {
	r.t.Helper()
	res := r.do(c, http.MethodPost, path, func(req *http.Request) {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Body = http.NoBody
		if note != "" {
			body := url.Values{"note": {note}}.Encode()
			req.Body, req.ContentLength = readCloser{strings.NewReader(body)}, int64(len(body))
		}
	})
	return res.StatusCode, text(r.t, res)
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// TestInbox verifies that a question is in the inbox, in the list of runs, and on its run's page, every page has
// the number, and each answer is recorded with the name of the person.
func TestInbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *ui.Options) { o.User = "ben" })
	r.join()
	r.addRun("run_done", "wf", "out")
	r.add("run_waits", workflow.Entry{Kind: workflow.EventRunStarted, Workflow: "pay"})
	want(t, r.page("/inbox"), "No call waits for approval.")
	long := `{"id":"one","amount":1000000000000000000001,"id":"two","text":"` + strings.Repeat("x", 3900) + `"}`
	for _, answer := range []struct{ verb, note, stored, seen string }{
		{"allow", "", runstore.Allowed, "allowed by ben"},
		{"tool", "", runstore.AllowedTool, "allowed for the rest of the run by ben"},
		{"deny", "at most 50", runstore.Denied, "denied by ben “at most 50”"},
		{"deny", "", runstore.Denied, "denied by ben"},
	} {
		id := "question" + answer.verb + answer.stored + answer.note[:min(len(answer.note), 2)]
		r.ask(id, "run_waits", "", long, time.Hour)
		want(t, r.page("/inbox"), "orders.refund", `"amount": 1000000000000000000001, "id": "two"`, strings.Repeat("x", 3900),
			"Allow once", "59:", " left")
		want(t, r.page("/runs"), "waits", "orders.refund")
		want(t, r.page("/runs/run_waits"), "◆ waits", "orders.refund", "Allow once", `"id": "one"`)
		for _, at := range []string{"/runs", "/runs/run_done", "/runs/run_waits/journal", "/sandboxes", "/inbox"} {
			page := r.page(at)
			want(t, page, "Inbox 1")
			if !strings.Contains(page, "<title>(1) ") || !strings.Contains(page, "data-events=") {
				t.Errorf("%s has no number in its title, or no stream", at)
			}
		}
		status, page := r.post(r.client, "/inbox/"+id+"/"+answer.verb, answer.note)
		if want(t, page, answer.seen); status != http.StatusOK || strings.Contains(page, "<title>(1)") {
			t.Errorf("%s: %d", answer.verb, status)
		}
		list, err := r.journal.Approvals(t.Context(), id)
		if got := (runstore.Reply{Answer: answer.stored, Note: answer.note, By: "ben"}); err != nil || list[0].Reply != got {
			t.Errorf("%s: %+v, %v", answer.verb, list, err)
		}
	}
	deep := strings.Repeat(`["\"[",`, 280) + "1" + strings.Repeat("]", 280)
	r.ask("question_deep", "run_waits", "", deep, time.Hour)
	if page := r.page("/inbox"); !strings.Contains(visible(t, page), deep) || len(page) > 64<<10 {
		t.Errorf("a page of %d bytes for deep arguments", len(page))
	}
	checktest.Must(t, errorOf(r.app.Answer(t.Context(), r.journal, "question_deep", hosttools.Decision{}, "x")))
	// From the page of the run, and with a token.
	r.ask("question_run", "run_waits", "", "{}", time.Hour)
	if _, page := r.post(r.client, "/inbox/question_run/allow?back=1", ""); !strings.Contains(page, "<h1>pay</h1>") {
		t.Error("the answer does not return to the run")
	}
	want(t, r.page("/runs/run_waits?done=question_run"), "orders.refund: allowed by ben")
	r.ask("question_token", "run_waits", "", "{}", time.Hour)
	res := r.do(http.DefaultClient, http.MethodPost, "/inbox/question_token/deny",
		func(req *http.Request) { req.Header.Set("Authorization", "Bearer "+secret) })
	want(t, text(t, res), "denied by ana")
	if list, err := r.journal.Approvals(t.Context(), "question_token"); err != nil || list[0].By != "ana" {
		t.Errorf("with a token: %+v, %v", list, err)
	}
	r.ask("question_open", "run_waits", "", "{}", time.Hour)
	for path, status := range map[string]int{"/inbox/none/allow": 404, "/inbox/question_run/other": 404,
		"/inbox/question_op/allow": 404, "/inbox/" + r.owner + "/allow": 404} {
		if got, page := r.post(r.client, path, ""); got != status {
			t.Errorf("%s: %d %s", path, got, page)
		}
	}
}

// TestPagesAnswerOnce verifies that exactly one of several pages answers a question, all others learn whose answer
// counts, and the calls of a dead or suspended process cannot be answered.
func TestPagesAnswerOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	leave := r.join()
	for i := range 10 {
		id := fmt.Sprintf("question_%d", i)
		r.ask(id, "run_1", "", "{}", time.Hour)
		r.page("/inbox")
		var wg sync.WaitGroup
		codes, pages := make([]int, 4), make([]string, 4)
		for n := range codes {
			verb := []string{"allow", "deny", "tool"}[n%3]
			wg.Go(func() { codes[n], pages[n] = r.post(r.client, "/inbox/"+id+"/"+verb, "") })
		}
		wg.Wait()
		won := 0
		for n, code := range codes {
			switch code {
			case http.StatusOK:
				won++
			case http.StatusConflict:
				want(t, pages[n], "approval request "+id+" was already", "by a user of the page")
			default:
				t.Errorf("answer %d: %d %s", n, code, pages[n])
			}
		}
		if won != 1 {
			t.Errorf("%d answers count", won)
		}
	}
	if err := errorOf(r.app.Answer(t.Context(), r.journal, "question_0", hosttools.Decision{}, "x")); err == nil {
		t.Error("another answer counts")
	}
	r.ask("question_late", "run_1", "", "{}", -time.Second)
	if code, page := r.post(r.client, "/inbox/question_late/allow", ""); code != http.StatusConflict {
		t.Errorf("after the time: %d %s", code, page)
	}
	r.ask("question_dead", "run_1", "", "{}", time.Hour)
	want(t, r.page("/inbox"), "Allow once")
	checktest.Must(t, leave())
	code, page := r.post(r.client, "/inbox/question_dead/allow", "")
	if want(t, page, "already withdrawn by its process"); code != http.StatusConflict {
		t.Errorf("of a dead process: %d", code)
	}
	want(t, r.page("/inbox"), "No call waits", "not answered, and withdrawn by its process", "by a user of the page")
}

func errorOf(_ runstore.Approval, err error) error { return err }

// TestReadOnlyInbox verifies that a read-only server shows questions without forms, and does not count as an approver.
func TestReadOnlyInbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *ui.Options) { o.ReadOnly = true })
	r.join()
	r.ask("question_1", "run_1", "", "{}", time.Hour)
	page := r.page("/inbox")
	if want(t, page, "orders.refund", "Inbox 1"); strings.Contains(page, "/allow") || strings.Contains(page, "/deny") {
		t.Error("a read-only page has forms")
	}
	if res := r.get(r.client, "/events?inbox=1"); res.StatusCode != http.StatusOK {
		t.Error(res.Status)
	}
	if err := r.server.Close(t.Context()); err != nil { // after this, nothing registers
		t.Fatal(err)
	}
	if list, err := r.journal.Approvals(t.Context(), ""); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestPresence verifies that the server is an approver while a browser has a page open, and not after that. Programs
// with a token do not count.
func TestPresence(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *ui.Options) { o.SetAway(time.Millisecond) })
	await := func(present bool) {
		t.Helper()
		for {
			list, err := r.journal.Approvals(t.Context(), "")
			checktest.Must(t, err)
			if (len(list) == 1 && list[0].Tool == "") == present {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	await(false)
	token := func(req *http.Request) { req.Header.Set("Authorization", "Bearer "+secret) }
	if res := r.get(http.DefaultClient, "/events?inbox=1", token); res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	await(false)
	for range 2 { // again after it was away
		res := r.get(r.client, "/events?inbox=1")
		await(true)
		other := r.get(r.client, "/events")
		checktest.Must(t, res.Body.Close())
		await(true)
		checktest.Must(t, other.Body.Close())
		await(false)
	}
}

// TestQuestionsRing verifies that the stream of every page rings for a new question and for its answer.
func TestQuestionsRing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.join()
	r.add("run_live", workflow.Entry{Kind: workflow.EventRunStarted, Workflow: "wf"})
	for i, at := range []string{"/events?inbox=1", "/events?", "/events?run=run_live"} {
		res := r.get(r.client, at)
		id := fmt.Sprintf("question_%d", i)
		ring(t, res) // the stream has begun
		r.ask(id, "run_live", "", "{}", time.Hour)
		ring(t, res)
		checktest.Must(t, errorOf(r.app.Answer(t.Context(), r.journal, id, hosttools.Decision{Allow: true}, "x")))
		ring(t, res)
	}
}

// talk returns the recorded parts of a conversation with one tool call for each turn.
func talk(attempt, turns int, words string) (list []workflow.Entry) {
	quoted, _ := json.Marshal(words) // a string can always be encoded
	part := func(format string, args ...any) {
		list = append(list, workflow.Entry{
			Kind: workflow.EventStepProgress, Path: "fix", Step: "fix", Type: workflow.TypeAgent, Agent: "fixer", Visit: 1,
			Attempt: attempt, Conversation: json.RawMessage(fmt.Sprintf(format, args...)),
		})
	}
	for n := range turns {
		messages, keep := "", 2
		if n == 0 {
			messages, keep = fmt.Sprintf(`{"role":"system","content":[{"text":%[1]s}]},`+
				`{"role":"user","content":[{"text":%[1]s}]}`, quoted), 0
		}
		part(`{"turn":{"number":%d,"keep":%d,"messages":[%s],"answer":{"role":"model","content":[{"reasoning":%s},`+
			`{"text":"I run it."},{"toolRequest":{"name":%[4]s,"ref":"r","input":{"cmd":%[4]s}}}]}}}`,
			n+1, keep, messages, quoted)
		part(`{"call":{"turn":%d,"ref":"r","result":{"output":{"stdout":%s}}}}`, n+1, quoted)
	}
	return list
}

func attempt(kind workflow.EventKind, n int, status workflow.Status) workflow.Entry {
	return workflow.Entry{Kind: kind, Path: "fix", Step: "fix", Type: workflow.TypeAgent, Agent: "fixer", Visit: 1,
		Attempt: n, Status: status}
}

// TestTranscriptPage verifies that the conversation of each attempt is shown in parts, the page of a failed
// attempt has the last turn, and a missing conversation has a reason.
func TestTranscriptPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	failed := attempt(workflow.EventStepFinished, 2, workflow.StatusFailed)
	failed.Error = &workflow.Error{Code: "x", Message: "broken"}
	first := attempt(workflow.EventStepFinished, 1, workflow.StatusFailed)
	first.Retry, first.Usage = true, &workflow.Usage{In: 1, Turns: 1}
	entries := []workflow.Entry{{Kind: workflow.EventRunStarted, Workflow: "wf"},
		attempt(workflow.EventStepStarted, 1, ""), first, attempt(workflow.EventStepStarted, 2, "")}
	entries = append(entries, talk(2, 60, "words "+strings.Repeat("y", 9_000))...)
	entries = append(entries, failed,
		workflow.Entry{Kind: workflow.EventRunFinished, Outcome: workflow.Failed, Error: failed.Error})
	r.add("run_talk", entries...)
	if page := r.page("/runs/run_talk"); !strings.Contains(page,
		`data-key="t" href="/runs/run_talk/transcript?at=fix%401.2#last"`) {
		t.Errorf("the failed step has no link to its conversation: %s", page)
	}
	page := r.page("/runs/run_talk/transcript?at=fix@1.2") // 242 parts
	want(t, page, "Turn 60", "attempt 1", "attempt 2", "parts 42 to 242 of 242", "model, reasoning", "words yyy",
		"814 more bytes are not shown")
	if !strings.Contains(page, `id="last"`) || strings.Contains(page, `next parts`) {
		t.Error("the page does not end with the last turn")
	}
	page = r.page("/runs/run_talk/transcript?at=fix@1.2&from=0")
	want(t, page, "system", "user", "Turn 1", "next parts › of 242")
	if n := strings.Count(page, `<details class="said`); n != 200 {
		t.Errorf("%d parts", n)
	}
	if got := text(t, r.get(r.client, "/runs/run_talk/transcript?at=fix@1.2&part=0")); len(got) != 9_006 {
		t.Errorf("the whole part has %d bytes", len(got))
	}
	want(t, r.page("/runs/run_talk/transcript?at=fix@1.1"), "The conversation was not kept: the agent called no tool")
	for _, at := range []string{"fix@1.3", "test@1.1", ""} {
		if res := r.get(r.client, "/runs/run_talk/transcript?at="+at); res.StatusCode != http.StatusNotFound {
			t.Errorf("%q: %s", at, res.Status)
		}
	}
}

// TestHostileQuestions verifies that the text of questions and conversations is only text.
func TestHostileQuestions(t *testing.T) {
	t.Parallel()
	pages := map[string][]string{}
	for _, words := range []string{"harmless", hostile} {
		r := newRig(t)
		r.join()
		r.add("run_text", append([]workflow.Entry{{Kind: workflow.EventRunStarted, Workflow: "wf"},
			attempt(workflow.EventStepStarted, 1, "")}, talk(1, 2, words)...)...)
		args, err := json.Marshal(map[string]string{words: words})
		checktest.Must(t, err)
		r.ask("question_1", "run_text", words, string(args), time.Hour)
		r.ask("question_2", "run_text", words, string(args), time.Hour)
		if err := errorOf(r.app.Answer(t.Context(), r.journal, "question_2",
			hosttools.Decision{Note: words}, words)); err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{"/inbox", "/inbox?done=question_2", "/runs", "/runs/run_text?done=question_2",
			"/runs/run_text/transcript?at=fix@1.1"} {
			body := r.page(at)
			pages[at] = append(pages[at], shape(t, body))
			for _, c := range body {
				if c < ' ' && c != '\n' && c != '\t' || c == 0x7f || c == '\u202e' || c == '\u2066' || c == '\u200b' {
					t.Errorf("%s contains %U", at, c)
				}
			}
			if words == hostile && !strings.HasPrefix(at, "/runs?") {
				want(t, body, "alert(1)")
			}
			labels(t, at, body)
		}
	}
	for at, shapes := range pages {
		if diff := cmp.Diff(strings.Fields(shapes[0]), strings.Fields(shapes[1])); diff != "" {
			t.Errorf("the elements of %s depend on the text:\n%s", at, diff)
		}
	}
}

// labels verifies that ids are unique, and every field has a name.
func labels(t *testing.T, at, page string) {
	t.Helper()
	ids := map[string]bool{}
	for n := range parsed(t, page).Descendants() {
		attrs := map[string]string{}
		for _, a := range n.Attr {
			attrs[a.Key] = a.Val
		}
		if id := attrs["id"]; id != "" && ids[id] {
			t.Errorf("%s has two elements %q", at, id)
		}
		ids[attrs["id"]] = true
		if n.Type == html.ElementNode && n.Data == "input" && attrs["type"] != "hidden" && attrs["aria-label"] == "" &&
			n.Parent.Data != "label" {
			t.Errorf("%s has a field without a name: %v", at, attrs)
		}
	}
}
