// Package checktest contains helpers for the tests of all packages.
package checktest

import (
	"testing"
	"time"
)

// patience is longer than any test step takes on a busy host.
const patience = 4 * time.Minute

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until ok returns true. It ends the test if this takes too long.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
