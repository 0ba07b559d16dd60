//go:build linux

package executor

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	gateway "github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/llmtest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// desk is a rig whose CLI uses the model through the model proxy. Faults of the model pass through the proxy.
type desk struct {
	*rig
	proxy *gateway.Proxy
	at    *gateway.Attachment
	mock  *llmtest.Server

	mu    sync.Mutex // guards the fields below
	fault func(n int, w http.ResponseWriter, r *http.Request) (handled bool)
	play  func(n int, r llmtest.Request) llmtest.Answer
	asked int // number of model requests since the start of the fault
}

// upstream returns the provider at the desk and the model name for an agent.
func (a agent) upstream() (provider, model string) {
	provider, model, _ = strings.Cut(providers[a.Name()], "/")
	return provider, model
}

func newDesk(t *testing.T, m *session.Manager, a agent, limits backend.Limits) *desk {
	t.Helper()
	d := &desk{rig: newSandbox(t, m, a, limits)}
	d.mock = llmtest.New(func(_ int, r llmtest.Request) llmtest.Answer {
		d.mu.Lock()
		play, n := d.play, d.asked-1
		d.mu.Unlock()
		return play(n, r)
	})
	web := httptest.NewServer(d)
	t.Cleanup(web.Close)
	name, _ := a.upstream()
	d.proxy = proxyTo(t, web.URL, name)
	var err error
	d.at, err = d.proxy.Attach(t.Context(), d.s.Sandbox)
	must(t, err)
	return d
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	n, fault := d.asked, d.fault
	if r.Method == http.MethodPost && !strings.Contains(r.URL.Path, "count") {
		d.asked++
	}
	d.mu.Unlock()
	if fault == nil || !fault(n, w, r) {
		d.mock.ServeHTTP(w, r)
	}
}

// trial is one run at a desk.
type trial struct {
	fault  func(n int, w http.ResponseWriter, r *http.Request) bool
	play   func(n int, r llmtest.Request) llmtest.Answer // defaults to lookUp
	model  string                                        // requested model, if it differs from the lease's model
	o      func(*executor.Options)
	task   executor.Task // the prompt is the field prompt
	prompt string        // if empty, the default prompt
	g      gateway.Budget
}

// try runs the CLI with a new lease, and returns the metered usage.
func (d *desk) try(ctx context.Context, x trial) (executor.Result, gateway.Usage, error) {
	d.t.Helper()
	provider, name := d.a.upstream()
	lease, err := d.proxy.Issue(gateway.Grant{Provider: provider, Models: []string{name}, SandboxID: d.s.ID(), Budget: x.g})
	must(d.t, err)
	d.mu.Lock()
	d.fault, d.play, d.asked = x.fault, x.play, 0
	if d.play == nil {
		d.play = lookUp
	}
	d.mu.Unlock()
	d.o.Models, d.o.OverBudget = map[gateway.Dialect]executor.Endpoint{}, lease.Spent()
	for _, dialect := range d.proxy.Dialects(provider) {
		url := d.at.BaseURL(provider)
		if provider == "openai" {
			url += "/v1"
		}
		d.o.Models[dialect] = executor.Endpoint{BaseURL: url, Key: lease.Key()}
	}
	was := d.o
	if x.o != nil {
		x.o(&d.o)
	}
	x.task.Prompt, x.task.Model = cmp.Or(x.prompt, "What is the total of order 42?"), x.model
	res, err := d.run(ctx, "", x.task)
	d.o = was
	must(d.t, lease.Close())
	return res, lease.Usage(), err
}

// status answers with a status in a format accepted by all dialects.
func status(code int, header ...string) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"type":"error","error":{"type":"api_error","code":%d,"message":"not now","status":"UNAVAILABLE"}}`, code)
	}
}

// first fails the first requests.
func first(times int, answer func(w http.ResponseWriter)) func(int, http.ResponseWriter, *http.Request) bool {
	return func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n < times {
			answer(w)
		}
		return n < times
	}
}

const always = 1 << 30

// silent never answers. It returns when the client has disconnected.
func silent(_ int, _ http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body) // otherwise the disconnect is not detected
	<-r.Context().Done()
	return true
}

// TestFaults: the two most used CLIs continue after a fault of the model or end with the outcome. Each works again
// afterward in the same sandbox. Recordings of the drivers show faults of the other CLIs.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, a := range agents()[:2] {
		t.Run(a.Name(), func(t *testing.T) {
			t.Parallel()
			faults(t, a)
		})
	}
}

func faults(t *testing.T, a agent) {
	d := newDesk(t, manager(t), a, ample)
	asked := make(chan struct{}, 100)
	hang := func(n int, w http.ResponseWriter, r *http.Request) bool {
		asked <- struct{}{}
		return silent(n, w, r)
	}
	again := map[string]executor.Outcome{"claude": executor.ModelError, "codex": executor.Completed}[a.Name()]
	for _, tt := range []struct {
		name string
		trial
		want executor.Outcome
	}{
		{"429 with Retry-After", trial{fault: first(1, status(429, "Retry-After", "1"))}, executor.Completed},
		{"500 three times", trial{fault: first(3, status(500))}, again}, // depends on the number of retries
		{"529", trial{fault: first(1, status(529))}, executor.Completed},
		{"a stream that is cut", trial{play: func(n int, r llmtest.Request) llmtest.Answer {
			return llmtest.Answer{Text: "The total is 42.", Cut: n == 0}
		}}, executor.Completed},
		{"silence", trial{fault: silent, o: func(o *executor.Options) { o.Stall = 8 * time.Second }}, executor.Stalled},
		{"two HTML pages", trial{fault: first(2, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>please log in</html>")
		})}, executor.Completed},
		{"a call with broken JSON", trial{play: func(n int, r llmtest.Request) llmtest.Answer {
			if n > 0 {
				return llmtest.Answer{Text: "I give up."}
			}
			a := lookUp(n, r)
			for i := range a.Calls {
				a.Calls[i].Input = `{"id": `
			}
			return a
		}}, executor.Completed},
		{"another model", trial{model: strings.Replace(a.model, "-", "-other-", 1)}, executor.AuthError},
		{"the operator's key is refused", trial{fault: first(always, status(401))}, executor.AuthError},
		{"budget", trial{g: gateway.Budget{USD: .0001}}, executor.Budget},
		{"timeout", trial{fault: silent, o: func(o *executor.Options) { o.Timeout = 5 * time.Second }}, executor.TimedOut},
		{"SIGKILL", trial{fault: hang, o: func(*executor.Options) {
			go func() {
				<-asked
				d.sigkill()
			}()
		}}, executor.Crashed},
		{"none", trial{}, executor.Completed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			res, used, err := d.try(t.Context(), tt.trial)
			if err != nil || res.Outcome != tt.want || (res.Err() == nil) != (tt.want == executor.Completed) {
				t.Errorf("%s, want %s: %q, %v, %+v\n%s", res.Outcome, tt.want, res.Detail, err, used, d.output.Bytes())
			}
			if used.Requests+used.Refused > 20 {
				t.Errorf("%+v", used)
			}
			t.Logf("%s after %v, %d requests", res.Outcome, time.Since(began).Round(100*time.Millisecond), used.Requests)
			d.alone()
		})
	}
}

// sigkill kills the processes of the CLI.
func (d *desk) sigkill() {
	_, err := d.s.Exec(context.Background(), sandbox.ExecRequest{Command: `
for p in /proc/[0-9]*; do
	case "$(tr '\0' ' ' < $p/cmdline)" in *"` + d.a.Name() + `"*) test "${p#/proc/}" = $$ || kill -9 "${p#/proc/}";; esac
done; true`})
	if err != nil {
		d.t.Error(err)
	}
}

// alone fails the test if the sandbox has processes other than the guest agent.
func (r *rig) alone() {
	r.t.Helper()
	res, err := r.s.Exec(context.Background(), sandbox.ExecRequest{Command: `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline; echo; done`})
	must(r.t, err)
	for line := range strings.Lines(string(res.Stdout.Bytes())) {
		for _, name := range []string{"claude", "codex", "opencode", "gemini", "workcell-guest mcp"} {
			if strings.Contains(line, name) && !strings.Contains(line, "cmdline") {
				r.t.Errorf("is left: %s", line)
			}
		}
	}
}
