//go:build linux

package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// act is an operation of a key's client.
type act string

const (
	actOpen  act = "open"  // create or get the key's sandbox
	actGet   act = "get"   // get the sandbox
	actExec  act = "exec"  // run a command in a returned sandbox
	actClose act = "close" // close the key
	actKill  act = "kill"  // kill the main process of a returned sandbox from outside
)

// asked is an operation on a key. For exec and kill, id is the life of the sandbox.
type asked struct {
	act act
	key session.Key
	id  string
}

// answered is the result of an operation.
type answered struct {
	id      string // life of the sandbox returned by open and get
	created bool
	err     error // error class
	killed  bool
	session *session.Session // kept to prevent another life with the same address
}

// health is the health of a sandbox.
type health string

const (
	alive  health = "alive"
	killed health = "killed" // the client may not have noticed it yet
	lost   health = "lost"   // reported to a client
)

// keyState is the state of a key: no sandbox or one sandbox.
type keyState struct {
	id string
	health
	kept string // without a sandbox: the lost life ended by an open, and whose files an open may return
}

// ended returns the state after an open has ended the life of a lost sandbox. The next open may return the sandbox in
// the next life. Only a close also removes the files.
func (s keyState) ended() keyState { return keyState{kept: cmp.Or(s.id, s.kept)} }

// keyModel describes the allowed histories of a key's clients. Each operation must take effect at one moment between
// call and return.
func keyModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[session.Key][]porcupine.Operation{}
			for _, op := range history {
				key := op.Input.(asked).key
				byKey[key] = append(byKey[key], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return keyState{} },
		Step: func(state, input, output any) (bool, any) {
			return step(state.(keyState), input.(asked), output.(answered))
		},
		DescribeOperation: func(input, output any) string {
			in, out := input.(asked), output.(answered)
			return fmt.Sprintf("%s %s: %s created=%v killed=%v %v", in.act, in.id, out.id, out.created, out.killed, out.err)
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// step reports whether an operation can have the result in a state, and returns the state after it.
func step(s keyState, in asked, out answered) (bool, keyState) {
	none, sick := keyState{}, s.id != "" && s.health != alive
	switch in.act {
	case actOpen:
		switch {
		case errors.Is(out.err, backend.ErrClosed): // a close canceled the creation
			return true, s
		case out.err != nil:
			return false, s
		case out.created, sick && s.id != out.id, s.kept != "" && s.kept != out.id: // the last two are the next life
			return s.id == "" || sick, keyState{id: out.id, health: alive}
		}
		return s.id == out.id && s.health != lost, s
	case actGet:
		if out.err != nil { // any open may end a lost sandbox
			return errors.Is(out.err, backend.ErrNotFound) && (s.id == "" || sick), s.ended()
		}
		return s.id == out.id, s
	case actClose:
		return out.err == nil, none
	case actKill:
		if s.id != in.id {
			return true, s
		}
		if out.killed {
			return true, keyState{id: s.id, health: killed}
		}
		return sick, s
	}
	return stepExec(s, in, out.err)
}

// stepExec is step for commands.
func stepExec(s keyState, in asked, err error) (bool, keyState) {
	mine, sick := s.id == in.id, s.id == in.id && s.health != alive
	switch {
	case err == nil:
		return mine && !sick, s
	case errors.Is(err, backend.ErrClosed):
		if sick {
			return true, s.ended()
		}
		return !mine, s
	case errors.Is(err, backend.ErrLost):
		return sick, keyState{id: s.id, health: lost}
	case errors.Is(err, backend.ErrUnavailable): // it just ended, and the reason is not known yet
		return sick, s
	}
	return false, s
}

// history is recorded by all clients.
type history struct {
	began time.Time

	mu  sync.Mutex // guards ops
	ops []porcupine.Operation
}

// record runs an operation and records the call time, return time, and result.
func (h *history) record(client int, in asked, do func() answered) answered {
	call := time.Since(h.began)
	out := do()
	end := time.Since(h.began)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: int64(call), Output: out, Return: int64(end)})
	return out
}

// TestHistories verifies concurrent clients, which open, use, close, and kill the sandboxes of two keys. Their results
// must be possible in a sequential order: a key has one sandbox, and neither a closed nor a lost sandbox is returned.
func TestHistories(t *testing.T) {
	on(t, engines(), func(t *testing.T, h *host) {
		f := faultOf("killed in histories of sessions", h.engine)
		driver, err := connect(t.Context(), h.engine)
		must(t, err)
		l := h.library(t, driver)
		random := chance(t)
		for range laps(1) {
			rec := &history{began: time.Now()}
			keys := []session.Key{record.AgentKey(session.NewRunID(), "a"), record.AgentKey(session.NewRunID(), "b")}
			var wg sync.WaitGroup
			for i := range 5 {
				c := &client{l: l, engine: h.engine, number: i, random: rand.New(rand.NewPCG(random.Uint64(), 0)), record: rec, fault: f}
				wg.Go(func() { c.work(t, keys, 25) })
			}
			wg.Wait()
			rec.check(t, f)
			for _, key := range keys {
				if err := l.CloseScope(t.Context(), key.Scope()); err != nil {
					f.lose(t, "closing: %v", err)
				}
			}
			f.leave(t, h.left(t))
			if t.Failed() {
				return
			}
		}
	})
}

// client performs random operations.
type client struct {
	l      *library
	engine string
	number int
	random *rand.Rand
	record *history
	fault  *fault
}

// work performs n operations.
func (c *client) work(t *testing.T, keys []session.Key, n int) {
	given := map[session.Key]*session.Session{} // latest session of each key
	for range n {
		key := keys[c.random.IntN(len(keys))]
		s := given[key]
		in := asked{act: actOpen, key: key}
		if s != nil {
			in.act = []act{actOpen, actOpen, actOpen, actGet, actExec, actExec, actExec, actClose, actKill}[c.random.IntN(9)]
			in.id = life(s)
		}
		c.record.record(c.number, in, func() answered {
			switch in.act {
			case actOpen, actGet:
				s, out := c.find(t.Context(), in)
				if s != nil {
					given[key] = s
				}
				return out
			case actExec:
				_, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}})
				if err != nil {
					delete(given, key) // use a new session next time
				}
				return answered{err: err}
			case actClose:
				return answered{err: c.l.CloseSession(t.Context(), key, session.CloseOptions{})}
			}
			out := answered{killed: killMain(t, c.engine, s)}
			if out.killed {
				c.fault.inject(1)
			}
			return out
		})
	}
}

// find opens or gets the session of a key.
func (c *client) find(ctx context.Context, in asked) (s *session.Session, out answered) {
	if in.act == actGet {
		s, out.err = c.l.Get(in.key)
	} else {
		s, out.created, out.err = c.l.Open(ctx, in.key, session.Request{Image: image, IdleTimeout: -1})
	}
	if s != nil {
		out.id, out.session = life(s), s
	}
	return s, out
}

// life identifies a sandbox until it is lost.
func life(s *session.Session) string { return fmt.Sprintf("%s %p", s.ID(), s) }

// check verifies the history.
func (h *history) check(t *testing.T, f *fault) {
	t.Helper()
	made := map[string]bool{}
	for _, op := range h.ops {
		in, out := op.Input.(asked), op.Output.(answered)
		if out.created {
			if made[out.id] {
				f.lose(t, "%s was made twice", out.id)
			}
			made[out.id] = true
		}
		if in.act == actOpen && errors.Is(out.err, backend.ErrClosed) && !h.closesDuring(op) {
			f.lose(t, "an open returned ErrClosed, but no client closed the key: %v", out.err)
		}
	}
	t.Logf("%d acts, %d sandboxes", len(h.ops), len(made))
	result, info := porcupine.CheckOperationsVerbose(keyModel(), h.ops, 0)
	if result == porcupine.Ok {
		return
	}
	path := filepath.Join(os.TempDir(), "workcell-history-"+record.NewID()+".html")
	f.lose(t, "the history is not linearizable: %v; see %s, %v", result, path, porcupine.VisualizePath(keyModel(), info, path))
}

// closesDuring reports whether a client closed the key during an operation.
func (h *history) closesDuring(act porcupine.Operation) bool {
	for _, op := range h.ops {
		in := op.Input.(asked)
		if in.act == actClose && in.key == act.Input.(asked).key && op.Call <= act.Return && op.Return >= act.Call {
			return true
		}
	}
	return false
}
