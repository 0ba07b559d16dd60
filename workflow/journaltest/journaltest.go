// Package journaltest contains the tests for every runstore.Store.
package journaltest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// Place is a location with journals and the records of sandboxes.
type Place struct {
	// Open opens the journals as another process would, until the end of the test.
	Open func(t *testing.T) runstore.Store
	// OpenKeeping is like Open, but the journals keep the conversations of finished attempts.
	OpenKeeping func(t *testing.T) runstore.Store
	// Sessions opens the records until the end of the test.
	Sessions func(t *testing.T) record.Store
	// Exec runs a statement on the tables without the journal's involvement.
	Exec func(t *testing.T, query string)
}

// Run runs the tests. place must return a new, empty location for each call and clean it up with t.Cleanup.
func Run(t *testing.T, place func(t *testing.T) Place) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Place)
	}{
		{"DamagedText", damaged(`UPDATE entry SET data = '{bad' WHERE run = 'run_1' AND seq = 2`)},
		{"DamagedEntries", damaged(`DELETE FROM entry WHERE run = 'run_1'`)},
		{"AnotherRunsEntries", damaged(`UPDATE entry SET data = replace(data, 'run_1', 'run_3') WHERE run = 'run_1'`)},
		{"AnotherProcess", anotherProcess},
		{"OneWriter", oneWriter},
		{"RunsAndPrune", runsAndPrune},
		{"Delete", deleteRun},
		{"SharedPlace", sharedPlace},
		{"Take", take},
		{"Conversations", conversations},
		{"Queries", queries},
		{"Totals", totals},
		{"EntriesAfter", entriesAfter},
		{"Transcripts", transcripts},
		{"LargeTranscripts", largeTranscripts},
		{"Approvals", approvals},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, place(t))
		})
	}
}

func entries(run string) []workflow.Entry {
	at := time.Date(2026, 3, 4, 5, 6, 7, 891_011_000, time.UTC)
	return []workflow.Entry{
		{RunID: run, Seq: 1, Time: at, Kind: workflow.EventRunStarted, Workflow: "w", Hash: "h", Input: map[string]any{"a": 1.5, "b": []any{"x", nil}}},
		{RunID: run, Seq: 2, Time: at.Add(1), Kind: workflow.EventStepStarted, Path: "each[3]/test", Step: "test", Type: "exec", Visit: 2, Attempt: 1, Status: workflow.StatusRunning},
		{RunID: run, Seq: 3, Time: at.Add(2), Kind: workflow.EventStepFinished, Path: "each[3]/test", Step: "test", Type: "exec", Visit: 2, Attempt: 1, Status: workflow.StatusFailed,
			Output: map[string]any{"exit_code": int64(1), "stdout": "a\x00b\u2028"}, Error: &workflow.Error{Code: "internal", Message: "it \x00 broke"}, Retry: true},
		{RunID: run, Seq: 4, Time: at.Add(time.Second), Kind: workflow.EventRunFinished, Outcome: workflow.Failed},
	}
}

func mustAppend(t *testing.T, j workflow.Journal, list ...workflow.Entry) {
	t.Helper()
	for _, e := range list {
		if err := j.Append(t.Context(), e); err != nil {
			t.Fatalf("Append %s/%d: %v", e.RunID, e.Seq, err)
		}
	}
}

// damaged verifies that a run with unreadable entries can be ended, that a finished run is unchanged, and that other
// runs are not affected.
func damaged(spoil string) func(*testing.T, Place) {
	return func(t *testing.T, p Place) {
		j := p.Open(t)
		mustAppend(t, j, entries("run_1")[:3]...)
		mustAppend(t, j, entries("run_2")...)
		p.Exec(t, spoil)
		if _, err := j.Entries(t.Context(), "run_1"); !errors.Is(err, runstore.ErrDamaged) {
			t.Errorf("Entries = %v, want ErrDamaged", err)
		}
		if err := j.Finish(t.Context(), "run_1", workflow.Cancelled, nil); err != nil {
			t.Fatal(err)
		}
		if r, err := j.Run(t.Context(), "run_1"); err != nil || r.Outcome != workflow.Cancelled || r.Finished.IsZero() {
			t.Errorf("Run = %+v, %v", r, err)
		}
		if err := j.Finish(t.Context(), "run_2", workflow.Cancelled, nil); err != nil {
			t.Errorf("Finish of a run that has finished = %v", err)
		}
		if r, err := j.Run(t.Context(), "run_2"); err != nil || r.Outcome != workflow.Failed {
			t.Errorf("after that, Run = %+v, %v", r, err)
		}
		if list, err := j.Entries(t.Context(), "run_2"); err != nil || len(list) != 4 {
			t.Errorf("the other run's entries: %v, %v", list, err)
		}
	}
}

// deleteRun verifies that a finished run is deleted and that an unfinished run is kept.
func deleteRun(t *testing.T, p Place) {
	j := p.Open(t)
	list := entries("run_1")
	mustAppend(t, j, list[:3]...)
	for _, known := range []bool{true, false} {
		if err := j.Delete(t.Context(), "run_1"); err != nil {
			t.Fatal(err)
		}
		if _, err := j.Run(t.Context(), "run_1"); errors.Is(err, backend.ErrNotFound) == known {
			t.Errorf("Run: %v, known %v", err, known)
		}
		if known {
			mustAppend(t, j, list[3])
		}
	}
}

// anotherProcess reads the first journal's entries with a second journal.
func anotherProcess(t *testing.T, p Place) {
	j := p.Open(t)
	want := entries("run_1")
	mustAppend(t, j, want[:3]...)
	other := p.Open(t)
	got, err := other.Entries(t.Context(), "run_1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[:3], got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	run := runstore.Run{ID: "run_1", Workflow: "w", Hash: "h", Started: want[0].Time}
	run.Step, run.Error = "each[3]/test", `it \x00 broke`
	if got, err := other.Run(t.Context(), "run_1"); err != nil || got != run {
		t.Errorf("Run: %+v, %v, want %+v", got, err, run)
	}
	mustAppend(t, other, want[3])
	run.Finished, run.Outcome, run.Error = want[3].Time, workflow.Failed, ""
	if got, err := j.Run(t.Context(), "run_1"); err != nil || got != run {
		t.Errorf("Run after its end: %+v, %v, want %+v", got, err, run)
	}
	if _, err := j.Run(t.Context(), "run_2"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("unknown run: %v", err)
	}
	if _, err := j.Entries(t.Context(), "run_2"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("entries of an unknown run: %v", err)
	}
}

// oneWriter verifies that only the first of two processes can resume a run.
func oneWriter(t *testing.T, p Place) {
	a, b := p.Open(t), p.Open(t)
	list := entries("run_1")
	mustAppend(t, a, list[0], list[1])
	for what, e := range map[string]workflow.Entry{"the first again": list[0], "a number that is taken": list[1], "a gap": list[3]} {
		if err := b.Append(t.Context(), e); !errors.Is(err, backend.ErrExists) {
			t.Errorf("%s: %v, want ErrExists", what, err)
		}
	}
	stranger := list[1]
	stranger.RunID, stranger.Seq = "run_9", 1
	if err := b.Append(t.Context(), stranger); err == nil {
		t.Error("an entry of a run that never began was taken")
	}
	mustAppend(t, b, list[2])
}

func runsAndPrune(t *testing.T, p Place) {
	j := p.Open(t)
	var want []string
	for i := range 5 {
		list := entries(fmt.Sprintf("run_%d", i))
		for k := range list {
			list[k].Time = list[k].Time.Add(time.Duration(i) * time.Hour)
		}
		if i == 1 {
			list = list[:2] // running or interrupted
		}
		mustAppend(t, j, list...)
		want = append([]string{list[0].RunID}, want...)
	}
	ids := func(limit int) (ids []string) {
		return idsOf(t, j, runstore.Query{Limit: limit})
	}
	if diff := cmp.Diff(want, ids(10)); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[:2], ids(2)); diff != "" {
		t.Errorf("two runs (-want +got):\n%s", diff)
	}
	n, err := j.Prune(t.Context(), entries("")[0].Time.Add(2*time.Hour))
	if err != nil || n != 1 {
		t.Errorf("Prune: %d, %v, want run_0 alone: run_1 has not finished", n, err)
	}
	if diff := cmp.Diff(want[:4], ids(10)); diff != "" {
		t.Errorf("after Prune (-want +got):\n%s", diff)
	}
	if _, err := j.Entries(t.Context(), "run_0"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("entries of a forgotten run: %v", err)
	}
}

// sharedPlace writes journals of many runs and session records concurrently to one location.
func sharedPlace(t *testing.T, p Place) {
	j := p.Open(t)
	store := p.Sessions(t)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for _, e := range entries(fmt.Sprintf("run_%d", i)) {
				if err := j.Append(t.Context(), e); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			rec := record.Record{ID: fmt.Sprintf("sbx_%d", i), Key: session.WorkflowKey(fmt.Sprintf("run_%d", i), "default"), State: record.Ready}
			if err := store.Insert(t.Context(), rec); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	page, err := j.Runs(t.Context(), runstore.Query{Limit: 100})
	recs, lerr := store.List(t.Context())
	if err != nil || lerr != nil || len(page.Runs) != 6 || len(recs) != 6 {
		t.Errorf("%d runs, %d records, %v, %v", len(page.Runs), len(recs), err, lerr)
	}
}

// take verifies that exactly one of several processes takes a dead owner's run, and that a finished run cannot be
// taken.
func take(t *testing.T, p Place) {
	j := p.Open(t)
	store := p.Sessions(t)
	owner, leave, err := store.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := j.For(owner, "a note")
	list := entries("run_1")
	mustAppend(t, own, list[:2]...)
	if lives, err := j.Lives(t.Context(), owner); !lives || err != nil {
		t.Errorf("Lives = %v, %v", lives, err)
	}
	if err := j.AskCancel(t.Context(), "run_1"); err != nil {
		t.Fatal(err)
	}
	if r, err := j.Run(t.Context(), "run_1"); err != nil || r.Owner != owner || r.Note != "a note" || !r.Cancel {
		t.Errorf("Run: %+v, %v", r, err)
	}
	if err := leave(); err != nil {
		t.Fatal(err)
	}
	if lives, err := j.Lives(t.Context(), owner); lives || err != nil {
		t.Errorf("Lives after the end = %v, %v", lives, err)
	}
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = j.Take(t.Context(), "run_1", owner, fmt.Sprintf("owner%d", i)) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, backend.ErrExists) {
			t.Errorf("Take: %v, want ErrExists", err)
		}
	}
	r, err := j.Run(t.Context(), "run_1")
	if won != 1 || err != nil || r.Cancel || !strings.HasPrefix(r.Owner, "owner") {
		t.Errorf("%d took the run: %+v, %v", won, r, err)
	}
	mustAppend(t, j, list[2], list[3])
	for what, id := range map[string]string{"a finished run": "run_1", "an unknown run": "run_2"} {
		if err := j.Take(t.Context(), id, r.Owner, "me"); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Take of %s: %v, want ErrNotFound", what, err)
		}
	}
}

// conversations verifies that an attempt's conversation is stored until the attempt has finished, and deleted
// afterwards. A conversation that is not JSON is reported as damage.
func conversations(t *testing.T, p Place) {
	j := p.Open(t)
	kept := func() (parts string) {
		t.Helper()
		list, err := j.Entries(t.Context(), "run_1")
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range list {
			if e.Seq != int64(i+1) {
				t.Errorf("entry %d has number %d", i+1, e.Seq)
			}
			parts += string(e.Conversation)
		}
		return parts
	}
	mustAppend(t, j, workflow.Entry{RunID: "run_1", Seq: 1, Kind: workflow.EventRunStarted},
		progressOf(2, "a"), progressOf(3, "b"), progressOf(4, "a"))
	if got := kept(); got != `{"part":2,"nul":"\u0000"}{"part":3,"nul":"\u0000"}{"part":4,"nul":"\u0000"}` {
		t.Errorf("kept: %s", got)
	}
	mustAppend(t, j, workflow.Entry{RunID: "run_1", Seq: 5, Kind: workflow.EventStepFinished, Path: "a", Retry: true},
		progressOf(6, "a"))
	if got := kept(); got != `{"part":3,"nul":"\u0000"}{"part":6,"nul":"\u0000"}` {
		t.Errorf("kept of unfinished attempts: %s", got)
	}
	p.Exec(t, `UPDATE conversation SET data = '{' WHERE seq = 3`)
	if _, err := j.Entries(t.Context(), "run_1"); !errors.Is(err, runstore.ErrDamaged) {
		t.Errorf("damaged: %v", err)
	}
	mustAppend(t, j, workflow.Entry{RunID: "run_1", Seq: 7, Kind: workflow.EventRunFinished, Outcome: workflow.Cancelled})
	if got := kept(); got != "" {
		t.Errorf("kept of a run that has finished: %s", got)
	}
}

// idsOf returns the ids of the runs on a page.
func idsOf(t *testing.T, j runstore.Store, q runstore.Query) (ids []string) {
	t.Helper()
	page, err := j.Runs(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Runs {
		ids = append(ids, r.ID)
	}
	return ids
}

// queries verifies that pages contain each run once, even if several started at the same time, and that filters apply
// to all pages.
func queries(t *testing.T, p Place) {
	j := p.Open(t)
	for i := range 7 {
		list := entries(fmt.Sprintf("run_%d", i))
		list[0].Workflow = []string{"fix", "review"}[i%2]
		list[3].Error = &workflow.Error{Code: workflow.CodeAgent, Message: fmt.Sprintf("Ärger_%d 100%%\x00", i)}
		if i >= 5 { // the others started at the same time
			list[0].Time = list[0].Time.Add(time.Duration(i) * time.Microsecond)
		}
		if i == 4 {
			list = list[:2]
		}
		mustAppend(t, j, list...)
	}
	var pages []string
	q := runstore.Query{Limit: 3}
	for {
		page, err := j.Runs(t.Context(), q)
		if err != nil || page.Total != 7 {
			t.Fatalf("%+v, %v", page, err)
		}
		pages = append(pages, strings.Join(idsOf(t, j, q), " "))
		if q.Before = page.Next; q.Before == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"run_6 run_5 run_4", "run_3 run_2 run_1", "run_0"}, pages); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	for want, q := range map[string]runstore.Query{
		"run_5 run_3 run_1":  {Workflow: "review"},
		"run_4":              {Outcomes: []workflow.Outcome{""}},
		"run_6 run_5 run_3":  {Outcomes: []workflow.Outcome{workflow.Failed, workflow.Succeeded}},
		"run_6 run_5 run_4":  {Outcomes: []workflow.Outcome{workflow.Failed, ""}},
		"":                   {Outcomes: []workflow.Outcome{workflow.Succeeded}},
		"run_2":              {Text: "ÄRGER_2"},
		"run_6 run_5 run_3 ": {Text: "100%"},
		"run_6 run_4 run_2":  {Text: "FIX"},
		"run_1":              {Text: "run_1", Workflow: "review", Outcomes: []workflow.Outcome{workflow.Failed}},
	} {
		q.Limit = 3
		if got := strings.Join(idsOf(t, j, q), " "); got != strings.TrimSpace(want) {
			t.Errorf("%+v: %s, want %s", q, got, want)
		}
	}
	page, err := j.Runs(t.Context(), runstore.Query{Limit: 1, Workflow: "fix"})
	if err != nil || page.Total != 4 || page.Next == "" {
		t.Errorf("%+v, %v", page, err)
	}
	for _, q := range []runstore.Query{{}, {Limit: 1, Before: "?"}} {
		if _, err := j.Runs(t.Context(), q); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", q, err)
		}
	}
}

// totals verifies that a run has the usage of all attempts, the reason of its latest failure, and its latest step.
func totals(t *testing.T, p Place) {
	j := p.Open(t)
	cost := .25
	used := &workflow.Usage{Model: "m", In: 10, Out: 2, CacheRead: 4, Turns: 3, Calls: 1}
	guessed := &workflow.Usage{In: 1, Estimated: true}
	step := func(seq int64, kind workflow.EventKind, path string) workflow.Entry {
		return workflow.Entry{RunID: "run_1", Seq: seq, Kind: kind, Path: path}
	}
	failed, last := step(3, workflow.EventStepFinished, "a"), step(5, workflow.EventStepFinished, "a")
	end := step(6, workflow.EventRunFinished, "")
	failed.Error, failed.Usage, failed.Retry = &workflow.Error{Message: "no\nanswer"}, used, true
	last.Usage, last.CostUSD, end.Outcome = guessed, &cost, workflow.Succeeded
	check := func(want runstore.Run) {
		t.Helper()
		got, err := j.Run(t.Context(), "run_1")
		if err != nil {
			t.Fatal(err)
		}
		got.ID, got.Started, got.Finished = "", time.Time{}, time.Time{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	mustAppend(t, j, step(1, workflow.EventRunStarted, ""), step(2, workflow.EventStepStarted, "a"), failed)
	used.Model = "" // totals have none
	check(runstore.Run{Step: "a", Error: `no\nanswer`, Usage: *used})
	mustAppend(t, j, step(4, workflow.EventStepStarted, "b"))
	check(runstore.Run{Step: "b", Usage: *used})
	mustAppend(t, j, last, end)
	check(runstore.Run{
		Step: "b", Outcome: workflow.Succeeded, CostUSD: &cost,
		Usage: workflow.Usage{In: 11, Out: 2, CacheRead: 4, Turns: 3, Calls: 1, Estimated: true},
	})
}

// entriesAfter verifies that a reader gets each entry once.
func entriesAfter(t *testing.T, p Place) {
	j := p.Open(t)
	list := entries("run_1")
	list[2] = progressOf(3, "a")
	mustAppend(t, j, list[:3]...)
	for after, want := range map[int64][]workflow.Entry{0: list[:3], 2: list[2:3], 3: nil, 9: nil} {
		got, err := j.EntriesAfter(t.Context(), "run_1", after)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("after %d: %v (-want +got):\n%s", after, err, diff)
		}
	}
	if got, err := j.EntriesAfter(t.Context(), "run_2", 0); err != nil || len(got) != 0 {
		t.Errorf("an unknown run: %v, %v", got, err)
	}
}

// progressOf returns an entry with a part of the conversation of a step.
func progressOf(seq int64, path string) workflow.Entry {
	text := fmt.Sprintf(`{"part":%d,"nul":"\u0000"}`, seq)
	e := workflow.Entry{RunID: "run_1", Seq: seq, Kind: workflow.EventStepProgress, Path: path, Attempt: 1}
	e.Conversation = []byte(text)
	return e
}

// transcripts verifies that conversations of finished attempts are kept until they are pruned, and that resuming a run
// does not read them.
func transcripts(t *testing.T, p Place) {
	j := p.OpenKeeping(t)
	kept := func(path string) (seqs []int64) {
		t.Helper()
		list, err := j.Transcript(t.Context(), "run_1", path)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if want := progressOf(e.Seq, path); !cmp.Equal(want, e) {
				t.Errorf("%+v, want %+v", e, want)
			}
			seqs = append(seqs, e.Seq)
		}
		return seqs
	}
	mustAppend(t, j, workflow.Entry{RunID: "run_1", Seq: 1, Kind: workflow.EventRunStarted},
		progressOf(2, "a"), progressOf(3, "b"), progressOf(4, "a"),
		workflow.Entry{RunID: "run_1", Seq: 5, Kind: workflow.EventStepFinished, Path: "a", Retry: true}, progressOf(6, "a"))
	check := func(when string, want map[string][]int64) {
		t.Helper()
		for path, seqs := range want {
			if got := kept(path); !cmp.Equal(seqs, got) {
				t.Errorf("%s: %s has %v, want %v", when, path, got, seqs)
			}
		}
	}
	check("while it runs", map[string][]int64{"a": {2, 4, 6}, "b": {3}})
	list, err := j.Entries(t.Context(), "run_1")
	has := func(i int) bool { return len(list) == 6 && list[i].Conversation != nil }
	if err != nil || has(1) || !has(2) || !has(5) {
		t.Errorf("Entries: %v, %v", list, err)
	}
	end := workflow.Entry{RunID: "run_1", Seq: 7, Kind: workflow.EventRunFinished, Outcome: workflow.Failed}
	mustAppend(t, j.For("", ""), end)
	check("at its end", map[string][]int64{"a": {2, 4, 6}, "b": {3}})
	for before, want := range map[time.Duration]int64{-time.Hour: 0, time.Hour: 4} {
		if n, err := j.PruneTranscripts(t.Context(), time.Now().Add(before)); err != nil || n != want {
			t.Errorf("PruneTranscripts %v: %d, %v, want %d", before, n, err, want)
		}
	}
	check("after PruneTranscripts", map[string][]int64{"a": nil, "b": nil})
	if list, err = j.Entries(t.Context(), "run_1"); err != nil || len(list) != 7 {
		t.Errorf("Entries: %v, %v", list, err)
	}
	p.Exec(t, `UPDATE entry SET data = '{bad' WHERE run = 'run_1' AND seq = 2`)
	if err := j.Delete(t.Context(), "run_1"); err != nil {
		t.Error(err)
	}
}

// largeTranscripts verifies that the oldest parts of a run are deleted when the kept conversations are too large.
func largeTranscripts(t *testing.T, p Place) {
	j := p.OpenKeeping(t)
	seq := int64(1)
	mustAppend(t, j, workflow.Entry{RunID: "run_1", Seq: seq, Kind: workflow.EventRunStarted})
	large := []byte(`"` + strings.Repeat("x", 15<<20) + `"`)
	for range 6 {
		part := progressOf(seq+1, "a")
		part.Conversation = large
		mustAppend(t, j, part,
			workflow.Entry{RunID: "run_1", Seq: seq + 2, Kind: workflow.EventStepFinished, Path: "a"})
		seq += 2
	}
	list, err := j.Transcript(t.Context(), "run_1", "a")
	if err != nil || len(list) != runstore.MaxTranscripts/len(large) || list[len(list)-1].Seq != seq-1 {
		t.Errorf("%d parts of 15 MiB, %v", len(list), err)
	}
}

// approvals verifies that exactly one of several processes answers a call, that the answer deletes the arguments, and
// that calls are deleted with their run or by their age.
func approvals(t *testing.T, p Place) {
	j, other := p.Open(t), p.Open(t)
	mustAppend(t, j, entries("run_1")[:2]...)
	at := entries("")[0].Time
	ask := func(id, run string, asked time.Time) runstore.Approval {
		a := runstore.Approval{
			ID: id, Run: run, Workflow: "w", Step: "each[3]/test", Agent: "desk", Sandbox: "sbx_1", Exec: "exe_1",
			Server: "orders", Tool: "refund", Args: []byte(`{"id":"\u0000 \u2028 <b>"}`), Digest: "abc", Why: "ask",
			Asked: asked, Until: asked.Add(time.Minute), Owner: "me",
		}
		if err := j.Ask(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	check := func(id string, want ...runstore.Approval) {
		t.Helper()
		got, err := other.Approvals(t.Context(), id)
		if diff := cmp.Diff(want, append([]runstore.Approval(nil), got...)); diff != "" || err != nil {
			t.Errorf("Approvals of %q (-want +got): %v\n%s", id, err, diff)
		}
	}
	second := ask("second", "mcp_1", at.Add(time.Second))
	first := ask("first", "run_1", at)
	check("", first, second)
	check("second", second)
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			a := first
			a.Reply = runstore.Reply{Answer: runstore.Allowed, Note: "\u2028", By: fmt.Sprint(i)}
			errs[i] = []runstore.Store{j, other}[i%2].Answer(t.Context(), a)
		})
	}
	wg.Wait()
	list, err := j.Approvals(t.Context(), "first")
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	by := list[0].By
	first.Args, first.Reply = nil, runstore.Reply{Answer: runstore.Allowed, Note: "\u2028", By: by}
	check("first", first)
	check("", second)
	for i, err := range errs {
		if won := fmt.Sprint(i) == by; won != (err == nil) ||
			!won && (!errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "already allowed by "+by)) {
			t.Errorf("answer %d: %v, and %s was first", i, err, by)
		}
	}
	third := runstore.Approval{ID: "third", Reply: runstore.Reply{Answer: runstore.Denied}}
	if err := j.Answer(t.Context(), third); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("an unknown call: %v", err)
	}
	mustAppend(t, j, entries("run_1")[2:]...)
	if err := j.Delete(t.Context(), "run_1"); err != nil {
		t.Fatal(err)
	}
	check("first")
	prune := func() {
		if _, err := j.Prune(t.Context(), at.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	prune()
	check("", second) // it still waits
	second.Args, second.Answer = nil, runstore.Withdrawn
	if err := j.Answer(t.Context(), second); err != nil {
		t.Error(err)
	}
	check("second", second)
	prune()
	check("second")
}
