//go:build linux

package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/clocktest"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// clientVariable makes the test binary run as a client of a place. The value is the client as JSON.
const clientVariable = "WORKCELL_TEST_CLIENT"

func TestMain(m *testing.M) {
	clocktest.Main()
	if raw := os.Getenv(clientVariable); raw != "" {
		if err := beClient(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Sizes of a history: the number of processes, operations per process, and objects.
const (
	clients  = 4
	actsEach = 250
	things   = 3 // number of keys, and number of runs
)

// client is a process with random operations on a place.
type client struct {
	Place Place
	ID    int
}

// act is a client's operation on one of the two records of a key, or on a run.
type act struct {
	Do    string // insert, update, take, get, delete; append, read
	Thing int    // key or run
	Slot  int    // which of the key's two records
	State record.State
	Owner string // new owner of the record
	From  string // take: previous owner
	Entry string // append: unique content of the entry
	Seq   int64
}

// result is the result of an operation.
type result struct {
	Refused string // "exists" or "unknown"
	State   record.State
	Owner   string
	Entries string // read: entries of the run
}

// done is an operation with result and times, in nanoseconds of the host's monotonic clock.
type done struct {
	Act       act
	Result    result
	From, Til int64
}

func beClient(raw string) error {
	var c client
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return err
	}
	ctx := context.Background()
	records, err := c.Place.OpenRecords(ctx)
	if err != nil {
		return err
	}
	journal, err := c.Place.OpenJournal(ctx, true)
	if err != nil {
		return errors.Join(err, records.Close())
	}
	return errors.Join(c.work(ctx, records, journal), journal.Close(), records.Close())
}

// work prints the client's owner id and waits for the owners of the other clients, which must all be alive. Then it
// runs its operations and prints each. It ends when the input is closed.
func (c client) work(ctx context.Context, records record.Store, journal runstore.Store) error {
	owner, _, err := records.Join(ctx)
	if err != nil {
		return err
	}
	out, in := json.NewEncoder(os.Stdout), json.NewDecoder(os.Stdin)
	var owners []string
	err = errors.Join(out.Encode(owner), in.Decode(&owners))
	for _, owner := range owners {
		if lives, err := records.Lives(ctx, owner); !lives {
			return fmt.Errorf("owner %s is taken for dead: %w", owner, err)
		}
	}
	var lengths [things]int64 // lengths of the runs known to this client
	for i := 0; err == nil && i < actsEach; i++ {
		d := done{Act: c.choose(i, lengths[:]), From: now()}
		if d.Result, err = perform(ctx, records, journal, d.Act); err != nil {
			return fmt.Errorf("%+v: %w", d.Act, err)
		}
		d.Til = now()
		if d.Act.Do == "read" {
			lengths[d.Act.Thing] = int64(strings.Count(d.Result.Entries, " "))
		}
		err = out.Encode(d)
	}
	_, end := io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, end)
}

func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // supported by every Linux
	return t.Nano()
}

// choose returns the next operation.
func (c client) choose(i int, lengths []int64) act {
	pick := func(from ...string) string { return from[rand.IntN(len(from))] }
	a := act{
		Do: pick("insert", "insert", "update", "update", "take", "get", "get", "delete", "append", "append", "read"), Thing: rand.IntN(things), Slot: rand.IntN(2),
		State: record.State(pick("creating", "ready", "removing", "closed")), Owner: pick("a", "b", "c"), From: pick("a", "b", "c"),
		Entry: fmt.Sprintf("%d.%d", c.ID, i),
	}
	a.Seq = lengths[a.Thing] + 1
	if a.Do == "append" {
		lengths[a.Thing]++ // if it is refused, the run is at least this long
	}
	return a
}

// perform runs an operation. A refusal is not an error.
func perform(ctx context.Context, records record.Store, journal runstore.Store, a act) (r result, err error) {
	rec := record.Record{ID: fmt.Sprintf("sbx_%d_%d", a.Thing, a.Slot), Key: session.UserKey(fmt.Sprint(a.Thing)), State: a.State, Owner: a.Owner}
	run := fmt.Sprint("run_", a.Thing)
	switch a.Do {
	case "insert":
		err = records.Insert(ctx, rec)
	case "update":
		err = records.Update(ctx, rec)
	case "take":
		rec, err = records.Take(ctx, rec.ID, a.From, a.Owner)
		r.State = rec.State
	case "get":
		rec, err = records.Get(ctx, rec.ID)
		r.State, r.Owner = rec.State, rec.Owner
	case "delete":
		err = records.Delete(ctx, rec.ID)
	case "append":
		err = journal.Append(ctx, workflow.Entry{RunID: run, Seq: a.Seq, Time: time.Now(), Kind: workflow.EventStepStarted, Step: a.Entry})
	case "read":
		var list []workflow.Entry
		list, err = journal.Entries(ctx, run)
		for _, e := range list {
			r.Entries += e.Step + " "
		}
	}
	switch {
	case errors.Is(err, backend.ErrExists):
		return result{Refused: "exists"}, nil
	case errors.Is(err, backend.ErrNotFound):
		return result{Refused: "unknown"}, nil
	}
	return r, err
}

// kept is the stored state of a key, which has two records, and of the run with the same number.
type kept struct {
	records [2]struct {
		state record.State // empty for no record
		owner string
	}
	entries string
}

// next returns the state after an operation, and the required result for the client.
func (k kept) next(a act) (kept, result) {
	rec, other := &k.records[a.Slot], k.records[1-a.Slot]
	exists, unknown := result{Refused: "exists"}, result{Refused: "unknown"}
	switch a.Do {
	case "append":
		if int64(strings.Count(k.entries, " "))+1 != a.Seq {
			return k, exists
		}
		k.entries += a.Entry + " "
	case "read":
		return k, result{Entries: k.entries}
	case "delete":
		rec.state, rec.owner = "", ""
	case "insert":
		if rec.state != "" || a.State.Live() && other.state.Live() {
			return k, exists
		}
		rec.state, rec.owner = a.State, a.Owner
	default:
		switch {
		case rec.state == "":
			return k, unknown
		case a.Do == "get":
			return k, result{State: rec.state, Owner: rec.owner}
		case a.Do == "take" && rec.owner != a.From, a.Do == "update" && a.State.Live() && other.state.Live(),
			a.Do == "update" && a.State.Live() && rec.state == record.Closed:
			return k, exists
		case a.Do == "take":
			rec.owner = a.Owner
			return k, result{State: rec.state}
		}
		rec.state, rec.owner = a.State, a.Owner
	}
	return k, result{}
}

// model describes the allowed histories: each operation must take effect at one moment between call and return.
// Operations on different keys and runs are independent.
func model() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, 2*things)
			for _, op := range history {
				a := op.Input.(act)
				i := 2 * a.Thing
				if a.Do == "append" || a.Do == "read" {
					i++
				}
				parts[i] = append(parts[i], op)
			}
			return parts
		},
		Init: func() any { return kept{entries: "0 "} },
		Step: func(before, input, output any) (bool, any) {
			after, want := before.(kept).next(input.(act))
			return output.(result) == want, after
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
	}
}

// TestHistories verifies linearizability: for concurrent processes with the same records and runs, each operation takes
// effect at one moment.
func TestHistories(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		checkHistory(t, Place{Dir: Dir(t.TempDir())}, 0)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		checkHistory(t, Place{Dir: Dir(t.TempDir()), URL: pgtest.Database(t)}, 0)
	})
	t.Run("postgres, clocks that are a year apart", func(t *testing.T) {
		t.Parallel()
		checkHistory(t, Place{Dir: Dir(t.TempDir()), URL: pgtest.Database(t)}, 365*24*time.Hour)
	})
}

// checkHistory runs processes on a place. apart is the difference of their clocks.
func checkHistory(t *testing.T, place Place, apart time.Duration) {
	journal, err := place.OpenJournal(t.Context(), true)
	must(t, err)
	for i := range things {
		err = errors.Join(err, journal.Append(t.Context(), workflow.Entry{RunID: fmt.Sprint("run_", i), Seq: 1, Time: time.Now(), Kind: workflow.EventRunStarted, Step: "0"}))
	}
	must(t, errors.Join(err, journal.Close()))
	history, counts := []porcupine.Operation{}, map[string]int{}
	for i, acts := range runClients(t, place, apart) {
		for _, d := range acts {
			history = append(history, porcupine.Operation{ClientId: i, Input: d.Act, Output: d.Result, Call: d.From, Return: d.Til})
			counts[d.Act.Do+" "+d.Result.Refused]++
		}
	}
	t.Log(counts)
	if counts["insert exists"] == 0 || counts["append exists"] == 0 {
		t.Error("there was no conflict")
	}
	if result, info := porcupine.CheckOperationsVerbose(model(), history, 0); result != porcupine.Ok {
		path := filepath.Join(os.TempDir(), "workcell-history-"+record.NewID()+".html")
		t.Errorf("not linearizable: %v; see %s, %v", result, path, porcupine.VisualizePath(model(), info, path))
	}
}

// runClients runs the processes, which start at the same time, and returns their operations.
func runClients(t *testing.T, place Place, apart time.Duration) (all [clients][]done) {
	var cmds [clients]*exec.Cmd
	var ins [clients]io.WriteCloser
	var outs [clients]*json.Decoder
	var owners [clients]string
	for i := range clients {
		raw, err := json.Marshal(client{Place: place, ID: i})
		must(t, err)
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), clientVariable+"="+string(raw)), t.Output()
		if apart != 0 {
			clock := clocktest.New(t, os.Args[0])
			clock.Set(time.Duration(i-1) * apart)
			cmd = clock.Under(cmd)
		}
		ins[i], err = cmd.StdinPipe()
		must(t, err)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		cmds[i], outs[i] = cmd, json.NewDecoder(out)
	}
	for i, out := range outs {
		must(t, out.Decode(&owners[i]))
	}
	for _, in := range ins {
		must(t, json.NewEncoder(in).Encode(owners))
	}
	var reading sync.WaitGroup
	for i, out := range outs {
		all[i] = make([]done, actsEach)
		reading.Go(func() {
			for j := range all[i] {
				if err := out.Decode(&all[i][j]); err != nil {
					t.Errorf("act %d of client %d: %v", j, i, err)
					return
				}
			}
		})
	}
	reading.Wait()
	for i, in := range ins {
		must(t, errors.Join(in.Close(), cmds[i].Wait()))
	}
	return all
}
