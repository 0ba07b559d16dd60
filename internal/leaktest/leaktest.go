// Package leaktest fails the tests of a package that leave goroutines behind. goleak by itself waits less than half a
// second for those that are about to end, which on a machine that runs other tests beside may be too short.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end.
const patience = 2 * time.Minute

// Main runs the tests and ends the process.
func Main(m *testing.M) { os.Exit(Tests{m}.Run()) }

// Tests are those of a package, which fail when goroutines are left.
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

// Find waits for the end of all goroutines but the caller's, and returns those that go on.
func Find(ignored ...goleak.Option) error {
	err := goleak.Find(ignored...)
	for late := time.Now().Add(patience); err != nil && time.Now().Before(late); err = goleak.Find(ignored...) {
		time.Sleep(100 * time.Millisecond)
	}
	return err
}
