//go:build linux

package faults

import (
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// ledger counts the effects of faults, for the table at the end of the long form.
type ledger struct {
	end time.Time // end of the long form; zero in the short form

	mu   sync.Mutex // guards rows
	rows map[string]*fault
}

// fault counts the effects of one kind of fault on one engine.
type fault struct {
	mu                   sync.Mutex // guards the fields below
	injected, lost, left int
}

// book is filled by all tests and printed after the last test.
var book ledger

// openLedger reads the duration of the long form.
func openLedger() error {
	book.rows = map[string]*fault{}
	text := os.Getenv("FAULTS_SOAK")
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("FAULTS_SOAK: %w", err)
	}
	book.end = time.Now().Add(d)
	return nil
}

// soaking reports whether this is the long form.
func soaking() bool { return !book.end.IsZero() }

// faultOf returns the row for a kind of fault on an engine.
func faultOf(kind, engine string) *fault {
	book.mu.Lock()
	defer book.mu.Unlock()
	name := kind + "\t" + engine
	if book.rows[name] == nil {
		book.rows[name] = &fault{}
	}
	return book.rows[name]
}

// inject counts injected faults.
func (f *fault) inject(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.injected += n
}

// lose reports a loss caused by a fault as a test error.
func (f *fault) lose(t *testing.T, format string, args ...any) {
	t.Helper()
	f.mu.Lock()
	f.lost++
	f.mu.Unlock()
	t.Errorf("lost: "+format, args...)
}

// leave reports leftovers as a test error. An empty list is fine.
func (f *fault) leave(t *testing.T, list []string) {
	t.Helper()
	f.mu.Lock()
	f.left += len(list)
	f.mu.Unlock()
	if len(list) > 0 {
		t.Errorf("left: %v", list)
	}
}

// leaves waits until nothing is left, and reports any leftovers.
func (f *fault) leaves(t *testing.T, left func() []string) {
	t.Helper()
	list := left()
	for deadline := time.Now().Add(patience); len(list) > 0 && time.Now().Before(deadline); list = left() {
		time.Sleep(100 * time.Millisecond)
	}
	f.leave(t, list)
}

// print prints the table.
func (l *ledger) print(w io.Writer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rows) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FAULT\tENGINE\tINJECTED\tLOST\tLEFT")
	for _, name := range slices.Sorted(maps.Keys(l.rows)) {
		f := l.rows[name]
		f.mu.Lock()
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\n", name, f.injected, f.lost, f.left)
		f.mu.Unlock()
	}
	return table.Flush()
}

// laps returns the rounds of a test: few, or FAULTS_ROUNDS. In the long form, it returns as many rounds as fit into the
// remaining time, but at least as many.
func laps(few int) iter.Seq[int] {
	if n, err := strconv.Atoi(os.Getenv("FAULTS_ROUNDS")); err == nil {
		few = n
	}
	return func(yield func(int) bool) {
		for i := 0; i < few || time.Now().Before(book.end); i++ {
			if !yield(i) {
				return
			}
		}
	}
}

// chance returns a random number generator and logs the seed. The environment variable FAULTS_SEED sets the seed.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("FAULTS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("FAULTS_SEED=%d", seed)
	name := fnv.New64()
	_, _ = name.Write([]byte(t.Name())) // never fails
	return rand.New(rand.NewPCG(seed, name.Sum64()))
}
