package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/gateway/hosttools"
)

// TestAsker verifies that questions are asked one at a time, and input typed before a question does not answer it.
func TestAsker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, typed := io.Pipe()
		var out bytes.Buffer
		var held []bool
		a := newAsker(in, &out, func(h bool) { held = append(held, h) })
		ask := func(ctx context.Context, args string) chan hosttools.Decision {
			answer := make(chan hosttools.Decision, 1)
			go func() {
				d, err := a.approve(ctx, hosttools.ApprovalRequest{Server: "orders", Tool: "refund", Args: []byte(args), Caller: hosttools.Caller{Agent: "desk"}})
				if err != nil {
					d.Note = err.Error()
				}
				answer <- d
			}()
			time.Sleep(2 * typedAhead) // afterwards, earlier input has been dropped
			synctest.Wait()
			return answer
		}
		enter := func(line string) {
			if _, err := io.WriteString(typed, line+"\n"); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		// typed before the first question, and read when the question is asked.
		go func() { _, _ = io.WriteString(typed, "y\n") }()
		early := ask(t.Context(), `{"id":"0"}`)
		enter("n")
		if got := <-early; got.Allow {
			t.Error("what was typed before the question has answered it")
		}
		for line, want := range map[string]hosttools.Decision{
			"y": {Allow: true}, " YES ": {Allow: true}, "a": {Allow: true, For: hosttools.ForTool}, "": {}, "n": {}, "yy": {},
		} {
			answer := ask(t.Context(), `{"id":"1"}`)
			enter(line)
			if got := <-answer; got != want {
				t.Errorf("%q: %+v", line, got)
			}
		}
		enter("y") // no question is open
		ctx, cancel := context.WithCancel(t.Context())
		answer := ask(ctx, "{\"text\":\"\u202egnp.exe\"}")
		cancel()
		if got := <-answer; got.Allow || got.Note != context.Canceled.Error() {
			t.Errorf("%+v", got)
		}
		if got := <-ask(t.Context(), strings.Repeat("x", 4001)); got.Allow {
			t.Errorf("%+v", got)
		}
		answer = ask(t.Context(), "{}")
		if err := typed.Close(); err != nil {
			t.Error(err)
		}
		if got := <-answer; got.Note != errInputEnded.Error() {
			t.Errorf("%+v", got)
		}
		if text := out.String(); !strings.Contains(text, "Code of agent desk asks to call orders.refund with\n  {\"id\":\"1\"}\n") || strings.Contains(text, "\u202e") {
			t.Errorf("%q", text)
		}
		if len(held) == 0 || held[len(held)-1] {
			t.Error("the live line stays away")
		}
	})
}
