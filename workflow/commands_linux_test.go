package workflow_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
)

// starters are agents that start commands in their run's sandbox. The last command interrupts the run.
type starters struct {
	m         *session.Manager
	interrupt context.CancelCauseFunc // nil in the process resuming the run
	running   int                     // number of running commands at the interruption
}

// start starts a command that outlives the run's process. If background is false, only the command's background process
// outlives it.
func (a *starters) start(ctx context.Context, background bool) (string, error) {
	base, _ := session.BaseFromContext(ctx)
	run, _ := session.RunFromContext(ctx)
	s, _, err := a.m.Open(ctx, run.Key(record.DefaultName), session.Request{}.WithDefaults(base))
	if err != nil {
		return "", err
	}
	command := "setsid sleep 600 >/dev/null 2>&1 </dev/null &"
	if background {
		command = "sleep 600"
	}
	if a.interrupt == nil {
		stats, err := s.Stats(ctx)
		a.running = stats.Running
		return "", err
	}
	res, err := s.Exec(ctx, sandbox.ExecRequest{Command: command, Background: background})
	return res.ExecID, err
}

func (a *starters) stop(ctx context.Context) error {
	if a.interrupt == nil {
		return nil
	}
	a.interrupt(workflow.ErrInterrupted)
	return ctx.Err()
}

func (a *starters) RunAgent(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
	rec := transcript.Claim(ctx, name)
	if name == "talk" {
		return workflow.AgentOutput{}, a.talk(ctx, rec)
	}
	_, err := a.start(ctx, true)
	if err == nil && name == "plain" {
		if _, err = a.start(ctx, false); err == nil {
			err = a.stop(ctx)
		}
	}
	return workflow.AgentOutput{}, err
}

// talk has a conversation of two turns with two calls each. All calls start a command. The third result contains the
// command id, and the fourth result is never recorded.
func (a *starters) talk(ctx context.Context, rec *transcript.Recorder) error {
	_, err := converse(ctx, rec, "talk", "go", func(ctx context.Context, past []*ai.Message, i int) (any, error) {
		id, err := a.start(ctx, i == 0)
		if err == nil && len(past) > 1 && i == 1 {
			err = a.stop(ctx)
		}
		if len(past) == 1 {
			id = "none"
		}
		return map[string]any{"exec_id": id}, err
	})
	return err
}

// TestInterruptedCommands verifies that a resumed run kills the commands of the interrupted attempt and their
// background processes, and no others. Commands of a finished step and of an agent's recorded calls continue. The
// clocks of the processes do not matter.
func TestInterruptedCommands(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		agent   string
		ahead   time.Duration // how far the clock of the dead process is ahead
		running int
	}{
		{"plain", time.Hour, 1}, {"plain", -time.Hour, 1},
		{"talk", time.Hour, 4}, {"talk", -time.Hour, 4},
	} {
		t.Run(test.agent+test.ahead.String(), func(t *testing.T) {
			t.Parallel()
			b := newLocal(t)
			opts := &session.Options{Instance: "commands", Store: record.NewMemoryStore()}
			manager := func() *session.Manager {
				m, err := session.NewManager(b, opts)
				checktest.Must(t, err)
				return m
			}
			wf := parse(t, `id: w
sandbox: {image: host}
steps:
  - {id: one, type: agent, agent: before}
  - {id: two, type: agent, agent: `+test.agent+`}
`)
			journal, first := &cutJournal{room: -1}, manager()
			ctx, interrupt := context.WithCancelCause(t.Context())
			agents := &starters{m: first, interrupt: interrupt}
			_, died := workflow.NewEngine(first, agents, &workflow.Options{Journal: journal}).Run(ctx, wf, nil)
			if err := first.Detach(t.Context()); err != nil || !errors.Is(died, workflow.ErrInterrupted) {
				t.Fatal(died, err)
			}
			entries := journal.entries(t)
			for i := range entries {
				entries[i].Time = entries[i].Time.Add(test.ahead)
			}
			second := manager()
			t.Cleanup(func() { checktest.Must(t, errors.Join(second.Close(context.Background()), b.Close())) })
			agents = &starters{m: second}
			if _, err := workflow.NewEngine(second, agents, &workflow.Options{Journal: journal}).Resume(t.Context(), wf, entries); err != nil {
				t.Fatal(err)
			}
			if agents.running != test.running {
				t.Errorf("%d commands run, want %d", agents.running, test.running)
			}
		})
	}
}
