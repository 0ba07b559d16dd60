package model

import (
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// TestAnswers: code in a sandbox without a network can use each provider with a key other than the provider's.
func TestAnswers(t *testing.T) {
	on(t, func(t *testing.T, d *desk) {
		for _, tt := range []struct{ provider, path, body string }{
			{"anthropic", "/v1/messages", `{**BODY, "stream": STREAM}`},
			{"openai", "/v1/chat/completions", `{**BODY, "stream": STREAM}`},
			{"openai", "/v1/responses", `{"model": "small", "input": "six times seven?", "stream": STREAM}`},
			{"googleai", "/v1beta/models/small:VERB", `{"contents": [{"parts": [{"text": "six times seven?"}]}]}`},
		} {
			for _, streamed := range []bool{false, true} {
				l, before := d.issue(tt.provider), d.mock.Used()
				path, body := strings.Replace(tt.path, "VERB", "generateContent", 1), strings.Replace(tt.body, "STREAM", "False", 1)
				if streamed {
					path, body = strings.Replace(tt.path, "VERB", "streamGenerateContent?alt=sse", 1), strings.Replace(tt.body, "STREAM", "True", 1)
				}
				out := d.python(l, tt.provider, `status, text = ask(`+body+`, "`+path+`"); print(status, "42" in text)`)
				must(t, l.Close())
				used, u := d.mock.Used(), l.Usage()
				if out != "200 True\n" {
					t.Errorf("%s: %s", path, out)
				}
				if u.Requests != 1 || u.InputTokens != used.Input-before.Input || u.OutputTokens != used.Output-before.Output {
					t.Errorf("%s, streamed %v: metered %+v, used %+v, before %+v", path, streamed, u, used, before)
				}
			}
		}
	})
}

// TestStolenLease: a stolen key is useless in another sandbox, on the host, and after the run.
func TestStolenLease(t *testing.T) {
	on(t, func(t *testing.T, d *desk) {
		const once = `print(ask(BODY)[0])`
		if out := d.python(d.lease, "anthropic", once); out != "200\n" {
			t.Fatalf("the key does not work: %s", out)
		}
		other, _, err := d.m.Open(t.Context(), session.UserKey("thief"), session.Request{Image: pythonImage})
		must(t, err)
		at, err := d.proxy.Attach(t.Context(), other.Sandbox)
		must(t, err)
		thief := &desk{t: t, s: other, at: at}
		if out := thief.python(d.lease, "anthropic", once); out != "401\n" {
			t.Errorf("in another sandbox: %s", out)
		}
		// The program sends requests while the run ends, and afterwards.
		res, err := d.s.Exec(t.Context(), sandbox.ExecRequest{
			Argv:  []string{"python3", "-uc", inside + "import time\nwhile True:\n  try: print(ask(BODY)[0]); time.sleep(.01)\n  except OSError: pass # it was cut short", d.lease.Key(), d.at.BaseURL("anthropic")},
			Yield: time.Millisecond,
		})
		must(t, err)
		d.hold.Store(true)
		<-d.held // wait for a pending request, because it is otherwise unknown whether the last request reached the provider
		must(t, d.lease.Close())
		asked := len(d.mock.Requests())
		d.hold.Store(false)
		close(d.release)
		if out := d.python(d.lease, "anthropic", once); out != "401\n" {
			t.Errorf("after the run: %s", out)
		}
		_, err = d.s.Command(res.ExecID).Signal(t.Context(), "")
		must(t, err)
		if now := len(d.mock.Requests()); now != asked {
			t.Errorf("%d requests after the run", now-asked)
		}
		if u := d.lease.Usage(); u.Requests != int64(asked) {
			t.Errorf("%+v, and the provider was asked %d times", u, asked)
		}
	})
}
