// Package leaktest fails the tests of a package if they leave goroutines behind. goleak alone waits less than half a
// second for goroutines to end, which can be too short on a host with other tests at the same time.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long Find waits for goroutines to end.
const patience = 2 * time.Minute

// Main runs the tests and exits.
func Main(m *testing.M) { os.Exit(Tests{m}.Run()) }

// Tests are the tests of a package. They fail if goroutines remain afterwards.
type Tests struct{ M interface{ Run() int } }

// Run runs the tests and returns the exit code.
func (t Tests) Run() int {
	code := t.M.Run()
	if code == 0 {
		if err := Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// Find waits until all goroutines except the caller's have ended, and returns an error with the remaining ones.
func Find(ignored ...goleak.Option) error {
	err := goleak.Find(ignored...)
	for late := time.Now().Add(patience); err != nil && time.Now().Before(late); err = goleak.Find(ignored...) {
		time.Sleep(100 * time.Millisecond)
	}
	return err
}
