//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	flows "github.com/workcell-dev/workcell/workflow"
)

// entries is an in-memory journal.
type entries struct {
	mu   sync.Mutex
	list []flows.Entry
}

func (e *entries) Append(_ context.Context, entry flows.Entry) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, entry)
	return nil
}

// TestRunsOverRestarts restarts an engine during the second of three steps of ten runs. No run may fail. A run
// continues, or is interrupted and can be resumed with the files of the first step.
func TestRunsOverRestarts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		engine      string
		liveRestore bool
		daemon      string
	}{
		"docker":                   {"docker", false, "dockerd"},
		"docker with live-restore": {"docker", true, "dockerd"},
		"containerd":               {"containerd", false, "containerd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newPrivate(t, c.engine, "500M", c.liveRestore)
			l := x.library(t, x.driver(t))
			flow, err := flows.Parse("restart.yaml", []byte(`id: restart
outputs: [log]
sandbox: {image: `+image+`}
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: exec, command: "echo two >> log; sleep 5"}
  - {id: three, type: exec, command: "echo three >> log"}
`), nil)
			must(t, err)
			f := faultOf("engine restarted in a step, "+name, c.engine)
			var running, ended sync.WaitGroup
			results := make([]*flows.Result, 10)
			resumed := make([]int, len(results))
			for i := range results {
				journal, began := &entries{}, sync.OnceFunc(running.Done)
				running.Add(1)
				opts := &flows.Options{Journal: journal, Results: t.TempDir(), OnEvent: func(ev flows.Event) {
					if ev.Kind == flows.EventStepStarted && ev.Step == "two" {
						began()
					}
				}}
				ended.Go(func() {
					defer began()
					var err error
					results[i], err = flows.NewEngine(l.Manager, nil, opts).Run(t.Context(), flow, nil)
					for end := time.Now().Add(patience); errors.Is(err, flows.ErrInterrupted) && time.Now().Before(end); resumed[i]++ {
						time.Sleep(time.Second)
						results[i], err = flows.NewEngine(l.Manager, nil, opts).Resume(t.Context(), flow, slices.Clone(journal.list))
					}
				})
			}
			running.Wait()
			time.Sleep(time.Second)
			x.Restart(t, c.daemon, "TERM")
			f.inject(1)
			ended.Wait()
			for i, res := range results {
				log := string(res.Outputs["log"].Content)
				whole := strings.HasPrefix(log, "one\ntwo\n") && strings.HasSuffix(log, "two\nthree\n")
				if res.Outcome != flows.Succeeded || !whole {
					f.lose(t, "run %d: %s after %d resumes: %v, log %q", i, res.Outcome, resumed[i], res.Error, log)
				}
			}
			t.Logf("resumed: %v", resumed)
			if left, err := l.List(t.Context()); err != nil || len(left) > 0 {
				f.leave(t, []string{fmt.Sprint(left, err)})
			}
		})
	}
}
