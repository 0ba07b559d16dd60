package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestGetAwaitsStart: a host that repeats a request may ask for a command that is just being started.
func TestGetAwaitsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry()
		for _, id := range []string{"starts", "fails"} {
			if err := r.reserve(id); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			time.Sleep(time.Second)
			r.release("fails")
			r.add(&execution{id: "starts"})
		}()
		if e, err := r.get("starts"); err != nil || e.id != "starts" {
			t.Errorf("got %v, %v", e, err)
		}
		if e, err := r.get("fails"); err == nil {
			t.Errorf("got %v", e)
		}
	})
}
